//! A client that shares no code with us: Python's grpcio asks the real daemon.

use std::path::Path;
use std::process::Command;

use crate::common::{Daemon, Scratch};

#[test]
fn python_asks_by_stubs_and_by_reflection_alone() {
    let python = std::env::var("TOLLBAR_PYTHON").unwrap_or_else(|_| {
        panic!(
            "run cargo xtask test, which sets TOLLBAR_PYTHON: a Python with grpcio, grpcio-tools, \
             grpcio-reflection and grpcio-health-checking"
        )
    });
    let scratch = Scratch::new("grpc-python");
    let token = "0123456789abcdef";
    let token_file = scratch.file("token", token);
    let rules = scratch.file("rules.yaml", "rules: [{ name: five, limit: 5/day, burst: 5 }]");
    let daemon = Daemon::start(&["--rules", &rules, "--token-file", &token_file]);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(python)
        .arg(here.join("tests/python/grpc_stub.py"))
        .arg(daemon.address("grpc"))
        .arg(here.join("../tollbar-proto/proto"))
        .arg(token)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "all is well");
    assert_eq!(daemon.stop(), 0);
}
