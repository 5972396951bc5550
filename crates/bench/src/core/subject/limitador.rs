//! limitador in memory: one limit, qualified by a variable that the key is bound to.

use std::collections::HashMap;

use limitador::RateLimiter;
use limitador::limit::{Context, Expression, Limit, Namespace};

use super::{FamilyTable, count};
use crate::core::workloads::Table;

pub(crate) fn build(table: &Table) -> FamilyTable {
    const DAY_S: u64 = 86_400;
    const LIMIT: u64 = 1 << 50;
    // Its cache evicts above this size; twice the keys keeps evictions out of the figures.
    let limiter = RateLimiter::new((2 * table.key_count).max(1_000));
    let namespace = Namespace::from("bench");
    let user = Expression::parse("user").expect("a name is an expression");
    limiter.add_limit(Limit::new(namespace.clone(), LIMIT, DAY_S, [], [user]));
    FamilyTable::keyed("limitador", move |keys| {
        count(keys, |key| {
            let context = Context::from(HashMap::from([("user".to_owned(), key.clone())]));
            limiter
                .check_rate_limited_and_update(&namespace, &context, 1)
                // No counter would mean that the limit did not apply and nothing was counted.
                .is_ok_and(|result| !result.limited && !result.counters.is_empty())
        })
    })
}
