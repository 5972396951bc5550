//! Turns descriptors into Rust, with cargo alone: no `protoc` is needed, and nothing that reads `.proto` files either.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;
use prost_types::FileDescriptorSet;

/// The encoded `FileDescriptorSet` of `tollbar.proto`, which the example `descriptors` writes and a test compares.
const TOLLBAR: &str = "proto/tollbar/v1/tollbar.binpb";

/// The encoded `FileDescriptorSet` of Envoy's rate limit and authorization services and of all that they import, 29
/// files, as Envoy's `data-plane-api` has them.
const ENVOY: &str = "proto/envoy/services.binpb";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={TOLLBAR}");
    println!("cargo::rerun-if-changed={ENVOY}");
    if std::env::var_os("CARGO_FEATURE_ENVOY").is_some() {
        generate_envoy()?;
    }
    generate_tollbar()
}

/// Envoy's messages, and both sides of its services: the daemon answers, tests and benchmarks ask.
fn generate_envoy() -> Result<(), Box<dyn Error>> {
    let mut files = FileDescriptorSet::decode(&*std::fs::read(ENVOY)?)?;
    // Validation annotations are not needed, and prost-types already has Google's messages.
    let packages = ["envoy.", "google.protobuf", "google.rpc", "xds.core."];
    files.file.retain(|file| packages.iter().any(|package| file.package().starts_with(package)));
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("envoy");
    std::fs::create_dir_all(&out)?;
    tonic_prost_build::configure()
        .out_dir(out)
        .include_file("mod.rs")
        .build_transport(false)
        .compile_fds(files)?;
    Ok(())
}

fn generate_tollbar() -> Result<(), Box<dyn Error>> {
    let files = FileDescriptorSet::decode(&*std::fs::read(TOLLBAR)?)?;
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
