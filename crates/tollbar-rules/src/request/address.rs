//! The attribute `ip`: an address, however its sender writes it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The part of `text` that is the client's address: without the port that Go's `RemoteAddr` and some proxies
/// write behind it, without brackets, and without the zone of a link-local address. `None` where there is
/// no address.
///
/// ```
/// use tollbar_rules::address_part;
/// for text in ["203.0.113.7", "203.0.113.7:1234"] {
///     assert_eq!(address_part(text), Some("203.0.113.7"));
/// }
/// for text in ["fe80::7", "[fe80::7]", "[fe80::7]:1234", "fe80::7%eth0", "[fe80::7%eth0]:1234"] {
///     assert_eq!(address_part(text), Some("fe80::7"));
/// }
/// assert_eq!(address_part("203.0.113.7, 10.0.0.1"), None);
/// ```
#[must_use]
pub fn address_part(text: &str) -> Option<&str> {
    if text.parse::<IpAddr>().is_ok() { Some(text) } else { stripped(text) }
}

#[cold]
fn stripped(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let is_whole = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return v6_without_zone(address).filter(|_| is_whole);
    }
    match text.split_once(':') {
        Some((address, port)) if is_port(port) && address.parse::<Ipv4Addr>().is_ok() => {
            Some(address)
        }
        _ => v6_without_zone(text),
    }
}

fn v6_without_zone(text: &str) -> Option<&str> {
    let (address, zone) = text.split_once('%').unwrap_or((text, "none"));
    (!zone.is_empty() && address.parse::<Ipv6Addr>().is_ok()).then_some(address)
}

fn is_port(text: &str) -> bool {
    text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_with_or_without_a_port_is_none() {
        let texts = [
            "",
            "x",
            "unknown",
            "1.2.3",
            "1.2.3.4:",
            "1.2.3.4:x",
            "1.2.3.4:65536",
            "1.2.3.4:000080",
            "1.2.3.4:+1",
            ":80",
            "1.2.3.4:80:80",
            "[1.2.3.4]:80",
            "[::1",
            "[::1]80",
            "[::1]:",
            "[::1]:x",
            "::1%",
            "[::1%]:1",
            "1.2.3.4%eth0",
            "010.0.0.1",
            "1.2.3.4 ",
            "1.2.3.4/32",
            "localhost:80",
            "1.2.3.4, 5.6.7.8",
        ];
        for text in texts {
            assert_eq!(address_part(text), None, "{text}");
        }
        assert_eq!(address_part("::ffff:1.2.3.4"), Some("::ffff:1.2.3.4"));
        assert_eq!(address_part("[::ffff:1.2.3.4]:1"), Some("::ffff:1.2.3.4"));
    }
}
