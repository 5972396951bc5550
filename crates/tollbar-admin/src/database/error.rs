//! Why the repository did not do what it was asked.

use hyper::StatusCode;
use thiserror::Error;
use tollbar_daemon::problem::Problem;
use tollbar_rules::admin::FormError;

use super::BrokenRule;

/// What went wrong. Whatever it is, nothing was changed, but for [`Unavailable`](Self::Unavailable):
/// there it may not be known.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RepositoryError {
    /// Somebody else has changed it since it was read.
    #[error("version {expected} was expected, and it is version {found} by now: read it again")]
    Conflict {
        /// The version that the change was meant for.
        expected: u64,
        /// The version that it is.
        found: u64,
    },
    /// There is no such thing, or no longer.
    #[error("there is no such {what}")]
    NotFound {
        /// What was asked for: `rule`, `version`, `exemption`, `token` or `key record`.
        what: &'static str,
    },
    /// Another rule has the name.
    #[error("another rule has the name `{name}`: choose another one")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// What was to be added is there already.
    #[error("there is one already for `{what}`: delete that first")]
    Duplicate {
        /// Of what there is one already.
        what: String,
    },
    /// The form says no rule, or no exemption.
    #[error(transparent)]
    Form(#[from] FormError),
    /// Something that cannot be kept as it is.
    #[error("{field}: {message}")]
    Invalid {
        /// The field, by its name in JSON.
        field: &'static str,
        /// What is wrong with it, and what to send instead.
        message: String,
    },
    /// A row that somebody wrote by hand and that says no rule.
    #[error(
        "row `{}` of the database is no rule ({}): send a rule by PUT to repair it, or DELETE it, with \
         `If-Match: *`",
        .0.id, .0.why
    )]
    Broken(Box<BrokenRule>),
    /// Not a cursor that a page gave out.
    #[error("this is no cursor: send what the page before gave, or none for the first page")]
    Cursor,
    /// The database was made by a newer version of this program.
    #[error(
        "the database has schema {found}, and this version knows schemas up to {known}: start the \
         newer version that made it, or restore a copy from before"
    )]
    NewerSchema {
        /// The schema's number.
        found: u64,
        /// The newest that is known here.
        known: u64,
    },
    /// The database cannot be reached, or did not answer in time: it may do so again.
    #[error("the database does not answer: {why}")]
    Unavailable {
        /// What it said, without secrets.
        why: String,
    },
    /// The database answered with something else than was asked for.
    #[error("the database refused or answered something unexpected: {why}")]
    Database {
        /// What it said, without secrets.
        why: String,
    },
}

/// What the repository answers.
pub type Result<T> = std::result::Result<T, RepositoryError>;

impl RepositoryError {
    /// True where the same may go well later, without anything being changed about it.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    pub(crate) fn database(why: impl std::fmt::Display) -> Self {
        Self::Database { why: why.to_string() }
    }

    pub(crate) fn unavailable(why: impl std::fmt::Display) -> Self {
        Self::Unavailable { why: why.to_string() }
    }
}

/// Says to a client what it can do about the error. A database's own words may name its host and its user, so they
/// are for the log only.
impl From<RepositoryError> for Problem {
    fn from(error: RepositoryError) -> Self {
        match error {
            RepositoryError::Conflict { .. } => Self::conflict(error.to_string()),
            RepositoryError::NotFound { what } => Self::not_found(what),
            RepositoryError::NameTaken { .. } | RepositoryError::Duplicate { .. } => {
                Self::exists(error.to_string())
            }
            RepositoryError::Form(error) => error.into(),
            RepositoryError::Invalid { field, message } => Self::invalid_field(field, message),
            RepositoryError::Cursor => Self::bad_parameter("cursor", error.to_string()),
            RepositoryError::Broken(_) => {
                Self::new(StatusCode::CONFLICT, "broken_rule", error.to_string())
            }
            // What a database says may name its host and its user: that is for the log.
            error => {
                tracing::error!(%error, "the admin API has no answer from the database");
                let detail = "the database does not answer; requests are still checked, and trying \
                              again later is safe";
                Self::unavailable(detail)
            }
        }
    }
}
