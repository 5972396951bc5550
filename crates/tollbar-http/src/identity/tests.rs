//! Who one can claim to be, and who not.

#[cfg(feature = "jwt")]
mod jwt;

use http::{HeaderValue, Request};
use proptest::prelude::*;

use super::*;
use crate::testing::START;

/// Headers, names and values.
type Lines<'l> = &'l [(&'l str, &'l [u8])];

fn parts(peer: &str, headers: Lines<'_>) -> Parts {
    let mut request = Request::new(());
    request.extensions_mut().insert(Peer(peer.parse().unwrap()));
    for (name, value) in headers {
        let name = HeaderName::try_from(*name).unwrap();
        request.headers_mut().append(name, HeaderValue::from_bytes(value).unwrap());
    }
    request.into_parts().0
}

fn read(identity: &Identity, peer: &str, headers: Lines<'_>, name: &str) -> Option<String> {
    let attributes = identity.attributes(&parts(peer, headers), START);
    attributes.get(name).map(str::to_owned)
}

fn behind_proxy() -> Identity {
    Identity::new().client_ip(ClientIp::behind_proxies(["10.0.0.0/8".parse().unwrap()]))
}

fn with_users() -> Identity {
    behind_proxy().trusted_header("user", "x-user-id").unwrap()
}

#[test]
fn an_untrusted_peer_is_no_proxy_whatever_its_address() {
    let headers: Lines<'_> = &[("x-user-id", b"42"), ("x-forwarded-for", b"203.0.113.7")];
    let mut parts = parts("10.0.0.1", headers);
    let read = |parts: &http::request::Parts| {
        let attributes = with_users().attributes(parts, START);
        ["user", "ip"].map(|name| attributes.get(name).map(str::to_owned))
    };
    assert_eq!(read(&parts), [Some("42".to_owned()), Some("203.0.113.7".to_owned())]);
    parts.extensions.insert(UntrustedPeer);
    assert_eq!(read(&parts), [None, Some("10.0.0.1".to_owned())]);
}

/// `X-User-Id` was read from every trusted proxy, and nginx passes on what clients send.
#[test]
fn no_header_names_a_user_unless_it_is_asked_for() {
    let headers: Lines<'_> = &[("x-user-id", b"42")];
    assert_eq!(read(&behind_proxy(), "10.0.0.1", headers, "user"), None);
    assert_eq!(read(&with_users(), "10.0.0.1", headers, "user").as_deref(), Some("42"));
}

#[test]
fn a_user_header_counts_only_from_proxies_that_are_trusted() {
    let x_user_id: Lines<'_> = &[("x-user-id", b"42")];
    let table: &[(&str, Lines<'_>, Option<&str>)] = &[
        ("10.0.0.1", x_user_id, Some("42")),
        ("203.0.113.7", x_user_id, None),
        ("127.0.0.1", x_user_id, None),
        ("::1", x_user_id, None),
        ("::ffff:10.0.0.1", x_user_id, Some("42")),
        // The client says it comes from the proxy.
        ("203.0.113.7", &[("x-user-id", b"42"), ("x-forwarded-for", b"10.0.0.1")], None),
        // The proxy has appended its own, or passed two on.
        ("10.0.0.1", &[("x-user-id", b"admin"), ("x-user-id", b"42")], None),
        ("10.0.0.1", &[("X-USER-ID", b"42")], Some("42")),
        ("10.0.0.1", &[("x-user-id", b"")], None),
        ("10.0.0.1", &[("x-user-id", b"\xff\xfe")], None),
        ("10.0.0.1", &[("x-user-id", "\u{e9}".as_bytes())], Some("\u{e9}")),
        ("10.0.0.1", &[("x-user-id", &[b'a'; 1_024])], Some(LONGEST)),
        ("10.0.0.1", &[("x-user-id", &[b'a'; 1_025])], None),
        ("10.0.0.1", &[("x_user_id", b"42")], None),
    ];
    for (peer, headers, user) in table {
        let found = read(&with_users(), peer, headers, "user");
        assert_eq!(found.as_deref(), *user, "{headers:?} from {peer}");
        // Whoever has no user still has an address.
        assert!(read(&with_users(), peer, headers, "ip").is_some());
    }
    let nobody = Identity::new().trusted_header("user", "x-user-id").unwrap();
    assert_eq!(read(&nobody, "10.0.0.1", x_user_id, "user"), None);
}

const LONGEST: &str = match std::str::from_utf8(&[b'a'; 1_024]) {
    Ok(text) => text,
    Err(_) => panic!("it is ASCII"),
};

#[test]
fn an_address_is_the_same_however_it_is_spelt() {
    for (peer, ip) in [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:DB8:0:0::7", "2001:db8::7"),
        ("2001:db8:1111:2222:3333:4444:5555:6666", "2001:db8:1111:2222:3333:4444:5555:6666"),
    ] {
        assert_eq!(read(&Identity::new(), peer, &[], "ip").as_deref(), Some(ip));
    }
    let nobody = Request::new(()).into_parts().0;
    assert_eq!(Identity::new().attributes(&nobody, START).get("ip"), None);
    let by_closure = Identity::new().peer(|_| Some(IpAddr::from([1, 2, 3, 4])));
    assert_eq!(by_closure.attributes(&nobody, START).get("ip"), Some("1.2.3.4"));
}

/// The text of an address is part of its counter's name, so two addresses must never share one.
#[test]
fn every_number_of_an_ipv4_address_is_written_as_the_standard_library_writes_it() {
    for number in 0..=u8::MAX {
        for address in [[number, 10, 100, 0], [0, 99, number, 9], [255, 1, 200, number]] {
            let address = IpAddr::from(address);
            assert_eq!(text_of(address).as_str(), address.to_string());
        }
    }
}

#[test]
fn api_keys_are_hashed_and_those_that_are_none_tell_nothing() {
    let elsewhere = Identity::new().api_keys(ApiKeys::verified_upstream().bearer());
    let key = |headers: Lines<'_>| read(&elsewhere, "1.2.3.4", headers, "api_key");
    let hash = ApiKeys::verified_upstream().hash("s3cret");
    assert!(hash.len() == 32 && !hash.contains("s3cret"));
    assert_eq!(key(&[("x-api-key", b"s3cret")]), Some(hash.clone()));
    assert_eq!(key(&[("authorization", b"Bearer s3cret")]), Some(hash.clone()));
    assert_eq!(key(&[("authorization", b"bEARER  s3cret")]), Some(hash.clone()));
    assert_ne!(key(&[("x-api-key", b"s3cret2")]), Some(hash.clone()));
    assert_eq!(key(&[("authorization", b"Basic s3cret")]), None);
    assert_eq!(key(&[("authorization", b"Bearer")]), None);
    assert_eq!(key(&[("x-api-key", b"s3cret"), ("x-api-key", b"other")]), None);
    assert_eq!(key(&[("x-api-key", &[b'k'; 1_025])]), None);
    assert_eq!(key(&[]), None);

    let known = ApiKeys::known([("internal", "s3cret")]);
    let keyed = known.clone().secret([7; 32]);
    assert_ne!(keyed.hash("s3cret"), hash);
    for keys in [known, keyed] {
        let shown = format!("{keys:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
        let identity = Identity::new().api_keys(keys);
        let key = |key: &[u8]| read(&identity, "1.2.3.4", &[("x-api-key", key)], "api_key");
        assert_eq!(key(b"s3cret").as_deref(), Some("internal"));
        // Neither the name nor the hash is the key.
        assert_eq!((key(b"internal"), key(hash.as_bytes()), key(b"guess")), (None, None, None));
    }

    let good = hash.clone();
    let checked = Identity::new().api_keys(ApiKeys::verify_hash_with(move |hash| hash == good));
    let key = |key: &[u8]| read(&checked, "1.2.3.4", &[("x-api-key", key)], "api_key");
    assert_eq!((key(b"s3cret"), key(b"invented")), (Some(hash), None));
}

#[test]
fn what_earlier_layers_know_comes_first() {
    let mut parts = parts("10.0.0.1", &[("x-user-id", b"header")]);
    let told = Attributes::new()
        .with("user", "session")
        .with("tier", "premium")
        .with("path", "/free")
        .with("", "x")
        .with("long", &"v".repeat(2_000));
    parts.extensions.insert(told);
    let attributes = with_users().attributes(&parts, START);
    assert_eq!(attributes.get("user"), Some("session"));
    assert_eq!(attributes.get("tier"), Some("premium"));
    assert_eq!((attributes.get("path"), attributes.get("long")), (None, None));
}

#[test]
fn headers_become_attributes_by_name() {
    let identity = behind_proxy()
        .trusted_header("tenant", "X-Tenant-Id")
        .unwrap()
        .untrusted_header("version", "x-client-version")
        .unwrap()
        .content_length();
    let headers: Lines<'_> =
        &[("x-tenant-id", b"acme"), ("x-client-version", b"7"), ("content-length", b"123")];
    let read = |peer: &str, name: &str| read(&identity, peer, headers, name);
    assert_eq!(read("10.0.0.1", "tenant").as_deref(), Some("acme"));
    assert_eq!(read("203.0.113.7", "tenant"), None);
    assert_eq!(read("203.0.113.7", "version").as_deref(), Some("7"));
    assert_eq!(read("203.0.113.7", "content_length").as_deref(), Some("123"));
    let odd: &[(&str, &[u8])] = &[("content-length", b"+5")];
    assert_eq!(self::read(&identity, "1.2.3.4", odd, "content_length"), None);

    for (attribute, header) in
        [("path", "x"), ("client", "x"), ("ip", "x"), ("api_key", "x"), ("", "x"), ("a", "a b")]
    {
        let refused = Identity::new().untrusted_header(attribute, header).unwrap_err().to_string();
        assert!(refused.contains("write"), "{refused}");
    }
}

#[test]
fn a_later_header_for_an_attribute_replaces_the_earlier_and_leaves_the_others() {
    let identity = with_users()
        .trusted_header("tenant", "x-tenant-id")
        .unwrap()
        .trusted_header("user", "x-auth-user")
        .unwrap();
    let headers: Lines<'_> =
        &[("x-user-id", b"old"), ("x-auth-user", b"new"), ("x-tenant-id", b"acme")];
    let read = |name: &str| read(&identity, "10.0.0.1", headers, name);
    assert_eq!(read("user").as_deref(), Some("new"));
    assert_eq!(read("tenant").as_deref(), Some("acme"));
    // The header that was replaced is not read where the other is absent, either.
    let only_old: Lines<'_> = &[("x-user-id", b"old")];
    assert_eq!(self::read(&identity, "10.0.0.1", only_old, "user"), None);
}

#[test]
fn the_first_64_attributes_count_and_rules_accept_them() {
    let mut parts = parts("10.0.0.1", &[]);
    let names: Vec<String> = (0..65).map(|number| format!("a{number}")).collect();
    let told = names.iter().fold(Attributes::new(), |told, name| told.with(name, "v"));
    parts.extensions.insert(told);
    let attributes = behind_proxy().attributes(&parts, START);
    let is_there = |name: &String| attributes.get(name).is_some();
    assert!(names[..64].iter().all(is_there));
    assert!(!is_there(&names[64]));
    let pairs: Vec<(&str, &str)> =
        attributes.0.iter().map(|(name, value)| (&**name, &**value)).collect();
    let request = tollbar_rules::Request::new("GET", "/").unwrap();
    assert!(request.with_attributes(&pairs).is_ok());
}

#[test]
fn a_name_has_1_to_128_bytes() {
    let longest = "n".repeat(128);
    let identity = Identity::new().untrusted_header(&longest, "x-long").unwrap();
    let found = read(&identity, "1.2.3.4", &[("x-long", b"v")], &longest);
    assert_eq!(found.as_deref(), Some("v"));
    assert!(Identity::new().untrusted_header(&"n".repeat(129), "x-long").is_err());
}

proptest! {
    #[test]
    fn an_address_is_written_as_the_standard_library_writes_it(address: IpAddr) {
        let address = address.to_canonical();
        let text = text_of(address);
        prop_assert_eq!(text.as_str(), address.to_string());
    }

    /// Header bombs and bytes that are no text: attributes that rules accept, or none.
    #[test]
    fn whatever_a_request_has_rules_accept_its_attributes(
        lines in prop::collection::vec(
            (
                prop::sample::select(vec![
                    "x-user-id", "x-api-key", "authorization", "x-forwarded-for", "x-claimed",
                    "content-length",
                ]),
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..40),
                    Just(b"Bearer a.b.c".to_vec()),
                    Just(vec![b'x'; 5_000]),
                ],
            ),
            0..20,
        ),
        peer in prop::sample::select(vec!["10.0.0.1", "203.0.113.7", "::ffff:10.0.0.1"]),
    ) {
        let identity = behind_proxy()
            .api_keys(ApiKeys::verified_upstream().bearer())
            .untrusted_header("claimed", "x-claimed").unwrap()
            .content_length();
        let mut request = Request::new(());
        request.extensions_mut().insert(Peer(peer.parse().unwrap()));
        for (name, value) in lines {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                request.headers_mut().append(name, value);
            }
        }
        let (parts, ()) = request.into_parts();
        let derived = identity.derive(None, &parts.extensions, &parts.headers, || START);
        let mut pairs = Pairs::new();
        identity.pairs(&parts.extensions, &parts.headers, &derived, &mut pairs);
        prop_assert!(pairs.iter().any(|(name, _)| *name == "ip"));
        let request = tollbar_rules::Request::new("GET", "/").unwrap();
        prop_assert!(request.with_attributes(&pairs).is_ok());
    }
}
