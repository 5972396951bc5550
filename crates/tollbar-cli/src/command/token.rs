//! `tollbar token`: tokens for the admin interface.

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};

use super::ExitStatus;
use super::client::{ApiError, ApiRequest, Client, Query, segment};
use super::table::{cell, columns};
use crate::command::expiry::Expiry;
use tollbar_admin::database::{DatabaseLocation, Repository};
use tollbar_admin::operations::tokens::{self, TokenForm};

/// Where tokens are.
const TOKENS: &str = "/v1/rate-limit/tokens";

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Makes a token, which is shown once
    Create {
        /// What people call it
        name: String,

        /// What it may do: admin, read, tenant:ID or usage:me; may be given several times
        #[arg(long = "scope", value_name = "SCOPE", required = true)]
        scopes: Vec<String>,

        /// Whose usage a token with the scope usage:me sees, such as user:42
        #[arg(long)]
        subject: Option<String>,

        /// Until when: a time from now such as 90d, a day or an instant; for good without it
        #[arg(long, value_name = "WHEN")]
        until: Option<Expiry>,

        /// Makes it in the database itself, where no token is left to ask the daemon with
        #[arg(long)]
        database: Option<DatabaseLocation>,
    },
    /// Lists tokens, without what would let somebody use them
    List,
    /// Makes a token worth nothing
    Revoke {
        /// Its id, as `list` has it
        id: String,
    },
}

impl TokenCommand {
    pub(crate) async fn run(self, client: &Client) -> Result<ExitStatus, ApiError> {
        match self {
            Self::Create { name, scopes, subject, until, database } => {
                let form =
                    TokenForm { name, scopes, subject, expires_at: until.map(|expiry| expiry.0) };
                let created = match &database {
                    None => client.send(ApiRequest::post(TOKENS, json!(form))).await?,
                    Some(location) => create_in_database(location, &form).await?,
                };
                let token = cell(&created["token"]);
                Ok(client.show(&created, || format!("{token}\nkeep it: it is not shown again\n")))
            }
            Self::List => {
                let tokens = client.items(TOKENS, &Query::default()).await?;
                Ok(client.show(&json!(tokens), || table(&tokens)))
            }
            Self::Revoke { id } => {
                let target = format!("{TOKENS}/{}", segment(&id));
                let response = client.send(ApiRequest::new(Method::DELETE, target)).await?;
                Ok(client.show(&response, || format!("token {id} is revoked\n")))
            }
        }
    }
}

async fn create_in_database(
    location: &DatabaseLocation,
    form: &TokenForm,
) -> Result<Value, ApiError> {
    if let DatabaseLocation::Sqlite(path) = location
        && !path.exists()
    {
        let message = format!("--database: there is no {}: where is the daemon's?", path.display());
        return Err(ApiError::InvalidInput(message));
    }
    let misused = |error: String| ApiError::InvalidInput(format!("--database: {error}"));
    let repository =
        Repository::open(location).await.map_err(|error| misused(error.to_string()))?;
    let created = tokens::create_in(&repository, form, "command line").await;
    let created = created.map_err(|problem| ApiError::InvalidInput(problem.detail.into_owned()))?;
    serde_json::to_value(&created).map_err(|error| misused(error.to_string()))
}

fn table(tokens: &[Value]) -> String {
    let fields = [
        ("ID", "tokenId"),
        ("NAME", "name"),
        ("SCOPES", "scopes"),
        ("SUBJECT", "subject"),
        ("UNTIL", "expiresAt"),
        ("USED", "lastUsedAt"),
        ("REVOKED", "revokedAt"),
        ("BY", "createdBy"),
    ];
    columns(&fields, tokens, "there are no tokens")
}
