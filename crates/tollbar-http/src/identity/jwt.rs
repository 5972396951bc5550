//! Claims of a JSON Web Token, verified with keys that are configured.
//!
//! A token that does not verify says nothing: its request is counted as if it had no token. Rejecting such requests is the
//! business of the service that authenticates.
//!
//! `jsonwebtoken` reads keys and headers. Signatures are verified here by ring, which TLS uses too: see decision 0079.

mod signature;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use smallvec::SmallVec;
use tollbar::Timestamp;

use self::signature::Verifier;
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

/// A key, and its id if it has one.
#[derive(Clone)]
struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    verifier: Verifier,
}

impl Jwt {
    /// Accepts tokens that are signed by this key, with this algorithm and no other. RSA keys need 2,048 bits or more.
    #[must_use]
    pub fn new(algorithm: Algorithm, key: DecodingKey) -> Self {
        let claims = vec![("sub".into(), "user".into())];
        Self { keys: Vec::new(), issuer: None, audience: None, claims }.key(None, algorithm, key)
    }

    /// Also accepts tokens that are signed by this key. A key with an id is only tried on tokens that name it.
    #[must_use]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the key is handed over: it is wiped when it is dropped"
    )]
    pub fn key(mut self, id: Option<&str>, algorithm: Algorithm, key: DecodingKey) -> Self {
        let verifier = Verifier::new(algorithm, &key);
        self.keys.push(Key { id: id.map(str::to_owned), algorithm, verifier });
        self
    }

    /// Accepts only tokens of this issuer.
    #[must_use]
    pub fn issuer(self, issuer: &str) -> Self {
        Self { issuer: Some(issuer.into()), ..self }
    }

    /// Accepts only tokens for this audience.
    #[must_use]
    pub fn audience(self, audience: &str) -> Self {
        Self { audience: Some(audience.into()), ..self }
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

    /// Returns the claims of a token that one of the keys has signed and that is valid now.
    fn verified(&self, token: &str, now: Timestamp) -> Option<Map<String, Value>> {
        let header = jsonwebtoken::decode_header(token).ok()?;
        // It names extensions that must be understood, and none is.
        if header.crit.is_some() {
            return None;
        }
        let (message, signature) = token.rsplit_once('.')?;
        let (_, payload) = message.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let fits = |key: &Key| key.id.is_none() || key.id == header.kid;
        let is_signed_by = |key: &Key| {
            key.algorithm == header.alg
                && fits(key)
                && key.verifier.accepts(message.as_bytes(), &signature)
        };
        if !self.keys.iter().any(is_signed_by) {
            return None;
        }
        let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
        let UniqueClaims(claims) = serde_json::from_slice(&payload).ok()?;
        self.is_valid(&claims, now).then_some(claims)
    }

    /// True where the claims are of the issuer, for the audience, and within their time.
    fn is_valid(&self, claims: &Map<String, Value>, now: Timestamp) -> bool {
        // A list of issuers would pass if one of them is ours, and another reader may go by the others.
        let issuer = match claims.get("iss") {
            None => None,
            Some(Value::String(issuer)) => Some(issuer),
            Some(_) => return false,
        };
        if let Some(expected) = &self.issuer
            && issuer.is_none_or(|issuer| **issuer != **expected)
        {
            return false;
        }
        if let Some(expected) = &self.audience {
            let is_expected = |value: &Value| value.as_str() == Some(expected);
            let is_for_us = match claims.get("aud") {
                Some(Value::Array(several)) => several.iter().any(is_expected),
                one => one.is_some_and(is_expected),
            };
            if !is_for_us {
                return false;
            }
        }
        let now_s = now.as_micros() / 1_000_000;
        let Some(expires_s) = claims.get("exp").and_then(seconds) else {
            return false;
        };
        let Some(begins_s) = claims.get("nbf").map_or(Some(0), seconds) else {
            return false;
        };
        expires_s.saturating_add(LEEWAY_S) > now_s && begins_s <= now_s.saturating_add(LEEWAY_S)
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

/// Claims in which no name comes twice: two readers might go by different values.
struct UniqueClaims(Map<String, Value>);

impl<'de> Deserialize<'de> for UniqueClaims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Claims;

        impl<'de> Visitor<'de> for Claims {
            type Value = UniqueClaims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of claims")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueClaims, A::Error> {
                let mut claims = Map::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if claims.insert(name, value).is_some() {
                        return Err(A::Error::custom("a claim is there twice"));
                    }
                }
                Ok(UniqueClaims(claims))
            }
        }

        deserializer.deserialize_map(Claims)
    }
}

impl fmt::Debug for Jwt {
    /// Without keys, which would end up in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt").field("claims", &self.claims).finish_non_exhaustive()
    }
}
