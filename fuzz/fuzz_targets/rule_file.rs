//! Any bytes are rules or clear findings, and any rules check any request. No panic, no flood of
//! words.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollbar::{ManualClock, Timestamp};
use tollbar_rules::{Engine, FileError, Request, RuleFile};

fuzz_target!(|bytes: &[u8]| {
    let file = match RuleFile::parse_bytes("f", bytes) {
        Ok(file) => file,
        Err(error) => {
            if let FileError::Findings { findings, .. } = &error {
                assert!((1..=100).contains(&findings.len()));
                for finding in findings {
                    assert!(finding.position.line >= 1 && finding.position.column >= 1);
                    assert!(finding.message.len() < 2_000, "{finding}");
                }
            }
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let engine = Engine::builder(file.rules).clock(clock).build();
    let attributes = [("user", "1"), ("ip", "10.0.0.1"), ("tenant", "acme"), ("tier", "free")];
    for path in ["/", "/v1/users/7", "/health", "/v1%2Flogin"] {
        for attributes in [&attributes[..], &[]] {
            let request = Request::new("GET", path).unwrap().with_attributes(attributes).unwrap();
            let explained = engine.explain(&request);
            let verdict = engine.check(&request);
            assert_eq!(explained.is_allowed, verdict.is_allowed(), "{explained}");
        }
    }
});
