//! Attacks with request ids over HTTP: an id never stands for more than it has paid for.

use serde_json::{Value, json};

use crate::common::http::Answer;
use crate::common::{Daemon, Scratch};

fn post(daemon: &Daemon, path: &str, body: &Value) -> (u16, Value) {
    let answer = Answer::read(&daemon.post(path, &body.to_string())).unwrap();
    (answer.status, serde_json::from_str(&answer.body).unwrap())
}

/// A daemon with one rule, whose file is there for as long as the second value.
fn daemon(name: &str, rule: &str, args: &[&str]) -> (Daemon, Scratch) {
    let scratch = Scratch::new(name);
    let rules = scratch.file("rules.yaml", &format!("rules: [{rule}]"));
    (Daemon::start(&[&["--rules", &rules][..], args].concat()), scratch)
}

/// A cancelled reservation left its id paid for: 90 of 90 reservations of that id passed.
#[test]
fn an_id_that_was_cancelled_pays_again() {
    let (daemon, _scratch) =
        daemon("id-cancel", "{ name: a, algorithm: fixed_window, limit: 3/day }", &[]);
    let reserve = || post(&daemon, "/v1/reserve", &json!({ "requestId": "x", "ttlMs": 600_000 }));
    let receipt = |reserved: &Value| json!({ "receipt": reserved["receipt"] });
    let (mut cancelled, mut left) = (0, 0);
    for _ in 0..45 {
        let (status, reserved) = reserve();
        cancelled += u32::from(status == 200);
        assert_eq!(post(&daemon, "/v1/cancel", &receipt(&reserved)).0, 200);
        left = post(&daemon, "/v1/peek", &json!({})).1["remaining"].as_u64().unwrap();
    }
    assert_eq!((cancelled, left), (45, 3), "each has paid, and got its own back");
    assert!((0..3).all(|_| post(&daemon, "/v1/check", &json!({})).0 == 200));
    let admitted = (0..90).filter(|_| reserve().0 == 200).count();
    assert_eq!(admitted, 0, "a cancelled reservation was let through beyond the limit");
}

/// A released lease left its id paid for: 100 of 100 requests were in flight under a limit of 2.
#[test]
fn an_id_whose_lease_was_released_takes_a_permit_again() {
    let rule = "{ name: jobs, per: [], algorithm: concurrency, limit: 2, lease: 10min }";
    let (daemon, _scratch) = daemon("id-release", rule, &[]);
    let check = |id: &str| post(&daemon, "/v1/check", &json!({ "requestId": id }));
    let lease = |id: &str| json!({ "lease": check(id).1["lease"].as_str().unwrap() });
    assert_eq!(post(&daemon, "/v1/release", &lease("x")).0, 200);
    let (_in_flight, _also) = (lease("y"), lease("z"));
    let admitted = (0..100).filter(|_| check("x").0 == 200).count();
    assert_eq!(admitted, 0, "the id of a released lease was let through beside two others");
}

/// An id was bound to counters and cost alone: one id paid once for 50 paths.
#[test]
fn an_id_is_of_one_request() {
    let rule = "{ name: a, match: { plan: [free, pro] }, per: user, limit: 3/day }";
    let (daemon, _scratch) = daemon("id-paths", rule, &[]);
    let check = |method: &str, path: &str, plan: &str, trace: &str| {
        let attributes = json!({ "user": "7", "plan": plan, "trace": trace });
        let body =
            json!({ "method": method, "path": path, "attributes": attributes, "requestId": "x" });
        let (status, response) = post(&daemon, "/v1/check", &body);
        (status, response["error"].as_str().map(str::to_owned))
    };
    let answers: Vec<_> =
        (0..50).map(|number| check("GET", &format!("/{number}"), "free", "1")).collect();
    let allowed = answers.iter().filter(|(status, _)| *status == 200).count();
    let reused = (409, Some("request_id_reused".to_owned()));
    assert_eq!((allowed, answers.iter().filter(|answer| **answer == reused).count()), (1, 49));
    assert_eq!(check("POST", "/0", "free", "1"), reused, "another method");
    assert_eq!(check("GET", "/0", "pro", "1"), reused, "an attribute that the rule tests");
    // The same request: the path is normal first, and no rule looks at this attribute.
    assert_eq!(check("GET", "/x/../%30", "free", "2").0, 200);
    let attributes = json!({ "user": "7", "plan": "free" });
    let (_, peek) = post(&daemon, "/v1/peek", &json!({ "attributes": attributes }));
    assert_eq!(peek["remaining"], 2, "{peek}");
}

#[test]
fn an_id_that_is_replayed_too_often_pays_again() {
    let rule = "{ name: a, algorithm: fixed_window, limit: 3/day }";
    for (args, replays) in [(&[][..], 8), (&["--request-id-replays", "1"], 1)] {
        let (daemon, _scratch) = daemon("id-replays", rule, args);
        let check = || post(&daemon, "/v1/check", &json!({ "requestId": "x" })).0;
        let left = || post(&daemon, "/v1/peek", &json!({})).1["remaining"].as_u64().unwrap();
        assert!((0..=replays).all(|_| check() == 200));
        assert_eq!(left(), 2);
        assert_eq!((check(), left()), (200, 1), "the replay after those pays");
        let more = (0..100).filter(|_| check() == 200).count();
        assert_eq!(more, 2 * replays + 1, "a limit of 3 is 3 charges, each with its replays");
    }
}
