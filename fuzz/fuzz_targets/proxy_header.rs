//! Any bytes begin with a PROXY header or a clear error. A header is read to its end and not beyond, and the address that
//! it tells is the one that both versions tell when it is written down again.

#![no_main]

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use tollbar::store::block_on;
use tollbar_gateway::read_proxy_header;

/// The header of version 1 for a client.
fn line(client: SocketAddr) -> Vec<u8> {
    let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
    let (ip, port) = (client.ip(), client.port());
    format!("PROXY {family} {ip} {ip} {port} 443\r\n").into_bytes()
}

/// The header of version 2 for a client.
fn block(client: SocketAddr) -> Vec<u8> {
    let (family, address) = match client.ip() {
        IpAddr::V4(ip) => (0x11, ip.octets().to_vec()),
        IpAddr::V6(ip) => (0x21, ip.octets().to_vec()),
    };
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    header.push(family);
    header.extend((2 * address.len() as u16 + 4).to_be_bytes());
    header.extend(
        [&address[..], &address, &client.port().to_be_bytes(), &443_u16.to_be_bytes()].concat(),
    );
    header
}

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    let client = match block_on(read_proxy_header(&mut rest)) {
        Ok(client) => client,
        Err(error) => return assert!(error.to_string().len() < 400, "{error}"),
    };
    let header = &bytes[..bytes.len() - rest.len()];
    assert!((15..=16 + 2_048).contains(&header.len()), "{} bytes", header.len());
    // Whatever follows, and however little of it is there.
    for behind in [&b""[..], b"\r\n", b"GET / HTTP/1.1\r\n"] {
        let again = [header, behind].concat();
        let mut rest = &again[..];
        assert_eq!(block_on(read_proxy_header(&mut rest)).expect("it was read"), client);
        assert_eq!(rest, behind);
    }
    for header in client.into_iter().flat_map(|client| [line(client), block(client)]) {
        assert_eq!(block_on(read_proxy_header(&mut &header[..])).expect("it is one"), client);
    }
});
