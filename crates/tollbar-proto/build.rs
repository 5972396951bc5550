//! Turns the `.proto` into Rust, with cargo alone: protox reads it, and no `protoc` is needed.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

const PROTO: &str = "proto/tollbar/v1/tollbar.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let files = protox::compile([PROTO], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // For reflection.
    std::fs::write(out.join("tollbar.v1.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure()
        // Maps of a few attributes are one allocation as trees, and read in one order by everybody.
        .btree_map(".tollbar.v1")
        .codec_path("crate::codec::Codec")
        .build_client(std::env::var_os("CARGO_FEATURE_CLIENT").is_some())
        .build_server(std::env::var_os("CARGO_FEATURE_SERVER").is_some())
        // A server that lacks a call which is newer than it says so.
        .generate_default_stubs(true)
        // The client says how it connects.
        .build_transport(false)
        .compile_fds(files)?;
    Ok(())
}
