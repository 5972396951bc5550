//! limitador's library: a condition on method and path each, qualified by the user.

use tollbar_bench::harness::Checks;

use super::RuleWorkload;

#[cfg(feature = "limitador")]
#[expect(clippy::unnecessary_wraps, reason = "there is none where the peer is switched off")]
pub(super) fn build(workload: &RuleWorkload) -> Option<Box<Checks>> {
    use std::collections::HashMap;

    use limitador::RateLimiter;
    use limitador::limit::{Context, Expression, Limit, Namespace, Predicate};

    use super::{SUBJECT_COUNT, resource_of, write_path};

    const DAY_S: u64 = 86_400;
    const LIMIT: u64 = 1 << 50;
    let rule_count = workload.rule_count;
    // Its cache evicts above this size; twice the subjects keeps evictions out of the figures.
    let limiter = RateLimiter::new(2 * SUBJECT_COUNT);
    let namespace = Namespace::from("bench");
    let user = Expression::parse("user").expect("a name is an expression");
    for n in 0..rule_count {
        let conditions = [
            Predicate::parse("method == 'GET'").expect("a comparison is a predicate"),
            Predicate::parse(format!("path == '/v1/r{n}/42'")).expect("so is this"),
        ];
        limiter.add_limit(Limit::new(namespace.clone(), LIMIT, DAY_S, conditions, [user.clone()]));
    }
    Some(Box::new(move |keys| {
        let mut allowed = 0;
        let mut path = String::new();
        for key in keys {
            write_path(&mut path, resource_of(key, rule_count));
            let context = Context::from(HashMap::from([
                ("method".to_owned(), "GET".to_owned()),
                ("path".to_owned(), path.clone()),
                ("user".to_owned(), key.clone()),
            ]));
            let answer = limiter.check_rate_limited_and_update(&namespace, &context, 1);
            allowed += u64::from(
                answer.is_ok_and(|answer| !answer.limited && !answer.counters.is_empty()),
            );
        }
        allowed
    }))
}

#[cfg(not(feature = "limitador"))]
pub(super) fn build(_: &RuleWorkload) -> Option<Box<Checks>> {
    None
}
