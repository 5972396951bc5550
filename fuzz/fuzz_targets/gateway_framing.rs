//! In any bytes that the gateway lets pass, hyper sees the requests and bodies that the gateway's second reader sees.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollbar::store::block_on;
use tollbar_gateway::compare_framing;

fuzz_target!(|bytes: &[u8]| {
    if let Err(difference) = block_on(compare_framing(bytes)) {
        panic!("{difference}");
    }
});
