//! Tokens: whose signature counts, and what they say.

mod openssl_tokens;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};

use self::openssl_tokens::*;
use super::*;

const NOW_S: u64 = START.as_micros() / 1_000_000;

/// A token with this header and these claims, written as they are, and its HMAC by SHA-256.
fn signed_text(secret: &[u8], header: &str, claims: &str) -> String {
    let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part));
    let message = format!("{header}.{claims}");
    let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
    format!("Bearer {message}.{}", URL_SAFE_NO_PAD.encode(mac))
}

fn token_with(secret: &[u8], header: &Value, claims: &Value) -> String {
    signed_text(secret, &header.to_string(), &claims.to_string())
}

fn token(secret: &[u8], claims: &Value) -> String {
    token_with(secret, &json!({ "alg": "HS256" }), claims)
}

fn user(jwt: Jwt, authorization: &str) -> Option<String> {
    let headers: Lines<'_> = &[("authorization", authorization.as_bytes())];
    read(&Identity::new().jwt(jwt), "1.2.3.4", headers, "user")
}

fn hs256() -> Jwt {
    Jwt::new(JwtAlgorithm::HS256, JwtKey::from_secret(b"right"))
}

#[test]
fn only_tokens_that_verify_tell_who_somebody_is() {
    let good = json!({ "sub": "42", "exp": NOW_S + 10 });
    let signed = |claims: &Value| token(b"right", claims);
    assert_eq!(user(hs256(), &signed(&good)).as_deref(), Some("42"));
    // Whatever the header says, the key is for HS256.
    let hs512 = token_with(b"right", &json!({ "alg": "HS512" }), &good);
    let wrong = token(b"wrong", &good);
    // {"alg":"none"} and an empty signature.
    let none = "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiI0MiIsImV4cCI6OTk5OTk5OTk5OX0.";
    let long = format!("{}{}", signed(&good), "A".repeat(9_000));
    for refused in [&*hs512, &*wrong, none, &*long, "Bearer x.y.z", "Bearer ", "Bearer \u{e9}"] {
        assert_eq!(user(hs256(), refused), None, "{refused}");
    }
    for (claims, what) in [
        (json!({ "sub": "42" }), "no end"),
        (json!({ "sub": "42", "exp": NOW_S - 60 }), "over"),
        (json!({ "sub": "42", "exp": "soon" }), "no date"),
        (json!({ "sub": "42", "exp": NOW_S + 10, "nbf": NOW_S + 61 }), "too early"),
        (json!({ "sub": ["42"], "exp": NOW_S + 10 }), "no text"),
        (json!({ "sub": "4".repeat(2_000), "exp": NOW_S + 10 }), "too long"),
    ] {
        assert_eq!(user(hs256(), &signed(&claims)), None, "{what}");
    }
    // A minute is within what clocks may differ.
    let late = json!({ "sub": 42, "exp": NOW_S - 59, "nbf": NOW_S + 60 });
    assert_eq!(user(hs256(), &signed(&late)).as_deref(), Some("42"));
}

/// RFC 7519 allows dates with a fraction.
#[test]
fn a_date_may_have_a_fraction_and_not_be_negative() {
    let end_s = NOW_S as f64;
    let table = [
        (json!({ "sub": "42", "exp": end_s + 10.5 }), true),
        (json!({ "sub": "42", "exp": end_s - 59.5 }), false),
        (json!({ "sub": "42", "exp": end_s - 58.5 }), true),
        (json!({ "sub": "42", "exp": NOW_S + 10, "nbf": end_s + 60.5 }), true),
        (json!({ "sub": "42", "exp": NOW_S + 10, "nbf": end_s + 61.5 }), false),
        (json!({ "sub": "42", "exp": NOW_S + 10, "nbf": 0.0 }), true),
        (json!({ "sub": "42", "exp": NOW_S + 10, "nbf": -1 }), false),
        (json!({ "sub": "42", "exp": NOW_S + 10, "nbf": -0.5 }), false),
        (json!({ "sub": "42", "exp": -1.0 }), false),
    ];
    for (claims, is_valid) in table {
        let signed = token(b"right", &claims);
        assert_eq!(user(hs256(), &signed).is_some(), is_valid, "{claims}");
    }
}

#[test]
fn a_key_with_an_id_is_tried_only_on_tokens_that_name_it() {
    let jwt = || hs256().key(Some("2026"), JwtAlgorithm::HS256, JwtKey::from_secret(b"new"));
    let claims = json!({ "sub": "42", "exp": NOW_S + 10 });
    let signed = |secret: &[u8], kid: Option<&str>| {
        token_with(secret, &json!({ "alg": "HS256", "kid": kid }), &claims)
    };
    let table: [(&[u8], Option<&str>, bool); 6] = [
        (b"new", Some("2026"), true),
        (b"new", Some("2025"), false),
        (b"new", None, false),
        // The key without an id is tried on every token.
        (b"right", None, true),
        (b"right", Some("2026"), true),
        (b"wrong", Some("2026"), false),
    ];
    for (secret, kid, is_valid) in table {
        let user = user(jwt(), &signed(secret, kid));
        assert_eq!(user.is_some(), is_valid, "{kid:?} signed by {}", secret.escape_ascii());
    }
}

#[test]
fn tokens_up_to_8192_bytes_and_values_up_to_1024_are_read() {
    let padded = |padding: usize| {
        let claims = json!({ "sub": "42", "exp": NOW_S + 10, "pad": "x".repeat(padding) });
        token(b"right", &claims)
    };
    // Three bytes of padding are four of the token, so some length is not there.
    let tokens: Vec<String> = (6_000..6_100).map(padded).collect();
    for (token_bytes, is_read) in [(8_192, true), (8_193, false)] {
        let bytes = "Bearer ".len() + token_bytes;
        let token = tokens.iter().find(|token| token.len() == bytes).expect("one is so long");
        assert_eq!(user(hs256(), token).is_some(), is_read, "{token_bytes}");
    }
    for (value_bytes, is_read) in [(1_024, true), (1_025, false)] {
        let claims = json!({ "sub": "x".repeat(value_bytes), "exp": NOW_S + 10 });
        let signed = token(b"right", &claims);
        let user = user(hs256(), &signed);
        assert_eq!(user.map(|user| user.len()), is_read.then_some(value_bytes));
    }
}

#[test]
fn a_later_claim_for_an_attribute_replaces_the_earlier_and_leaves_the_others() {
    let claims = json!({ "sub": "42", "exp": NOW_S + 10, "email": "ann", "plan": "pro" });
    let signed = token(b"right", &claims);
    let headers: Lines<'_> = &[("authorization", signed.as_bytes())];
    let jwt = hs256().claim("plan", "tier").claim("email", "user");
    let identity = Identity::new().jwt(jwt);
    assert_eq!(read(&identity, "1.2.3.4", headers, "user").as_deref(), Some("ann"));
    assert_eq!(read(&identity, "1.2.3.4", headers, "tier").as_deref(), Some("pro"));
    let identity = Identity::new().jwt(hs256().claim("email", "user"));
    let bare = token(b"right", &json!({ "sub": "42", "exp": NOW_S + 10 }));
    let headers: Lines<'_> = &[("authorization", bare.as_bytes())];
    assert_eq!(read(&identity, "1.2.3.4", headers, "user"), None);
}

#[test]
fn issuer_audience_and_claims_are_as_configured() {
    let claims = json!({
        "sub": "42", "exp": NOW_S + 10, "iss": "us", "aud": "api", "plan": "premium",
    });
    let signed = token(b"right", &claims);
    assert!(user(hs256().issuer("us").audience("api"), &signed).is_some());
    assert!(user(hs256().issuer("them"), &signed).is_none());
    // It passed as a token of any issuer that the list names.
    let list = json!({ "sub": "42", "exp": NOW_S + 10, "iss": ["us", "them"] });
    let list = token(b"right", &list);
    assert!(user(hs256().issuer("us"), &list).is_none());
    assert!(user(hs256(), &list).is_none());
    assert!(user(hs256().audience("web"), &signed).is_none());
    let bare = token(b"right", &json!({ "sub": "42", "exp": NOW_S + 10 }));
    assert!(user(hs256().issuer("us"), &bare).is_none());
    assert!(user(hs256().audience("api"), &bare).is_none());
    let identity = Identity::new().jwt(hs256().claim("plan", "tier"));
    let headers: Lines<'_> = &[("authorization", signed.as_bytes())];
    assert_eq!(read(&identity, "1.2.3.4", headers, "tier").as_deref(), Some("premium"));
}
/// The key that verifies the token of an algorithm.
fn openssl_key(algorithm: JwtAlgorithm) -> JwtKey {
    match algorithm {
        JwtAlgorithm::HS256 | JwtAlgorithm::HS384 | JwtAlgorithm::HS512 => {
            JwtKey::from_secret(SECRET)
        }
        JwtAlgorithm::ES256 => JwtKey::from_ec_pem(P256.as_bytes()).unwrap(),
        JwtAlgorithm::ES384 => JwtKey::from_ec_pem(P384.as_bytes()).unwrap(),
        JwtAlgorithm::EdDSA => JwtKey::from_ed_pem(ED25519.as_bytes()).unwrap(),
        _ => JwtKey::from_rsa_pem(RSA.as_bytes()).unwrap(),
    }
}

#[test]
fn a_token_of_every_algorithm_is_verified_and_under_no_other() {
    for (signed_by, token) in TOKENS {
        for (algorithm, _) in TOKENS {
            let jwt = Jwt::new(algorithm, openssl_key(algorithm));
            let user = user(jwt, &format!("Bearer {token}"));
            let expected = (algorithm == signed_by).then(|| "42".to_owned());
            assert_eq!(user, expected, "{signed_by:?} under {algorithm:?}");
        }
    }
}

#[test]
fn a_token_with_one_bit_changed_says_nothing() {
    for (algorithm, token) in TOKENS {
        let jwt = Jwt::new(algorithm, openssl_key(algorithm));
        let (message, signature) = token.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let other = |signature: &[u8]| format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature));
        for at in [0, signature.len() / 2, signature.len() - 1] {
            let mut changed = signature.clone();
            changed[at] ^= 1;
            assert_eq!(user(jwt.clone(), &format!("Bearer {}", other(&changed))), None);
        }
        for cut in [&[][..], &signature[1..], &signature[..signature.len() - 1]] {
            assert_eq!(user(jwt.clone(), &format!("Bearer {}", other(cut))), None, "{algorithm:?}");
        }
        let claims = URL_SAFE_NO_PAD.encode(r#"{"sub":"43","exp":1700000010}"#);
        let (header, _) = message.split_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.encode(&signature);
        let forged = format!("Bearer {header}.{claims}.{signature}");
        assert_eq!(user(jwt, &forged), None, "{algorithm:?}");
    }
}

/// The public key of an issuer is known to everybody: a token that is "signed" with it as a secret is forged.
#[test]
fn a_public_key_is_never_a_secret() {
    let claims = json!({ "sub": "42", "exp": NOW_S + 10 });
    let der = openssl_key(JwtAlgorithm::RS256);
    for secret in [RSA.as_bytes(), RSA.trim_end().as_bytes(), der.try_get_as_bytes().unwrap()] {
        let forged = token(secret, &claims);
        for algorithm in [JwtAlgorithm::HS256, JwtAlgorithm::RS256, JwtAlgorithm::PS256] {
            assert_eq!(user(Jwt::new(algorithm, der.clone()), &forged), None, "{algorithm:?}");
        }
    }
    // Nor does a key of another kind verify anything.
    let mixed = Jwt::new(JwtAlgorithm::ES256, openssl_key(JwtAlgorithm::EdDSA));
    assert!(
        TOKENS.iter().all(|(_, token)| user(mixed.clone(), &format!("Bearer {token}")).is_none())
    );
}

#[test]
fn a_key_of_numbers_verifies_and_one_of_1024_bits_does_not() {
    let (_, token) =
        TOKENS.iter().find(|(algorithm, _)| *algorithm == JwtAlgorithm::PS384).unwrap();
    for modulus in [RSA_MODULUS, RSA_MODULUS_WITH_ZERO] {
        let key = JwtKey::from_rsa_components(modulus, RSA_EXPONENT).unwrap();
        let jwt = Jwt::new(JwtAlgorithm::PS384, key);
        assert_eq!(user(jwt, &format!("Bearer {token}")).as_deref(), Some("42"));
    }
    let short = JwtKey::from_rsa_pem(RSA_1024.as_bytes()).unwrap();
    let jwt = Jwt::new(JwtAlgorithm::RS256, short);
    assert_eq!(user(jwt, &format!("Bearer {TOKEN_OF_1024_BITS}")), None);
}

/// Two readers could go by different claims, or one by an extension that the other does not know.
#[test]
fn a_token_that_can_be_read_in_two_ways_says_nothing() {
    let header = r#"{"alg":"HS256"}"#;
    for (header, claims) in [
        (header, r#"{"sub":"42","exp":1700000010,"sub":"43"}"#),
        (header, r#"{"sub":"42","exp":1,"exp":1700000010}"#),
        (header, r#"["sub","42"]"#),
        (header, r#"{"sub":"42","exp":1700000010}x"#),
        (r#"{"alg":"HS256","crit":["b64"],"b64":false}"#, r#"{"sub":"42","exp":1700000010}"#),
        (r#"{"alg":"HS256","alg":"none"}"#, r#"{"sub":"42","exp":1700000010}"#),
    ] {
        assert_eq!(
            user(hs256(), &signed_text(b"right", header, claims)),
            None,
            "{header} {claims}"
        );
    }
    let plain = signed_text(b"right", header, r#"{"sub":"42","exp":1700000010}"#);
    assert!(user(hs256(), &plain).is_some());
    assert!(user(hs256(), &format!("{plain}=")).is_none(), "padding");
}

#[test]
fn an_audience_may_be_one_of_several() {
    let of = |audience: Value| {
        token(b"right", &json!({ "sub": "42", "exp": NOW_S + 10, "aud": audience }))
    };
    let jwt = || hs256().audience("api");
    assert!(user(jwt(), &of(json!(["web", "api"]))).is_some());
    for other in
        [json!(["web"]), json!([]), json!("web"), json!(7), json!({ "api": 1 }), json!(null)]
    {
        assert!(user(jwt(), &of(other.clone())).is_none(), "{other}");
    }
}
