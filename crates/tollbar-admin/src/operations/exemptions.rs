//! Exemptions from rules of the database: who is not counted, why and until when.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollbar_rules::admin::{ExemptionForm, SubjectType};

use super::rules::{RuleRecord, find_changeable};
use super::{Admin, instant, rules};
use crate::database::{ExemptionRow, Page, PageRequest};
use crate::operations::auth::access::{Actor, Permission, Reach};
use crate::operations::text_fields;
use tollbar_daemon::problem::Problem;
use tollbar_daemon::rfc3339::Rfc3339;

/// An exemption to be made.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "ExemptionForm")]
pub(crate) struct NewExemption {
    /// What kind of subject it is.
    pub(crate) subject_type: SubjectType,
    /// Which one: a value, or for addresses a block.
    #[schemars(length(min = 1, max = 1_024))]
    pub(crate) subject_value: String,
    /// Why, for people.
    #[schemars(length(max = 1_024))]
    pub(crate) reason: Option<String>,
    /// Until when; for ever where it is left out.
    #[schemars(extend("format" = "date-time"))]
    pub(crate) expires_at: Option<String>,
}

/// An exemption.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "clients know it by this name")]
pub(crate) struct Exemption {
    pub(crate) exemption_id: i64,
    pub(crate) rule_id: String,
    pub(crate) subject_type: &'static str,
    pub(crate) subject_value: String,
    pub(crate) reason: Option<String>,
    pub(crate) expires_at: Option<Rfc3339>,
    /// Who made it.
    pub(crate) created_by: String,
    pub(crate) created_at: Rfc3339,
}

/// A page of all there are.
pub(crate) async fn list(
    admin: &Admin,
    actor: &Actor,
    page: &PageRequest,
) -> Result<Page<Exemption>, Problem> {
    actor.reach(Permission::SeeAll)?;
    Ok(admin.repository.exemptions(None, page).await?.map(Into::into))
}

/// A page of those from one rule. Those of a file's rule are in the rule.
pub(crate) async fn list_of_rule(
    admin: &Admin,
    actor: &Actor,
    rule: &str,
    page: &PageRequest,
) -> Result<Page<Exemption>, Problem> {
    match rules::find(admin, actor.reach(Permission::See)?, rule).await? {
        RuleRecord::Database(row) => {
            Ok(admin.repository.exemptions(Some(row.id), page).await?.map(Into::into))
        }
        RuleRecord::File(_) => Ok(Page { rows: Vec::new(), next: None }),
    }
}

/// Exempts somebody.
pub(crate) async fn create(
    admin: &Admin,
    actor: &Actor,
    rule: &str,
    sent: &NewExemption,
) -> Result<Exemption, Problem> {
    let reach = admin.authorize_change(actor)?;
    let rule = find_changeable(admin, reach, rule).await?;
    let form = sent.form(admin)?;
    let row = admin.repository.add_exemption(rule.id, &form, &actor.audit_name()).await?;
    admin.wait_until_enforced().await;
    Ok(row.into())
}

/// Ends an exemption.
pub(crate) async fn delete(admin: &Admin, actor: &Actor, id: &str) -> Result<(), Problem> {
    let reach = admin.authorize_change(actor)?;
    let id = id.parse().map_err(|_| Problem::not_found("exemption"))?;
    if let Reach::Tenant(_) = reach {
        let row = admin.repository.exemption(id).await?;
        find_changeable(admin, reach, &row.rule.to_string())
            .await
            .map_err(|problem| problem.or_not_found("exemption"))?;
    }
    admin.repository.delete_exemption(id, &actor.audit_name()).await?;
    admin.wait_until_enforced().await;
    Ok(())
}

impl NewExemption {
    fn form(&self, admin: &Admin) -> Result<ExemptionForm, Problem> {
        text_fields::check_subject("subjectValue", &self.subject_value)?;
        text_fields::check_reason("reason", self.reason.as_deref())?;
        let mut form = ExemptionForm::new(self.subject_type, &self.subject_value);
        form.reason.clone_from(&self.reason);
        form.expires_at =
            instant::parse_future("expiresAt", self.expires_at.as_deref(), admin.now())?;
        form.exemption()?;
        let value = self.subject_value.strip_prefix(self.subject_type.name());
        if let Some(value) = value.and_then(|value| value.strip_prefix(':')) {
            let detail = format!("`subjectType` says what it is: send `{value}` alone");
            return Err(Problem::invalid_field("subjectValue", detail));
        }
        Ok(form)
    }
}

impl From<ExemptionRow> for Exemption {
    fn from(row: ExemptionRow) -> Self {
        Self {
            exemption_id: row.id,
            rule_id: row.rule.to_string(),
            subject_type: row.form.subject_type.name(),
            subject_value: row.form.subject_value,
            reason: row.form.reason,
            expires_at: row.form.expires_at.map(Rfc3339),
            created_by: row.created_by,
            created_at: Rfc3339(row.created_at),
        }
    }
}
