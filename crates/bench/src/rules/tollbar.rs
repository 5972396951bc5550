//! Our rules: a path and a method each, and one rule for all where two are to match.

use tollbar_bench::harness::Checks;
use tollbar_rules::{Engine, Request, RuleFile};

use super::{Workload, resource_of};

pub(super) fn build(workload: &Workload) -> Box<Checks> {
    let Workload { rule_count, matching, .. } = *workload;
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
    let paths: Vec<(String, String)> =
        (0..routes).map(|n| (format!("/v1/r{n}/42"), format!("t{}", n % 10))).collect();
    Box::new(move |keys| {
        let mut allowed = 0;
        for key in keys {
            let (path, tenant) = &paths[resource_of(key, routes)];
            let attributes =
                [("tenant", tenant.as_str()), ("user", key.as_str()), ("ip", "203.0.113.7")];
            let request = Request::new("GET", path).and_then(|it| it.with_attributes(&attributes));
            let verdict = engine.check(&request.expect("a request of usual size"));
            // Fewer decisions would mean that a rule did not apply and was not counted.
            allowed += u64::from(verdict.is_allowed() && verdict.decisions().count() == matching);
        }
        allowed
    })
}
