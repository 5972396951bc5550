//! The documents of both HTTP interfaces, held against the daemon by somebody else's program.

use std::process::Command;

use crate::admin_daemon::AdminDaemon;
use crate::common::Daemon;

const FILE: &str = "rules: [{ name: per_client, limit: 100/s }, { name: jobs, match: { path: /jobs }, algorithm: \
                    concurrency, limit: 10, lease: 30s }]";

/// What schemathesis looks for. Not here: whether all that a schema allows is accepted, because no schema
/// says what makes a rule.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,negative_data_rejection,\
                      unsupported_method,allow_header_conformance";

/// Answers that refuse, beside those that schemathesis knows by itself.
const CONFIG: &str = "
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 408, 409, 412, 413, 422, 428, 429, 431, 503]
";

#[test]
fn the_copy_in_the_documents_is_current() {
    let tollbar = env!("CARGO_BIN_EXE_tollbar");
    let printed = Command::new(tollbar).args(["openapi", "--admin"]).output().unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/admin-openapi.json");
    let copy = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        String::from_utf8(printed.stdout).unwrap() == copy,
        "docs/reference/admin-openapi.json is not current: run `cargo xtask openapi`"
    );
}

#[test]
fn the_page_lists_every_path() {
    let admin = AdminDaemon::open("page", FILE);
    let page = admin.send("GET", "/docs", "", b"");
    assert_eq!(page.status, 200);
    let document = admin.get("/openapi.json");
    for path in document["paths"].as_object().unwrap().keys() {
        assert!(page.body.contains(path), "{path}");
    }
}

/// Runs schemathesis over the document at `url`, always the same way.
fn hold(admin: &AdminDaemon, url: &str, more: &[&str]) {
    let python = std::env::var("TOLLBAR_PYTHON").unwrap_or_else(|_| {
        panic!("run cargo xtask test, which sets TOLLBAR_PYTHON: a Python with schemathesis")
    });
    let config = admin.scratch.file("schemathesis.toml", CONFIG);
    let mut command = Command::new(python);
    command.args(["-m", "schemathesis.cli", "--config-file", &config, "run", url]);
    command.args(["--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--seed", "1"]);
    command.args(["--max-examples", "6", "--generation-database", "none", "--no-shrink"]);
    command.args(["--continue-on-failure", "--no-color"]).args(more);
    let output = command.current_dir(&admin.scratch.0).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let mistakes = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}{mistakes}");
}

#[test]
fn schemathesis_finds_no_500_and_no_undeclared_answer_of_the_admin_api() {
    let admin = AdminDaemon::open("schemathesis", FILE);
    let url = format!("http://{}/openapi.json", admin.daemon.address("admin"));
    let token = format!("Authorization: Bearer {}", admin.token);
    hold(&admin, &url, &["--header", &token]);
    assert_eq!(admin.daemon.stop(), 0);
}

#[test]
fn schemathesis_finds_no_500_and_no_undeclared_answer_of_checks() {
    let admin = AdminDaemon::open("schemathesis-checks", FILE);
    let rules = admin.scratch.path("rules.yaml");
    let token_file = admin.scratch.file("token", "0123456789abcdef");
    let daemon = Daemon::start(&["--rules", &rules, "--token-file", &token_file]);
    let url = format!("http://{}/openapi.json", daemon.address("http"));
    let token = ["--header", "Authorization: Bearer 0123456789abcdef"];
    let of_proxies = ["--header", "X-Tollbar-Token: 0123456789abcdef"];
    // Proxies ask with the method of their client, whatever it is; and what stands in a query is a text,
    // also where `null` was meant by it.
    let spared = ["--exclude-checks", "unsupported_method,negative_data_rejection"];
    hold(&admin, &url, &[token, of_proxies, spared].concat());
    assert_eq!(daemon.stop(), 0);
}
