//! Headers by which a proxy says more of a request than its attributes: what it costs, the id under which it
//! may be sent again, and how critical it is. Whether the proxy is believed is decided elsewhere.

use http::{HeaderMap, HeaderName};
use thiserror::Error;
use tollbar_rules::{Criticality, Request, whole_digits};

use super::{IdentityError, VALUE_BYTES_MAX};

/// Which header says what. Nothing is read until it is named.
///
/// A request id that is sent again is not charged again, and a cost of 0 charges nothing. So the proxy has to
/// set or remove each of these headers on every request: a client that could choose them would have no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TermHeaders {
    cost: Option<HeaderName>,
    request_id: Option<HeaderName>,
    criticality: Option<HeaderName>,
}

/// A header that does not say what it was named for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TermHeaderError {
    /// It is there twice, empty, too long or no text.
    #[error(
        "the header `{header}` is not there once with 1 to {VALUE_BYTES_MAX} bytes of text: have the proxy \
         replace what its client sends, or remove it"
    )]
    Value {
        /// Its name.
        header: HeaderName,
    },
    /// It is no cost.
    #[error("the header `{header}` says no cost: have the proxy send a whole number such as 5")]
    Cost {
        /// Its name.
        header: HeaderName,
    },
    /// It is no criticality.
    #[error(
        "the header `{header}` says no criticality: have the proxy send low, normal, high or critical"
    )]
    Criticality {
        /// Its name.
        header: HeaderName,
    },
}

impl TermHeaders {
    /// Reads what a request costs before rules multiply it: a whole number, 1 where the header is absent.
    pub fn cost(self, header: &str) -> Result<Self, IdentityError> {
        Ok(Self { cost: Some(header_name(header)?), ..self })
    }

    /// Reads the id under which a request may be sent again without being charged again.
    pub fn request_id(self, header: &str) -> Result<Self, IdentityError> {
        Ok(Self { request_id: Some(header_name(header)?), ..self })
    }

    /// Reads how bad it is to turn a request away: `low`, `normal`, `high` or `critical`. A proxy's word counts whatever
    /// the rules say, and anybody else's only if it is lower.
    pub fn criticality(self, header: &str) -> Result<Self, IdentityError> {
        Ok(Self { criticality: Some(header_name(header)?), ..self })
    }

    /// Says of `request` what the headers of a proxy that is believed say.
    pub fn describe<'h>(
        &self,
        headers: &'h HeaderMap,
        request: &mut Request<'h>,
    ) -> Result<(), TermHeaderError> {
        if let Some(header) = &self.cost
            && let Some(text) = value(headers, header)?
        {
            let cost = whole_digits(text).and_then(|digits| digits.parse().ok());
            request.set_cost(cost.ok_or_else(|| TermHeaderError::Cost { header: header.clone() })?);
        }
        if let Some(header) = &self.request_id
            && let Some(text) = value(headers, header)?
        {
            request.set_request_id(text);
        }
        if let Some(header) = &self.criticality
            && let Some(text) = value(headers, header)?
        {
            let criticality = Criticality::of_name(text);
            let unknown = || TermHeaderError::Criticality { header: header.clone() };
            request.set_criticality(criticality.ok_or_else(unknown)?);
        }
        Ok(())
    }

    /// Lowers the criticality of `request` if the header of an untrusted sender says so. All other headers of such a sender
    /// are ignored.
    pub fn describe_untrusted(&self, headers: &HeaderMap, request: &mut Request<'_>) {
        let header = self.criticality.as_ref();
        let text = header.and_then(|header| super::only(headers, header));
        if let Some(criticality) = text.and_then(Criticality::of_name) {
            request.lower_criticality(criticality);
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &HeaderName> {
        [&self.cost, &self.request_id, &self.criticality].into_iter().flatten()
    }
}

fn header_name(header: &str) -> Result<HeaderName, IdentityError> {
    HeaderName::try_from(header)
        .map_err(|_| IdentityError::Header { header: header.chars().take(64).collect() })
}

/// The value of a header; `None` where it is absent. Of two it would be a guess which one counts.
fn value<'h>(
    headers: &'h HeaderMap,
    header: &HeaderName,
) -> Result<Option<&'h str>, TermHeaderError> {
    if !headers.contains_key(header) {
        return Ok(None);
    }
    let text = super::only(headers, header);
    let text = text.filter(|text| (1..=VALUE_BYTES_MAX).contains(&text.len()));
    text.map(Some).ok_or_else(|| TermHeaderError::Value { header: header.clone() })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// What `X-Cost`, `X-Id` and `X-Crit` say of a request, in one line.
    fn described(lines: &[(&'static str, &str)]) -> Result<String, String> {
        let headers = TermHeaders::default().cost("x-cost").unwrap();
        let headers = headers.request_id("x-id").unwrap().criticality("x-crit").unwrap();
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        let mut request = Request::new("GET", "/").unwrap();
        headers.describe(&map, &mut request).map_err(|error| error.to_string())?;
        let (cost, id) = (request.cost(), request.request_id().unwrap_or("none"));
        Ok(format!("{cost} {id} {}", request.criticality().name()))
    }

    #[test]
    fn cost_id_and_criticality_are_read_from_the_headers_that_are_named() {
        assert_eq!(described(&[]).unwrap(), "1 none normal");
        let all = [("x-cost", "7"), ("x-id", "a-1"), ("x-crit", "critical"), ("x-other", "9")];
        assert_eq!(described(&all).unwrap(), "7 a-1 critical");
        assert_eq!(described(&[("x-cost", "0")]).unwrap(), "0 none normal");
        assert_eq!(described(&[("x-cost", "5.0")]).unwrap(), "5 none normal");
    }

    #[test]
    fn whoever_is_not_believed_can_only_lower_the_criticality() {
        let headers = TermHeaders::default().cost("x-cost").unwrap().criticality("x-crit").unwrap();
        for (value, expected) in
            [("low", "low"), ("normal", "normal"), ("critical", "normal"), ("urgent", "normal")]
        {
            let mut map = HeaderMap::new();
            map.append("x-crit", HeaderValue::from_static(value));
            map.append("x-cost", HeaderValue::from_static("0"));
            let mut request = Request::new("GET", "/").unwrap();
            headers.describe_untrusted(&map, &mut request);
            assert_eq!((request.criticality().name(), request.cost()), (expected, 1), "{value}");
        }
        let mut twice = HeaderMap::new();
        twice.append("x-crit", HeaderValue::from_static("low"));
        twice.append("x-crit", HeaderValue::from_static("low"));
        let mut request = Request::new("GET", "/").unwrap();
        headers.describe_untrusted(&twice, &mut request);
        assert_eq!(request.criticality(), Criticality::Normal);
    }

    #[test]
    fn a_header_that_says_something_else_is_an_error_with_what_to_send() {
        let long = "9".repeat(VALUE_BYTES_MAX + 1);
        for (lines, told) in [
            (&[("x-cost", "5"), ("x-cost", "5")][..], "`x-cost` is not there once"),
            (&[("x-cost", "")], "`x-cost` is not there once"),
            (&[("x-cost", &long)], "`x-cost` is not there once"),
            (&[("x-cost", "five")], "`x-cost` says no cost"),
            (&[("x-cost", "-1")], "`x-cost` says no cost"),
            (&[("x-cost", "+1")], "`x-cost` says no cost"),
            (&[("x-cost", "1.5")], "`x-cost` says no cost"),
            (&[("x-cost", "18446744073709551616")], "`x-cost` says no cost"),
            (&[("x-id", "a"), ("x-id", "b")], "`x-id` is not there once"),
            (&[("x-crit", "urgent")], "low, normal, high or critical"),
        ] {
            let error = described(lines).unwrap_err();
            assert!(error.contains(told), "{lines:?}: {error}");
        }
        assert!(TermHeaders::default().cost("x cost").is_err());
    }
}
