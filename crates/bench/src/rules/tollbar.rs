//! Our rules: a path and a method each, and one rule for all where two are to match.

use tollbar_bench::harness::Checks;
use tollbar_rules::{Engine, Request, RuleFile};

use super::{RuleWorkload, resource_of, write_path};

const TENANTS: [&str; 10] = ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9"];

pub(super) fn build(workload: &RuleWorkload) -> Box<Checks> {
    let RuleWorkload { rule_count, matching, .. } = *workload;
    let routes = rule_count + 1 - matching;
    let mut text = "rules:\n".to_owned();
    if matching > 1 {
        text += "- { name: everything, per: [client], limit: 500/s }\n";
    }
    for n in 0..routes {
        let rule = format!(
            "- {{ name: r{n}, match: {{ method: GET, path: '/v1/r{n}/{{id}}', tenant: t{} }}, \
             per: [client], limit: 500/s }}\n",
            n % 10
        );
        text.push_str(&rule);
    }
    let file = RuleFile::parse("bench.yaml", &text).expect("these rules are sound");
    let engine = Engine::new(file.rules);
    Box::new(move |keys| {
        let mut allowed = 0;
        let mut path = String::new();
        for key in keys {
            let n = resource_of(key, routes);
            write_path(&mut path, n);
            let attributes = [("tenant", TENANTS[n % 10]), ("user", key), ("ip", "203.0.113.7")];
            let request =
                Request::new("GET", &path).and_then(|request| request.with_attributes(&attributes));
            let verdict = engine.check(&request.expect("a request of usual size"));
            // Fewer decisions would mean that a rule did not apply and was not counted.
            allowed += u64::from(verdict.is_allowed() && verdict.decisions().count() == matching);
        }
        allowed
    })
}
