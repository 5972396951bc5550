//! A daemon that is killed while it writes.

use std::sync::Mutex;
use std::thread;

use serde_json::json;
use tollbar_admin::database::{AuditAction, PageRequest, RuleFilter};

use super::{Admin, QUIET, open, run, serve, until};
use crate::common::Scratch;
use crate::common::postgres::shared_database;

/// How often it is killed, and how many write at once.
const KILLS: usize = 5;
const WRITERS: usize = 4;

#[test]
fn a_daemon_killed_amid_writes_leaves_no_half_change_and_a_whole_audit() {
    let scratch = Scratch::new("live-crash");
    killed_amid_writes(&scratch, &scratch.path("rules.sqlite"));
}

#[test]
fn over_postgresql_neither() {
    killed_amid_writes(&Scratch::new("live-crash-postgres"), &shared_database());
}

fn killed_amid_writes(scratch: &Scratch, database: &str) {
    let rule = |at: usize, max_requests: u64| json!({ "name": format!("rule{at}"), "maxRequests": max_requests, "windowSeconds": 60 });
    let mut first = serve(scratch, "n", database, QUIET);
    let admin = Admin::from_greeting(&first);
    let ids: Vec<String> = (0..WRITERS)
        .map(|at| {
            let (status, made) = admin.ask("POST", "/rules", None, &rule(at, 1)).unwrap();
            assert_eq!(status, 201, "{made}");
            made["ruleId"].as_str().unwrap().to_owned()
        })
        .collect();
    // The last version of each that somebody was told of.
    let answered: Vec<Mutex<u64>> = (0..WRITERS).map(|_| Mutex::new(1)).collect();
    for kill in 0..KILLS {
        let mut daemon = if kill == 0 {
            std::mem::replace(
                &mut first,
                serve(scratch, "idle", &scratch.path("idle.sqlite"), QUIET),
            )
        } else {
            serve(scratch, "n", database, QUIET)
        };
        let admin = admin.at(&daemon);
        let before: u64 = answered.iter().map(|version| *version.lock().unwrap()).sum();
        thread::scope(|scope| {
            for (at, id) in ids.iter().enumerate() {
                let (admin, answered) = (&admin, &answered[at]);
                scope.spawn(move || {
                    let path = format!("/rules/{id}");
                    let Some((_, now)) = admin.ask("GET", &path, None, &json!({})) else { return };
                    let mut version = now["version"].as_u64().unwrap_or(0);
                    while let Some((status, told)) =
                        admin.ask("PUT", &path, Some(version), &rule(at, version + 1))
                    {
                        assert_eq!(status, 200, "{told}");
                        version = told["version"].as_u64().unwrap();
                        *answered.lock().unwrap() = version;
                    }
                });
            }
            until("writes", || {
                answered.iter().map(|version| *version.lock().unwrap()).sum::<u64>() > before + 20
            });
            daemon.process.kill().unwrap();
            daemon.process.wait().unwrap();
        });
    }
    run(async {
        let repository = open(database).await;
        let rules =
            repository.rules(&RuleFilter::default(), &PageRequest::first(100)).await.unwrap();
        assert_eq!(rules.rows.len(), WRITERS);
        for row in rules.rows {
            let at = ids.iter().position(|id| *id == row.id.to_string()).unwrap();
            let told = *answered[at].lock().unwrap();
            // What was answered is there; at most one more was written and not answered.
            assert!((told..=told + KILLS as u64).contains(&row.version), "{told} {}", row.version);
            assert_eq!(row.rule.limits[0].policy().limit(), row.version, "a row of two versions");
            let mut history = Vec::new();
            let mut page = PageRequest::first(1_000);
            loop {
                let found = repository.history(row.id, &page).await.unwrap();
                history.extend(found.rows);
                match found.next {
                    Some(next) => page = PageRequest::after(next, 1_000),
                    None => break,
                }
            }
            history.reverse();
            assert_eq!(
                history.len() as u64,
                row.version,
                "a change without its line, or a line too many"
            );
            let mut before = None;
            for (change, version) in history.into_iter().zip(1..) {
                assert_eq!((change.version, &change.before), (Some(version), &before));
                let expected = if version == 1 { AuditAction::Insert } else { AuditAction::Update };
                assert_eq!(change.action, expected);
                before = change.after;
                assert_eq!(json!(before)["maxRequests"], json!(version));
            }
        }
    });
}
