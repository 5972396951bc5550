//! A proxy in front of a Redis server that tells the time an hour late: what a server across a network
//! might say, and the caller's clock does not.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

pub(crate) const SHIFT_S: u64 = 3_600;

/// The address of a proxy to the server at `port`. It lasts until the process ends.
pub(crate) fn url_of(port: u16) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let address = listener.local_addr().expect("a bound socket has an address");
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(("127.0.0.1", port)).expect("the server is there");
            let (from, to) =
                (client.try_clone().expect("a clone"), server.try_clone().expect("a clone"));
            thread::spawn(move || hand_on(from, to, |_| {}));
            thread::spawn(move || hand_on(server, client, shift));
        }
    });
    format!("redis://{address}")
}

fn hand_on(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&mut [u8])) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        change(&mut buffer[..read]);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Puts the ten digits of the seconds in an answer to `TIME` forward.
fn shift(bytes: &mut [u8]) {
    const BEFORE: &[u8] = b"*2\r\n$10\r\n";
    let Some(at) = bytes.windows(BEFORE.len()).position(|window| window == BEFORE) else {
        return;
    };
    let digits = &mut bytes[at + BEFORE.len()..][..10];
    let seconds: u64 = std::str::from_utf8(digits).expect("digits").parse().expect("a number");
    digits.copy_from_slice((seconds + SHIFT_S).to_string().as_bytes());
}
