//! Any text is a receipt or a clear error, also one that is signed with our key. What a receipt says is written down as it
//! was read, and settling it takes nothing from other counters.

#![no_main]

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use libfuzzer_sys::fuzz_target;
use tollbar::receipt::Receipt;
use tollbar::{ManualClock, ReceiptKey, Timestamp};
use tollbar_rules::{Engine, RuleFile};

const SECRET: [u8; 32] = [7; 32];

static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let rules = RuleFile::parse("rules.yaml", "rules: [{ name: all, per: [], limit: 1000/day }]");
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    Engine::builder(rules.expect("in order").rules).clock(clock).receipt_secret(SECRET).build()
});

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        match ENGINE.resume(text) {
            Ok(_) => panic!("nobody but us can sign"),
            Err(error) => assert!(error.to_string().len() < 400, "{error}"),
        }
    }
    let mac = blake3::keyed_hash(&SECRET, bytes);
    let text = URL_SAFE_NO_PAD.encode([bytes, &mac.as_bytes()[..16]].concat());
    let key = ReceiptKey::new(SECRET);
    let Ok(content) = text.parse::<Receipt>().and_then(|receipt| receipt.content(&key)) else {
        return;
    };
    let Ok(again) = content.sign(&key) else {
        return;
    };
    let read = again.content(&key).expect("we wrote it");
    assert_eq!(format!("{read:?}"), format!("{content:?}"));
    if let Ok(hold) = ENGINE.resume(&text) {
        for _ in 0..2 {
            if let Err(error) = ENGINE.settle(&hold, Some(1)) {
                assert!(error.to_string().len() < 400, "{error}");
            }
        }
    }
});
