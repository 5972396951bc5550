//! Heads of both versions, whole, cut short and wrong.

use proptest::prelude::*;

use super::*;

/// What is read, and what is left behind it.
fn read(bytes: &[u8]) -> (Result<Option<SocketAddr>, String>, Vec<u8>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut rest = bytes;
        let read = read_proxy_header(&mut rest).await.map_err(|error| error.to_string());
        (read, rest.to_vec())
    })
}

fn block(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([command, family]);
    bytes.extend((addresses.len() as u16).to_be_bytes());
    bytes.extend(addresses);
    bytes
}

const V4: [u8; 12] = [192, 0, 2, 1, 192, 0, 2, 2, 0x13, 0x88, 1, 187];

#[test]
fn clients_are_read_and_nothing_behind_them_is() {
    let mut v6 = [0; 36];
    (v6[0], v6[1], v6[15], v6[32], v6[33]) = (0x20, 0x01, 7, 0x13, 0x88);
    let mut with_more = V4.to_vec();
    with_more.extend([4, 0, 3, 1, 2, 3]);
    for (bytes, client) in [
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n".to_vec(), Some("192.0.2.1:5000")),
        (b"PROXY TCP6 2001::7 ::1 5000 443\r\n".to_vec(), Some("[2001::7]:5000")),
        (b"PROXY UNKNOWN\r\n".to_vec(), None),
        (b"PROXY UNKNOWN ff:: ff:: 1 2\r\n".to_vec(), None),
        (block(0x21, 0x11, &V4), Some("192.0.2.1:5000")),
        (block(0x21, 0x11, &with_more), Some("192.0.2.1:5000")),
        (block(0x21, 0x21, &v6), Some("[2001::7]:5000")),
        (block(0x20, 0x11, &V4), None),
        (block(0x20, 0, &[]), None),
        (block(0x21, 0x31, &[0; 216]), None),
    ] {
        let followed = [&bytes[..], b"GET / HTTP/1.1\r\n"].concat();
        let client = client.map(|address| address.parse().unwrap());
        assert_eq!(read(&followed), (Ok(client), b"GET / HTTP/1.1\r\n".to_vec()));
    }
}

#[test]
fn what_is_not_quite_a_header_is_refused() {
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\n\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1 192.0.2.2 05000 443\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1 192.0.2.2 +5000 443\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 65536\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1  192.0.2.2 5000 443\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443 \r\n".to_vec(),
        b"PROXY TCP4 192.0.2.256 192.0.2.2 5000 443\r\n".to_vec(),
        b"PROXY TCP4 2001::7 ::1 5000 443\r\n".to_vec(),
        b"PROXY TCP6 192.0.2.1 192.0.2.2 5000 443\r\n".to_vec(),
        b"PROXY UNKNOWNS\r\n".to_vec(),
        b"PROXY UDP4 192.0.2.1 192.0.2.2 5000 443\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1".to_vec(),
        [&b"PROXY UNKNOWN "[..], &[b'a'; 200]].concat(),
        block(0x11, 0x11, &V4),
        block(0x22, 0x11, &V4),
        block(0x21, 0x12, &V4),
        block(0x21, 0x11, &V4[..11]),
        block(0x21, 0x21, &V4),
        block(0x21, 0x11, &[0; 2_049]),
        block(0x21, 0x11, &V4)[..20].to_vec(),
    ] {
        assert!(read(&bytes).0.is_err(), "{}", bytes.escape_ascii());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_within_bounds(
        is_block: bool,
        is_line: bool,
        tail in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let start: &[u8] = if is_block { &SIGNATURE } else if is_line { b"PROXY TCP4 " } else { b"" };
        let bytes = [start, &tail].concat();
        let (_, rest) = read(&bytes);
        prop_assert!(bytes.len() - rest.len() <= SIGNATURE.len() + 4 + BLOCK_BYTES_MAX);
    }
}
