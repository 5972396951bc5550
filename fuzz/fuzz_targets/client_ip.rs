//! Whatever clients write into `X-Forwarded-For` and `Forwarded`, none of it moves the address that our proxy has appended.

#![no_main]

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tollbar_http::ClientIp;

static BEHIND: LazyLock<[ClientIp; 2]> = LazyLock::new(|| {
    let blocks = || ["10.0.0.0/8", "fd00::/8"].map(|block| block.parse().expect("a block"));
    [ClientIp::behind_proxies(blocks()), ClientIp::trusted_hops(NonZeroU32::MIN)]
});

/// The lines of a header, and one more entry at the end of the last line or on a line of its own.
fn headers(client_ip: &ClientIp, lines: &[&[u8]], appended: &str, is_own_line: bool) -> HeaderMap {
    let mut lines: Vec<Vec<u8>> = lines.iter().map(|line| line.to_vec()).collect();
    match lines.last_mut() {
        Some(last) if !is_own_line => last.extend_from_slice(format!(", {appended}").as_bytes()),
        _ => lines.push(appended.as_bytes().to_vec()),
    }
    let values = lines.iter().filter_map(|line| HeaderValue::from_bytes(line).ok());
    values.map(|value| (client_ip.header().clone(), value)).collect()
}

fuzz_target!(|input: (Vec<&[u8]>, u8, IpAddr, bool)| {
    let (lines, port, client, is_own_line) = input;
    // A line that is no header would take the appended entry with it.
    let lines: Vec<&[u8]> =
        lines.into_iter().take(8).filter(|line| HeaderValue::from_bytes(line).is_ok()).collect();
    let proxy: IpAddr = "10.0.0.1".parse().expect("an address");
    let node = match client {
        IpAddr::V4(ip) => format!("{ip}:{port}"),
        IpAddr::V6(ip) => format!("[{ip}]:{port}"),
    };
    for by_address in &*BEHIND {
        let by_forwarded = by_address.clone().by_forwarded();
        for (client_ip, appended) in
            [(by_address, node.clone()), (&by_forwarded, format!("For=\"{node}\";proto=http"))]
        {
            let headers = headers(client_ip, &lines, &appended, is_own_line);
            let found = client_ip.of(Some(proxy), &headers);
            assert_eq!(found, found.map(|ip| ip.to_canonical()));
            let is_by_hops = by_address == &BEHIND[1];
            // By addresses, the search goes on to the left of another proxy of ours.
            if is_by_hops || !client_ip.trusts(Some(client)) {
                assert_eq!(found, Some(client.to_canonical()), "{headers:?}");
            }
            // Nobody else is believed.
            let stranger: IpAddr = "203.0.113.7".parse().expect("an address");
            if !is_by_hops {
                assert_eq!(client_ip.of(Some(stranger), &headers), Some(stranger));
            }
        }
    }
});
