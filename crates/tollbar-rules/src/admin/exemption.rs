//! An exemption as an admin API speaks of it: one subject, for some reason, for some time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollbar::Timestamp;

use super::FormError;
use crate::{Condition, Conditions, Exemption, Test};

/// Who is not counted by a rule. In JSON `{"subjectType", "subjectValue", "reason", "expiresAt"}`, `null`
/// where there is no reason or no end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct ExemptionForm {
    /// What kind of subject it is.
    pub subject_type: SubjectType,
    /// Which one: a value, or for addresses a block.
    pub subject_value: String,
    /// Why, for people.
    pub reason: Option<String>,
    /// Until when; for ever where there is none.
    #[serde(default, with = "instant")]
    pub expires_at: Option<Timestamp>,
}

/// Which attribute tells who is exempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SubjectType {
    /// `api_key`.
    ApiKey,
    /// `user`.
    User,
    /// `ip`, in a block of addresses.
    IpCidr,
    /// `service_account`.
    ServiceAccount,
}

impl SubjectType {
    /// Every one with its name and its attribute.
    const NAMED: [(&'static str, &'static str, Self); 4] = [
        ("api_key", "api_key", Self::ApiKey),
        ("user", "user", Self::User),
        ("ip_cidr", "ip", Self::IpCidr),
        ("service_account", "service_account", Self::ServiceAccount),
    ];

    /// Its name in JSON and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].0
    }

    /// The one of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMED
            .iter()
            .find(|(known, ..)| *known == name)
            .map(|(.., subject_type)| *subject_type)
    }

    fn attribute(self) -> &'static str {
        Self::NAMED[self as usize].1
    }
}

impl ExemptionForm {
    /// Of one subject, for ever.
    #[must_use]
    pub fn new(subject_type: SubjectType, subject_value: &str) -> Self {
        let subject_value = subject_value.to_owned();
        Self { subject_type, subject_value, reason: None, expires_at: None }
    }

    /// The exemption that the form means.
    pub fn exemption(&self) -> Result<Exemption, FormError> {
        let test = match self.subject_type {
            SubjectType::IpCidr => {
                let block = self.subject_value.parse();
                let wrong =
                    |error: crate::CidrError| FormError::new("subjectValue", error.to_string());
                Test::Within([block.map_err(wrong)?].into())
            }
            _ if self.subject_value.is_empty() => {
                return Err(FormError::new("subjectValue", "this is empty: send whom to exempt"));
            }
            _ => Test::equal(&self.subject_value),
        };
        let mut exemption =
            Exemption::new(Conditions::new().and(self.subject_type.attribute(), test));
        exemption.reason = self.reason.as_deref().map(Into::into);
        exemption.until = self.expires_at;
        Ok(exemption)
    }

    /// The form of an exemption; `None` where it is not of one subject of a known kind.
    #[must_use]
    pub fn from_exemption(exemption: &Exemption) -> Option<Self> {
        let [Condition { attribute, test, .. }] = exemption.conditions.all() else {
            return None;
        };
        let (.., subject_type) =
            SubjectType::NAMED.into_iter().find(|entry| *entry.1 == **attribute)?;
        let value = match (subject_type, test) {
            (SubjectType::IpCidr, Test::Within(blocks)) => match &**blocks {
                [block] => block.to_string(),
                _ => return None,
            },
            (SubjectType::IpCidr, _) => return None,
            (_, Test::OneOf(values)) => match &**values {
                [value] => value.to_string(),
                _ => return None,
            },
            _ => return None,
        };
        let mut form = Self::new(subject_type, &value);
        form.reason = exemption.reason.as_deref().map(str::to_owned);
        form.expires_at = exemption.until;
        Some(form)
    }
}

/// Instants in JSON, as RFC 3339 has them.
mod instant {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tollbar::Timestamp;

    use crate::date::{instant_text, parse_instant};

    #[expect(clippy::ref_option, reason = "serde calls it with a reference to the field")]
    pub(super) fn serialize<S: Serializer>(
        at: &Option<Timestamp>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        at.map(instant_text).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let wrong =
            || D::Error::custom("this is no instant: send one such as \"2027-01-01T12:00:00Z\"");
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| parse_instant(&text).ok_or_else(wrong)).transpose()
    }
}
