//! How a gRPC client is told: a response of headers only, with a status and when to retry.
//!
//! The details are a `google.rpc.Status` with a `google.rpc.RetryInfo` in it, written by hand: a few
//! fields, which have not changed in ten years, are no reason to depend on a compiler of schemas.

use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};

/// The statuses that are used here, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrpcCode {
    InvalidArgument = 3,
    ResourceExhausted = 8,
    Internal = 13,
}

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
static GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// The longest wait that `google.protobuf.Duration` holds: ten thousand years.
const SECONDS_MAX: u64 = 315_576_000_000;

/// True for `application/grpc`, `application/grpc+proto`, `application/grpc-web` and the like.
pub(crate) fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    content_type.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
        && matches!(content_type.get(GRPC.len()), None | Some(b'+' | b'-' | b';' | b' '))
}

/// Trailers only, as the protocol calls it: HTTP 200, and all there is to know in the headers.
pub(crate) fn trailers_only(
    code: GrpcCode,
    message: &str,
    retry_after: Option<Duration>,
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(&GRPC_STATUS, HeaderValue::from(code as u16));
    if let Ok(message) = HeaderValue::try_from(percent_encoded(message)) {
        headers.insert(&GRPC_MESSAGE, message);
    }
    let details = STANDARD_NO_PAD.encode(status(code, message, retry_after));
    if let Ok(details) = HeaderValue::try_from(details) {
        headers.insert(&GRPC_DETAILS, details);
    }
    response
}

/// `grpc-message` is printable ASCII, everything else and `%` percent-encoded.
fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => {
                // Writing into a string does not fail.
                write!(encoded, "%{byte:02X}").unwrap_or_default();
            }
        }
    }
    encoded
}

/// `google.rpc.Status { int32 code = 1; string message = 2; repeated Any details = 3; }`
fn status(code: GrpcCode, message: &str, retry_after: Option<Duration>) -> Vec<u8> {
    let mut status = Vec::with_capacity(128);
    write_number(1, code as u64, &mut status);
    write_bytes(2, message.as_bytes(), &mut status);
    if let Some(wait) = retry_after {
        // Duration { int64 seconds = 1; int32 nanos = 2; }
        let mut duration = Vec::new();
        write_number(1, wait.as_secs().min(SECONDS_MAX), &mut duration);
        write_number(2, u64::from(wait.subsec_nanos()), &mut duration);
        // RetryInfo { Duration retry_delay = 1; }
        let mut retry_info = Vec::new();
        write_bytes(1, &duration, &mut retry_info);
        // Any { string type_url = 1; bytes value = 2; }
        let mut any = Vec::new();
        write_bytes(1, RETRY_INFO.as_bytes(), &mut any);
        write_bytes(2, &retry_info, &mut any);
        write_bytes(3, &any, &mut status);
    }
    status
}

/// A field of type varint. Zero is the default, which is not written.
fn write_number(field: u64, value: u64, message: &mut Vec<u8>) {
    if value > 0 {
        write_varint(field << 3, message);
        write_varint(value, message);
    }
}

/// A field that is a string, bytes or a message.
fn write_bytes(field: u64, value: &[u8], message: &mut Vec<u8>) {
    const LENGTH_DELIMITED: u64 = 2;
    write_varint(field << 3 | LENGTH_DELIMITED, message);
    write_varint(value.len() as u64, message);
    message.extend_from_slice(value);
}

/// Seven bits a byte, the lowest first; the top bit says that more come.
fn write_varint(mut value: u64, message: &mut Vec<u8>) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_known_by_its_content_type() {
        let table = [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/GRPC; x=y", true),
            ("application/grpc-web+proto", true),
            ("application/grpcx", false),
            ("application/json", false),
            ("", false),
        ];
        for (content_type, expected) in table {
            assert_eq!(is_grpc(content_type.as_bytes()), expected, "{content_type}");
        }
    }

    /// Code 8, message "no", a delay of 300 s and 5 ns: by hand, from the guide to the encoding.
    #[test]
    fn the_details_are_a_status_with_a_retry_info() {
        let duration = [0x08, 0xac, 0x02, 0x10, 5];
        let mut expected = vec![0x08, 8, 0x12, 2, b'n', b'o', 0x1a, 51, 0x0a, 40];
        expected.extend_from_slice(RETRY_INFO.as_bytes());
        expected.extend_from_slice(&[0x12, 7, 0x0a, 5]);
        expected.extend_from_slice(&duration);
        assert_eq!(
            status(GrpcCode::ResourceExhausted, "no", Some(Duration::new(300, 5))),
            expected
        );
    }

    #[test]
    fn a_message_has_only_what_a_header_may_have() {
        assert_eq!(percent_encoded("too many: 100%\n\u{e9}"), "too many: 100%25%0A%C3%A9");
    }

    #[test]
    fn a_response_is_headers_only() {
        let response = trailers_only(GrpcCode::ResourceExhausted, "Too many requests", None);
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "8");
        assert_eq!(response.headers()["grpc-message"], "Too many requests");
        assert_eq!(response.headers()["content-type"], "application/grpc");
        assert!(response.body().is_empty());
    }
}
