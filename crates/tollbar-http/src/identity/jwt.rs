//! Claims of a JSON Web Token, verified with keys that are configured.
//!
//! A token that does not verify tells nothing: whoever sends it is counted as if it were not there.
//! To turn such requests away is the business of whoever authenticates.

use std::fmt;

use http::HeaderMap;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::{Map, Value};
use smallvec::SmallVec;
use tollbar::Timestamp;

use super::bearer;

pub use jsonwebtoken::{Algorithm as JwtAlgorithm, DecodingKey as JwtKey};

/// The longest token that is looked at: servers take headers of 8 KiB.
const TOKEN_BYTES_MAX: usize = 8_192;

/// By how much clocks may differ.
const LEEWAY_S: u64 = 60;

/// Which tokens are believed, and which of their claims are attributes.
///
/// By itself the claim `sub` is the attribute `user`. Tokens come in `Authorization: Bearer`, and
/// need an `exp` that is not over.
///
/// ```
/// use tollbar_http::{Jwt, JwtAlgorithm, JwtKey};
/// let jwt = Jwt::new(JwtAlgorithm::HS256, JwtKey::from_secret(b"secret"))
///     .issuer("https://login.example.com")
///     .claim("plan", "tier");
/// # let _ = jwt;
/// ```
#[derive(Clone)]
pub struct Jwt {
    keys: Vec<Key>,
    issuer: Option<Box<str>>,
    audience: Option<Box<str>>,
    /// Claims and the attributes they are.
    claims: Vec<(Box<str>, Box<str>)>,
}

/// A key, its id if it has one, and what is asked of a token under it.
#[derive(Clone)]
struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    decoding: DecodingKey,
    validation: Validation,
}

impl Jwt {
    /// Tokens that are signed by this key, with this algorithm and no other.
    #[must_use]
    pub fn new(algorithm: Algorithm, key: DecodingKey) -> Self {
        let claims = vec![("sub".into(), "user".into())];
        Self { keys: Vec::new(), issuer: None, audience: None, claims }.key(None, algorithm, key)
    }

    /// Also those that are signed by this key. With an id it is only tried on tokens that name it.
    #[must_use]
    pub fn key(mut self, id: Option<&str>, algorithm: Algorithm, key: DecodingKey) -> Self {
        let validation = self.validation(algorithm);
        self.keys.push(Key { id: id.map(str::to_owned), algorithm, decoding: key, validation });
        self
    }

    /// Only tokens of this issuer.
    #[must_use]
    pub fn issuer(self, issuer: &str) -> Self {
        Self { issuer: Some(issuer.into()), ..self }.validated()
    }

    /// Only tokens for this audience.
    #[must_use]
    pub fn audience(self, audience: &str) -> Self {
        Self { audience: Some(audience.into()), ..self }.validated()
    }

    fn validated(mut self) -> Self {
        for at in 0..self.keys.len() {
            self.keys[at].validation = self.validation(self.keys[at].algorithm);
        }
        self
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        // Looked at here, by the engine's clock.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = self.audience.is_some();
        if let Some(audience) = &self.audience {
            validation.set_audience(&[audience]);
            validation.required_spec_claims.insert("aud".to_owned());
        }
        if let Some(issuer) = &self.issuer {
            validation.set_issuer(&[issuer]);
            validation.required_spec_claims.insert("iss".to_owned());
        }
        validation
    }

    /// The claim `claim` is the attribute `attribute`. Strings, whole numbers and booleans are read.
    #[must_use]
    pub fn claim(mut self, claim: &str, attribute: &str) -> Self {
        self.claims.retain(|(_, known)| **known != *attribute);
        self.claims.push((claim.into(), attribute.into()));
        self
    }

    /// The attributes that the request's token tells.
    pub(super) fn claims(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> SmallVec<[(&str, String); 2]> {
        let token = bearer(headers).filter(|token| token.len() <= TOKEN_BYTES_MAX);
        let Some(content) = token.and_then(|token| self.verified(token, now)) else {
            return SmallVec::new();
        };
        let told = self.claims.iter().filter_map(|(claim, attribute)| {
            let value = match content.get(&**claim)? {
                Value::String(text) => text.clone(),
                Value::Number(number) if !number.is_f64() => number.to_string(),
                Value::Bool(yes) => yes.to_string(),
                _ => return None,
            };
            Some((&**attribute, value))
        });
        told.collect()
    }

    fn verified(&self, token: &str, now: Timestamp) -> Option<Map<String, Value>> {
        let header = jsonwebtoken::decode_header(token).ok()?;
        let fits = |key: &&Key| key.id.is_none() || key.id == header.kid;
        let decoded = |Key { decoding, validation, .. }: &Key| {
            jsonwebtoken::decode::<Map<String, Value>>(token, decoding, validation).ok()
        };
        let content = self.keys.iter().filter(fits).find_map(decoded)?.claims;
        // A list would pass if one of its names is the issuer's, and another reader may go by the others.
        if content.get("iss").is_some_and(|issuer| !issuer.is_string()) {
            return None;
        }
        let now_s = now.as_micros() / 1_000_000;
        let expires_s = seconds(content.get("exp")?)?;
        let is_over = expires_s.saturating_add(LEEWAY_S) <= now_s;
        let begins_s = content.get("nbf").map_or(Some(0), seconds)?;
        let is_early = begins_s > now_s.saturating_add(LEEWAY_S);
        (!is_over && !is_early).then_some(content)
    }
}

/// A date in a token: seconds since 1970, perhaps with a fraction, which is cut off.
fn seconds(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_f64().filter(|seconds| *seconds >= 0.0).map(whole))
}

#[expect(clippy::cast_sign_loss, reason = "only called with what is not negative; `as` saturates")]
fn whole(value: f64) -> u64 {
    value as u64
}

impl fmt::Debug for Jwt {
    /// Without keys, which would end up in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt").field("claims", &self.claims).finish_non_exhaustive()
    }
}
