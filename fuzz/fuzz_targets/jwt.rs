//! A token says who somebody is only if it is signed with our key and algorithm and is not over, whatever its header and
//! its claims are.

#![no_main]

use std::net::IpAddr;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderValue, Request};
use libfuzzer_sys::fuzz_target;
use ring::hmac;
use serde_json::Value;
use tollbar::Timestamp;
use tollbar_http::{Identity, Jwt, JwtAlgorithm, JwtKey, Peer};

const SECRET: &[u8] = b"a secret of thirty-two bytes ...";
const NOW_S: u64 = 1_700_000_000;

static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let jwt = Jwt::new(JwtAlgorithm::HS256, JwtKey::from_secret(SECRET)).claim("plan", "tier");
    Identity::new().jwt(jwt)
});

/// The user and the tier that a token tells.
fn claims(token: &[u8]) -> Option<[Option<String>; 2]> {
    let mut request = Request::new(());
    request.extensions_mut().insert(Peer(IpAddr::from([203, 0, 113, 7])));
    let value = HeaderValue::from_bytes(&[b"Bearer ", token].concat()).ok()?;
    request.headers_mut().insert("authorization", value);
    let now = Timestamp::from_micros(NOW_S * 1_000_000);
    let attributes = IDENTITY.attributes(&request.into_parts().0, now);
    Some(["user", "tier"].map(|name| attributes.get(name).map(str::to_owned)))
}

fuzz_target!(|input: (&[u8], &[u8], &[u8])| {
    let (token, header, payload) = input;
    // Nobody guesses a signature.
    assert!(claims(token).is_none_or(|claims| claims == [None, None]));
    for header in [header, br#"{"alg":"HS256"}"#] {
        let [encoded, payload_encoded] = [header, payload].map(|part| URL_SAFE_NO_PAD.encode(part));
        let message = format!("{encoded}.{payload_encoded}");
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), message.as_bytes());
        let signed = format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature));
        let Some(claims) = claims(signed.as_bytes()) else {
            return;
        };
        if claims == [None, None] {
            continue;
        }
        let header: Value = serde_json::from_slice(header).expect("a header is JSON");
        assert_eq!(header["alg"], "HS256");
        let payload: Value = serde_json::from_slice(payload).expect("claims are JSON");
        assert!(
            payload["exp"].as_f64().is_some_and(|end_s| end_s > (NOW_S - 61) as f64),
            "{payload}"
        );
        assert!(
            payload["iss"].is_null() && payload.get("iss").is_none() || payload["iss"].is_string()
        );
        assert!(claims.iter().flatten().all(|value| (1..=1_024).contains(&value.len())));
        // One bit of the signature.
        let mut flipped = signed.into_bytes();
        flipped[message.len() + 1] ^= 1;
        assert!(self::claims(&flipped).is_none_or(|claims| claims == [None, None]));
    }
});
