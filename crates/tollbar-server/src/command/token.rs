//! `tollbar token`: tokens for the admin interface.

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::client::{Call, CallError, Query, ServerFlags, segment};
use super::table::{Table, cell};
use super::until::Until;
use super::{EXIT_CODES, Ending};
use crate::admin::tokens::{self, TokenForm};
use crate::repository::{Place, Repository};

/// Where tokens are.
const TOKENS: &str = "/v1/rate-limit/tokens";

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Makes a token, which is shown once
    Create(Create),
    /// Lists tokens, without what would let somebody use them
    List(List),
    /// Makes a token worth nothing
    Revoke(Revoke),
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Create {
    /// What people call it
    #[arg(value_name = "NAME")]
    name: String,

    /// What it may do: admin, read, tenant:ID or usage:me; may be given several times
    #[arg(long = "scope", value_name = "SCOPE", required = true)]
    scopes: Vec<String>,

    /// Whose usage a token with the scope usage:me sees, such as user:42
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,

    /// Until when: a time from now such as 90d, a day or an instant; for good without it
    #[arg(long, value_name = "WHEN")]
    until: Option<Until>,

    /// Makes it in the database itself, where no token is left to ask the daemon with
    #[arg(long, value_name = "DATABASE")]
    database: Option<Place>,

    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct List {
    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Revoke {
    /// Its id, as `list` has it
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    server: ServerFlags,
}

impl Token {
    pub(crate) fn run(self) -> Ending {
        match self {
            Self::Create(create) => create.run(),
            Self::List(list) => list.run(),
            Self::Revoke(revoke) => revoke.run(),
        }
    }
}

impl Create {
    fn run(self) -> Ending {
        let form = TokenForm {
            name: self.name,
            scopes: self.scopes,
            subject: self.subject,
            expires_at: self.until.map(|it| it.0),
        };
        self.server.run(async |client| {
            let made = match &self.database {
                None => client.send(Call::post(TOKENS, json!(form))).await?,
                Some(place) => make_in(place, &form).await?,
            };
            Ok(client.show(&made, || shown_once(&made)))
        })
    }
}

async fn make_in(place: &Place, form: &TokenForm) -> Result<Value, CallError> {
    if let Place::Sqlite(path) = place
        && !path.exists()
    {
        let message = format!("--database: there is no {}: where is the daemon's?", path.display());
        return Err(CallError::Misused(message));
    }
    let misused = |error: String| CallError::Misused(format!("--database: {error}"));
    let repository = Repository::open(place).await.map_err(|error| misused(error.to_string()))?;
    let made = tokens::create_in(&repository, form, "command line").await;
    let made = made.map_err(|problem| CallError::Misused(problem.detail.into_owned()))?;
    serde_json::to_value(&made).map_err(|error| misused(error.to_string()))
}

fn shown_once(made: &Value) -> String {
    format!("{}\nkeep it: it is not shown again\n", cell(&made["token"]))
}

impl List {
    fn run(self) -> Ending {
        self.server.run(async |client| {
            let tokens = client.items(TOKENS, &Query::default()).await?;
            Ok(client.show(&json!(tokens), || table(&tokens)))
        })
    }
}

impl Revoke {
    fn run(self) -> Ending {
        self.server.run(async |client| {
            let target = format!("{TOKENS}/{}", segment(&self.id));
            let answer = client.send(Call::new(Method::DELETE, target)).await?;
            Ok(client.show(&answer, || format!("token {} is revoked\n", self.id)))
        })
    }
}

fn table(tokens: &[Value]) -> String {
    let mut table =
        Table::new(&["ID", "NAME", "SCOPES", "SUBJECT", "UNTIL", "USED", "REVOKED", "BY"]);
    for it in tokens {
        let fields = [
            "tokenId",
            "name",
            "scopes",
            "subject",
            "expiresAt",
            "lastUsedAt",
            "revokedAt",
            "createdBy",
        ];
        table.row(fields.iter().map(|name| cell(&it[*name])));
    }
    table.text("there are no tokens")
}
