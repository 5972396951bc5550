//! Frames whole, in pieces and malformed.

use proptest::prelude::*;

use super::*;

/// Words, and how many bytes they took.
type ParsedFrame = (Vec<Vec<u8>>, usize);

fn read(input: &[u8]) -> Result<Option<ParsedFrame>, FrameError> {
    let mut arguments = Arguments::new();
    let bytes = parse(input, &mut arguments)?;
    Ok(bytes.map(|bytes| (arguments.iter().map(|argument| argument.to_vec()).collect(), bytes)))
}

fn print(arguments: &[Vec<u8>]) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        frame.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        frame.extend_from_slice(argument);
        frame.extend_from_slice(b"\r\n");
    }
    frame
}

#[test]
fn what_is_malformed_is_refused_by_its_own_words() {
    let many = "*129\r\n";
    let long = format!("*2\r\n$1\r\na\r\n${FRAME_BYTES_MAX}\r\n");
    let line = "x".repeat(LINE_BYTES_MAX);
    let words = "x ".repeat(ARGUMENTS_MAX + 1) + "\r\n";
    for (input, expected) in [
        ("*x\r\n", "invalid multibulk length"),
        ("*\r\n", "invalid multibulk length"),
        ("*-\r\n", "invalid multibulk length"),
        ("* 1\r\n", "invalid multibulk length"),
        ("*+1\r\n", "invalid multibulk length"),
        ("*1\n", "invalid multibulk length"),
        ("*1\rx", "invalid multibulk length"),
        ("*99999999999\r\n", "invalid multibulk length"),
        (many, "invalid multibulk length: send at most 128 arguments"),
        ("*9999999999\r\n", "invalid multibulk length: send at most 128 arguments"),
        ("*1\r\n:1\r\n", "expected '$', got ':'"),
        ("*1\r\n\r\n", "expected '$', got '\\r'"),
        ("*1\r\n*0\r\n", "expected '$', got '*'"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$\r\n", "invalid bulk length"),
        ("*1\r\n$1x\r\n", "invalid bulk length"),
        ("*1\r\n$4294967296\r\n", "invalid bulk length: send at most 65536 bytes a command"),
        ("*1\r\n$9999999999\r\n", "invalid bulk length: send at most 65536 bytes a command"),
        (&long, "invalid bulk length: send at most 65536 bytes a command"),
        ("*1\r\n$1\r\nab\r\n", "expected CR LF where the bulk string ends"),
        (&line, "too big inline request: send at most 4096 bytes a line"),
        (&words, "invalid multibulk length: send at most 128 arguments"),
        ("a \"b\r\n", "unbalanced quotes in request"),
        ("a \"b\"c\r\n", "unbalanced quotes in request"),
        ("a \"\\n\"\r\n", "escapes in a line: send an array of bulk strings instead"),
    ] {
        let error = read(input.as_bytes()).expect_err(input);
        assert_eq!(error.to_string(), format!("Protocol error: {expected}"), "{input:?}");
    }
}

#[test]
fn lines_are_words() {
    for (input, expected) in [
        ("PING\r\n", vec!["PING"]),
        ("PING\n", vec!["PING"]),
        ("  ECHO \t hello  \r\n", vec!["ECHO", "hello"]),
        (
            "ECHO \"two words\" 'and \"more\"' \"\"\r\n",
            vec!["ECHO", "two words", "and \"more\"", ""],
        ),
        ("ECHO a\"b\r\n", vec!["ECHO", "a\"b"]),
        ("\r\n", vec![]),
    ] {
        let (arguments, bytes) = read(input.as_bytes()).unwrap().unwrap();
        let expected: Vec<Vec<u8>> =
            expected.iter().map(|argument| argument.as_bytes().to_vec()).collect();
        assert_eq!(arguments, expected, "{input:?}");
        assert_eq!(bytes, input.len());
    }
}

#[test]
fn an_array_of_nothing_asks_for_nothing() {
    assert_eq!(read(b"*0\r\nPING\r\n"), Ok(Some((vec![], 4))));
    assert_eq!(read(b"*-1\r\n"), Ok(Some((vec![], 5))));
}

#[test]
fn the_largest_frame_is_taken() {
    let head = b"*1\r\n$65522\r\n".len();
    let largest = print(&[vec![b'x'; FRAME_BYTES_MAX - head - 2]]);
    assert_eq!(largest.len(), FRAME_BYTES_MAX);
    assert_eq!(read(&largest).unwrap().unwrap().1, FRAME_BYTES_MAX);
    let larger = print(&[vec![b'x'; FRAME_BYTES_MAX - head - 1]]);
    assert_eq!(read(&larger), Err(FrameError::FrameTooLong));
}

proptest! {
    #[test]
    fn what_is_printed_is_read_whole_and_in_no_part(
        arguments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..12),
        behind in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let mut frame = print(&arguments);
        for end in 0..frame.len() {
            prop_assert_eq!(read(&frame[..end]), Ok(None), "the first {} bytes", end);
        }
        let bytes = frame.len();
        frame.extend(behind);
        prop_assert_eq!(read(&frame), Ok(Some((arguments, bytes))));
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        input in prop::collection::vec(
            prop_oneof![
                any::<u8>(),
                prop::sample::select(b"*$-0123456789\r\n\"' ".to_vec()),
            ],
            0..64,
        ),
    ) {
        if let Ok(Some((arguments, bytes))) = read(&input) {
            prop_assert!(bytes <= input.len() && bytes > 0);
            prop_assert!(arguments.iter().map(Vec::len).sum::<usize>() <= bytes);
        }
    }
}
