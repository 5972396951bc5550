//! Limits as rules: a hierarchy of four levels, a rule tried out in the shadow, and why a request
//! was limited.
//!
//! `cargo run --example rules`

use tollbar::{ManualClock, Timestamp};
use tollbar_rules::{Engine, Request, RuleFile};

const RULES: &str = r"
rules:
  - { name: global, per: [], limit: 1000/s }
  - { name: organisation, match: { org: { present: true } }, per: [org], limit: 4/min }
  - { name: user, per: [client], limit: 3/min, candidate: { limit: 2/min } }
  - { name: reports, match: { method: POST, path: /v1/reports }, cost: 2, limit: 2/min }
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rules = RuleFile::parse("rules.yaml", RULES)?.rules;
    // A clock that stands still, so that this prints the same every time.
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let engine = Engine::builder(rules).clock(clock).build();

    let requests = [
        ("GET", "/v1/users", "ann"),
        ("GET", "/v1/users", "ann"),
        ("POST", "/v1//reports/", "ann"),
        ("POST", "/v1/reports", "ann"),
        ("GET", "/v1/users", "bob"),
        ("GET", "/v1/users", "bob"),
    ];
    for (method, path, user) in requests {
        let attributes = [("user", user), ("org", "acme")];
        let request = Request::new(method, path)?.with_attributes(&attributes)?;
        let verdict = engine.check(&request);
        let rule = verdict.rule().map_or("no rule", |rule| &rule.name);
        let what = if verdict.is_allowed() { "allowed" } else { "denied" };
        println!("{method} {path} by {user}: {what}, {rule} binds");
        for shadow in verdict.would_deny() {
            println!("    `{}` would deny it at {}", shadow.rule().name, shadow.limit().text());
        }
    }

    let attributes = [("user", "ann"), ("org", "acme")];
    let request = Request::new("POST", "/v1/reports")?.with_attributes(&attributes)?;
    println!("\n{}", engine.explain(&request));
    for limited in engine.rule("organisation")?.top_denied(10) {
        println!("limited by organisation: {} ({} times)", limited.subject, limited.count);
    }
    Ok(())
}
