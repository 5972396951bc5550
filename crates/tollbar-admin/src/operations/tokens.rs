//! Tokens: made, listed, revoked. Only an administrator does any of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollbar::Timestamp;

use super::Admin;
use super::instant;
use crate::database::{NewToken, Page, PageRequest, Repository, RepositoryError, TokenRow};
use crate::operations::auth::access::{Actor, Permission, Scope};
use crate::operations::auth::credential::Credential;
use crate::operations::text_fields;
use tollbar_daemon::problem::Problem;

/// The most scopes of a token: there are four kinds.
const SCOPES_MAX: usize = 4;

/// A token to be made.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TokenForm {
    /// What people call it.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// What it may do: `admin`, `read`, `tenant:<id>`, `usage:me`.
    #[schemars(
        length(min = 1, max = 4),
        inner(pattern(r"^(admin|read|usage:me|tenant:[A-Za-z0-9_.:-]{1,64})$"))
    )]
    pub scopes: Vec<String>,
    /// Whose usage a token with `usage:me` sees: `user:42`, `api:abc`, `ip:203.0.113.7`, `tenant:acme`.
    pub subject: Option<String>,
    /// From when on it is worth nothing; never where it is left out.
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
}

/// A token that was just made.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MadeToken")]
pub struct CreatedToken {
    #[serde(flatten)]
    pub(crate) row: TokenRow,
    /// What to send behind `Authorization: Bearer`. It is shown here and nowhere else.
    pub(crate) token: String,
}

/// Makes one.
pub(crate) async fn create(
    admin: &Admin,
    actor: &Actor,
    form: &TokenForm,
) -> Result<CreatedToken, Problem> {
    actor.reach(Permission::ChangeAll)?;
    create_in(&admin.repository, form, &actor.audit_name()).await
}

/// Makes one in the database itself, for whoever can open that: they need no leave.
pub async fn create_in(
    repository: &Repository,
    form: &TokenForm,
    actor: &str,
) -> Result<CreatedToken, Problem> {
    let credential = Credential::random();
    let token = form.to_new_token(&credential, repository.now())?;
    let row = repository.insert_token(&token, actor).await?;
    Ok(CreatedToken { row, token: credential.reveal().to_owned() })
}

/// All of them, those that were revoked too.
pub(crate) async fn list(
    admin: &Admin,
    actor: &Actor,
    page: &PageRequest,
) -> Result<Page<TokenRow>, Problem> {
    actor.reach(Permission::ChangeAll)?;
    Ok(admin.repository.tokens(page).await?)
}

/// Makes one worth nothing, on all nodes within a second. The row stays.
pub(crate) async fn revoke(admin: &Admin, actor: &Actor, id: &str) -> Result<(), Problem> {
    actor.reach(Permission::ChangeAll)?;
    let id = id.parse().map_err(|_| Problem::not_found("token"))?;
    admin.repository.revoke_token(id, &actor.audit_name()).await?;
    Ok(())
}

/// The caller's own.
pub(crate) async fn get_own(admin: &Admin, actor: &Actor) -> Result<TokenRow, Problem> {
    actor.reach(Permission::SeeOwnToken)?;
    Ok(admin.repository.token(actor.token_id).await?)
}

/// The token of a database that never had one, for whoever started the daemon first.
pub async fn create_first(repository: &Repository) -> Result<Option<Credential>, RepositoryError> {
    let credential = Credential::random();
    let token = NewToken {
        hash: *credential.hash().bytes(),
        name: "first".to_owned(),
        scopes: vec![Scope::Admin.to_string()],
        subject: None,
        expires_at: None,
    };
    let row = repository.insert_first_token(&token, "first start").await?;
    Ok(row.map(|_| credential))
}

impl TokenForm {
    /// Checks the form, and returns the token to be inserted.
    fn to_new_token(&self, credential: &Credential, now: Timestamp) -> Result<NewToken, Problem> {
        let name = text_fields::check_name("name", &self.name)?;
        if !(1..=SCOPES_MAX).contains(&self.scopes.len()) {
            let detail = format!("send 1 to {SCOPES_MAX} of them, such as [\"read\"]");
            return Err(Problem::invalid_field("scopes", detail));
        }
        let mut scopes = Vec::new();
        for text in &self.scopes {
            let scope = Scope::parse(text).ok_or_else(|| {
                let known = "`admin`, `read`, `tenant:<id>` or `usage:me`";
                Problem::invalid_field(
                    "scopes",
                    format!("send {known}; an id has letters, digits and `_-.:`"),
                )
            })?;
            if scopes.contains(&scope) {
                return Err(Problem::invalid_field("scopes", "send each of them once"));
            }
            scopes.push(scope);
        }
        let is_tenants = |scope: &&Scope| matches!(scope, Scope::Tenant(_));
        if scopes.iter().filter(is_tenants).count() > 1 {
            let detail = "a token is of one tenant: make one for each";
            return Err(Problem::invalid_field("scopes", detail));
        }
        match (&self.subject, scopes.contains(&Scope::UsageMe)) {
            (None, true) => {
                let detail =
                    "`usage:me` needs to know who that is: send a text such as \"user:42\"";
                return Err(Problem::invalid_field("subject", detail));
            }
            (Some(_), false) => {
                let detail = "only a token with `usage:me` has one: leave it out";
                return Err(Problem::invalid_field("subject", detail));
            }
            (Some(subject), true) => {
                text_fields::check_subject("subject", subject)?;
            }
            (None, false) => {}
        }
        Ok(NewToken {
            hash: *credential.hash().bytes(),
            name,
            scopes: scopes.iter().map(ToString::to_string).collect(),
            subject: self.subject.clone(),
            expires_at: instant::parse_future("expiresAt", self.expires_at.as_deref(), now)?,
        })
    }
}
