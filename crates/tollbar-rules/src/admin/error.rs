//! What is wrong with a form: every field, and what to send instead.

use std::fmt;

use thiserror::Error;

/// Why a form is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", ProblemList(problems))]
#[non_exhaustive]
pub struct FormError {
    /// What is wrong; at least one.
    pub problems: Vec<Problem>,
}

/// Something to be changed in a form.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// Which field; empty where it is the whole.
    pub field: String,
    /// What is wrong, and what to send instead.
    pub message: String,
}

impl FormError {
    /// One problem.
    #[must_use]
    pub fn new(field: &str, message: impl Into<String>) -> Self {
        Self { problems: vec![Problem::new(field, message)] }
    }
}

impl Problem {
    pub(super) fn new(field: &str, message: impl Into<String>) -> Self {
        Self { field: field.to_owned(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// The problems, a line each.
struct ProblemList<'a>(&'a [Problem]);

impl fmt::Display for ProblemList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}
