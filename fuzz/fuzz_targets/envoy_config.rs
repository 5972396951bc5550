//! Any text is limits of Envoy's reference service or clear findings. No panic.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| tollbar_daemon::protocol::envoy::fuzz::read_file(text));
