//! Writes `tollbar.binpb` anew, after a change of `tollbar.proto`: `cargo run -p tollbar-proto --example descriptors`.

use std::error::Error;
use std::path::Path;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let files = protox::compile(["tollbar/v1/tollbar.proto"], [&proto])?;
    std::fs::write(proto.join("tollbar/v1/tollbar.binpb"), files.encode_to_vec())?;
    Ok(())
}
