//! Any bytes are a frame, a part of one or a clear error; what is printed is read back.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollbar_daemon::protocol::resp::frame::{ARGUMENTS_MAX, Arguments, FRAME_BYTES_MAX, parse};

fn print(words: &[&[u8]]) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        frame.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        frame.extend_from_slice(word);
        frame.extend_from_slice(b"\r\n");
    }
    frame
}

fuzz_target!(|input: &[u8]| {
    let mut rest = input;
    loop {
        let mut arguments = Arguments::new();
        match parse(rest, &mut arguments) {
            Ok(Some(bytes)) => {
                assert!(bytes > 0 && bytes <= rest.len() && bytes <= FRAME_BYTES_MAX);
                assert!(arguments.len() <= ARGUMENTS_MAX);
                // A line may print longer than it was; one that is too long is refused.
                let frame = print(&arguments);
                let mut again = Arguments::new();
                if frame.len() <= FRAME_BYTES_MAX {
                    assert_eq!(parse(&frame, &mut again), Ok(Some(frame.len())));
                    assert_eq!(again, arguments);
                }
                rest = &rest[bytes..];
            }
            // Whoever waits for more has room for it.
            Ok(None) => return assert!(rest.len() < FRAME_BYTES_MAX),
            Err(error) => return assert!(error.to_string().starts_with("Protocol error: ")),
        }
    }
});
