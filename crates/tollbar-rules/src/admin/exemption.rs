//! An exemption as an admin API speaks of it: one subject, for some reason, for some time.

use serde_json::{Map, Value, json};
use tollbar::Timestamp;

use super::{FormError, Problem};
use crate::date::{instant_text, parse_instant};
use crate::pattern::shorten;
use crate::{Condition, Conditions, Exemption, Test};

/// Who is not counted by a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExemptionForm {
    /// What kind of subject it is.
    pub subject_type: SubjectType,
    /// Which one: a value, or for addresses a block.
    pub subject_value: String,
    /// Why, for people.
    pub reason: Option<String>,
    /// Until when; for ever where there is none.
    pub expires_at: Option<Timestamp>,
}

/// Which attribute tells who is exempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
        Self::NAMED.iter().find(|(known, ..)| *known == name).map(|(.., it)| *it)
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

    /// The form that JSON has: `{"subjectType", "subjectValue", "reason", "expiresAt"}`.
    pub fn from_json(json: &Value) -> Result<Self, FormError> {
        let Value::Object(fields) = json else {
            let message = "an exemption is an object: send one such as {\"subjectType\": \"api_key\", \
                           \"subjectValue\": \"internal\"}";
            return Err(FormError::of("", message));
        };
        let mut problems = Vec::new();
        let known = ["subjectType", "subjectValue", "reason", "expiresAt"];
        for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
            let message =
                format!("there is no such field: the fields are `{}`", known.join("`, `"));
            problems.push(Problem::of(&shorten(name), message));
        }
        let mut text = |name: &str, what: Option<&str>| {
            let text = text(fields, name, what);
            text.unwrap_or_else(|problem| {
                problems.push(problem);
                None
            })
        };
        let types = SubjectType::NAMED.map(|(name, ..)| name).join("\", \"");
        let types = format!("one of \"{types}\"");
        let subject_type = text("subjectType", Some(&types));
        let value = text("subjectValue", Some("a text such as \"internal\" or \"10.0.0.0/8\""));
        let reason = text("reason", None);
        let expires_at = text("expiresAt", None);
        let known_type = subject_type.and_then(SubjectType::of_name);
        if let (Some(name), None) = (subject_type, known_type) {
            let message = format!("`{}` is not known here: send {types}", shorten(name));
            problems.push(Problem::of("subjectType", message));
        }
        let until = expires_at.and_then(parse_instant);
        if let (Some(text), None) = (expires_at, until) {
            let message = format!(
                "`{}` is no instant: send one such as \"2027-01-01T12:00:00Z\"",
                shorten(text)
            );
            problems.push(Problem::of("expiresAt", message));
        }
        match (known_type, value) {
            (Some(subject_type), Some(value)) if problems.is_empty() => {
                let mut form = Self::new(subject_type, value);
                (form.reason, form.expires_at) = (reason.map(str::to_owned), until);
                form.exemption()?;
                Ok(form)
            }
            _ => Err(FormError { problems }),
        }
    }

    /// As JSON, `null` where there is no reason or no end.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "subjectType": self.subject_type.name(),
            "subjectValue": self.subject_value,
            "reason": self.reason,
            "expiresAt": self.expires_at.map(instant_text),
        })
    }

    /// The exemption that the form means.
    pub fn exemption(&self) -> Result<Exemption, FormError> {
        let test = match self.subject_type {
            SubjectType::IpCidr => {
                let block = self.subject_value.parse();
                let wrong =
                    |error: crate::CidrError| FormError::of("subjectValue", error.to_string());
                Test::Within([block.map_err(wrong)?].into())
            }
            _ if self.subject_value.is_empty() => {
                return Err(FormError::of("subjectValue", "this is empty: send whom to exempt"));
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
    pub fn of(exemption: &Exemption) -> Option<Self> {
        let [Condition { attribute, test, .. }] = exemption.conditions.all() else {
            return None;
        };
        let (.., subject_type) = SubjectType::NAMED.into_iter().find(|it| *it.1 == **attribute)?;
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

/// A text that is there; `what` says what it has to be where it has to be.
fn text<'j>(
    fields: &'j Map<String, Value>,
    name: &str,
    what: Option<&str>,
) -> Result<Option<&'j str>, Problem> {
    match (fields.get(name).unwrap_or(&Value::Null), what) {
        (Value::Null, None) => Ok(None),
        (Value::Null, Some(what)) => {
            Err(Problem::of(name, format!("this is missing: send {what}")))
        }
        (Value::String(text), _) => Ok(Some(text)),
        (_, what) => {
            let what = what.unwrap_or("one, or leave it out");
            Err(Problem::of(name, format!("this is no text: send {what}")))
        }
    }
}
