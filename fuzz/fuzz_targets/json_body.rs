//! Any bytes as the body of every path: no panic, JSON comes back, and what is refused or denied has
//! charged nothing.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tollbar_daemon::fuzzing::HttpFuzzer;

static HTTP: LazyLock<HttpFuzzer> = LazyLock::new(HttpFuzzer::new);

fuzz_target!(|bytes: &[u8]| {
    for path in HttpFuzzer::paths() {
        let before = HTTP.left();
        let (status, answer) = HTTP.post(path, bytes);
        assert!(matches!(status, 200 | 400 | 404 | 409 | 422 | 429), "{path} gave {status}");
        assert!(answer.starts_with(b"{") && answer.ends_with(b"}\n"), "{path}");
        if status != 200 {
            assert_eq!(HTTP.left(), before, "{path} gave {status} and charged");
        }
    }
});
