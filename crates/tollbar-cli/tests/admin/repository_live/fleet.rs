//! Two daemons over one PostgreSQL, under load.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::{Admin, QUIET, limit, open, run, serve, until};
use crate::common::Scratch;
use crate::common::postgres::shared_database;

/// How many changes are made.
const CHANGES: u64 = 10;

#[test]
fn a_change_on_one_node_is_enforced_on_the_other_within_a_second_under_load() {
    let scratch = Scratch::new("live-fleet");
    let database = shared_database();
    let one = serve(&scratch, "one", &database, QUIET);
    let other = serve(&scratch, "other", &database, QUIET);
    let admin = Admin::from_greeting(&one);
    assert!(!other.greeting.iter().any(|line| line.contains("admin token")), "one token for both");

    // A rule that counts while others, and its own name, change.
    let counted = |name: &str| {
        json!({ "name": name, "match": { "user": "load" },
        "maxRequests": 400, "windowSeconds": 86_400, "algorithm": "fixed_window" })
    };
    let (status, made) = admin.ask("POST", "/rules", None, &counted("counted")).unwrap();
    assert_eq!(status, 201, "{made}");
    let counted_path = format!("/rules/{}", made["ruleId"].as_str().unwrap());
    let moving = |max_requests: u64| {
        json!({ "name": "moving", "match": { "user": "probe" },
        "maxRequests": max_requests, "windowSeconds": 86_400 })
    };
    let (status, made) = admin.ask("POST", "/rules", None, &moving(1_000)).unwrap();
    assert_eq!(status, 201, "{made}");
    let moving_path = format!("/rules/{}", made["ruleId"].as_str().unwrap());
    until("both rules on the other node", || {
        limit(&other, "probe") == Some(1_000) && limit(&other, "load") == Some(400)
    });

    let (is_over, asked, allowed) =
        (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let took = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let is_allowed = other.check("load") == 200;
                    asked.fetch_add(1, Ordering::Relaxed);
                    allowed.fetch_add(usize::from(is_allowed), Ordering::Relaxed);
                }
            });
        }
        let mut took = Vec::new();
        for change in 1..=CHANGES {
            let (status, told) =
                admin.ask("PUT", &moving_path, Some(change), &moving(1_000 + change)).unwrap();
            assert_eq!(status, 200, "{told}");
            // Who was answered is under the new rule already.
            assert_eq!(limit(&one, "probe"), Some(1_000 + change));
            took.push(until("the change on the other node", || {
                limit(&other, "probe") == Some(1_000 + change)
            }));
            let name = format!("counted{change}");
            let told = admin.ask("PUT", &counted_path, Some(change), &counted(&name)).unwrap();
            assert_eq!(told.0, 200, "{}", told.1);
        }
        until("enough load", || asked.load(Ordering::Relaxed) > 800);
        is_over.store(true, Ordering::Relaxed);
        took
    });
    println!("enforced after {took:?}, {asked:?} requests meanwhile");
    assert_eq!(allowed.into_inner(), 400, "of {asked:?}: a change cost or gave something");
    assert!(took.iter().all(|time| *time < Duration::from_secs(1)), "{took:?}");

    // Both say what they enforce, and it is the same.
    run(async {
        let repository = open(&database).await;
        let revision = repository.revisions().await.unwrap().rules;
        until("both nodes at the revision", || {
            let (_, nodes) = admin.at(&other).ask("GET", "/nodes", None, &json!({})).unwrap();
            let items = nodes["items"].as_array().cloned().unwrap_or_default();
            let at = |node: &&serde_json::Value| node["revision"] == json!(revision);
            items.len() == 2 && items.iter().filter(at).count() == 2
        });
    });
}
