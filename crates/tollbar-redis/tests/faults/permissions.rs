//! The permissions that the guide gives: enough for everything the store does, and none too many.

use std::time::Duration;

use crate::support::{Patient, cause};
use tollbar::store::{Hold, Once, ReservationId};
use tollbar::{Batch, Entry, Policy, Store};
use tollbar_redis::{
    FaultKind, FleetSecret, KeyNames, RedisStore, RedisStoreBuilder, RedisStoreError, RefusalReason,
};
use tollbar_testkit::redis::cluster::RedisCluster;
use tollbar_testkit::redis::launch::{Launch, Program};
use tollbar_testkit::redis::process::RedisProcess;

const GUIDE: &str = include_str!("../../../../docs/guides/redis.md");

fn names() -> KeyNames {
    KeyNames::Hashed(FleetSecret::new([7; 32]))
}

/// The words of the line that the guide gives for this place.
fn documented(place: &str) -> Vec<String> {
    let row = GUIDE.lines().find(|line| line.starts_with(&format!("| {place} | `ACL SETUSER ")));
    let row = row.unwrap_or_else(|| panic!("the guide has no line for {place}"));
    let line = row.split('`').nth(1).expect("a line is quoted").replace("\\|", "|");
    line.split(' ').map(str::to_owned).collect()
}

fn run(server: &RedisProcess, words: &[String]) {
    let mut client = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    redis::cmd(&words[0]).arg(&words[1..]).exec(&mut client).expect("the server takes the line");
}

fn as_limiter(url: &str) -> String {
    url.replace("redis://", "redis://limiter:PASSWORD@")
}

fn builder(server: &RedisProcess) -> RedisStoreBuilder {
    RedisStore::builder(&as_limiter(&server.url()), names()).patient().deny_cache(0)
}

/// Everything a store can be asked for.
async fn use_all_of(store: &RedisStore) {
    let policies = [
        Policy::token_bucket("10/h").unwrap(),
        Policy::fixed_window("10/h").unwrap(),
        Policy::sliding_window("10/h").unwrap(),
        Policy::sliding_window_log("10/h").unwrap(),
    ];
    let ttl = Duration::from_mins(1);
    let hold = Hold { id: ReservationId(1), ttl };
    let once = Once::new(b"r1", ttl);
    for policy in &policies {
        let stamp = 0;
        assert!(store.check(b"key", policy, 1).await.unwrap().is_allowed());
        store.refund(b"key", policy, stamp, 1).await.unwrap();
        store.reset(b"key", policy).await.unwrap();
    }
    let mut entries: Vec<Entry<'_>> =
        policies.iter().map(|policy| Entry::new("key", policy)).collect();
    store.decide(Batch::all_or_none(&mut entries).held(hold).once(once)).await.unwrap();
    store.settle(ReservationId(1).into(), &mut []).await.unwrap();
    // In a cluster, in two slots: decided by a coordinator, and looked after by a claim of each store.
    let mut apart = ["key", "other"].map(|key| Entry::new(key, &policies[0]));
    let hold = Hold { id: ReservationId(2), ..hold };
    let once = Once { request_id: b"apart", ..once };
    store.decide(Batch::all_or_none(&mut apart).held(hold).once(once)).await.unwrap();
    store.settle(ReservationId(2).into(), &mut []).await.unwrap();
    store.probe().await.unwrap();
    assert_eq!(store.faults(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_line_of_the_guide_is_enough_for_one_server() {
    for program in Program::ALL {
        let server = RedisProcess::launch(Launch::new(program));
        run(&server, &documented("one server"));
        let store = builder(&server).connect().await.unwrap();
        use_all_of(&store).await;
        // What the log tells an operator is what the guide tells.
        let expected = documented("one server")[5..].join(" ");
        assert_eq!(store.permissions(), expected);
        let shop = store.with_namespace("shop");
        assert_eq!(shop.permissions(), expected.replace("~tollbar1*", "~tollbar1:shop:*"));
    }
}

/// Without any one of them, the probe names what is missing. A line that grants too much would pass here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_permission_of_the_line_is_needed_and_missed_by_name() {
    let words = documented("one server");
    let server = RedisProcess::start();
    for missing in words.iter().skip(5) {
        run(&server, &["ACL", "DELUSER", "limiter"].map(str::to_owned));
        let granted: Vec<String> = words.iter().filter(|word| *word != missing).cloned().collect();
        run(&server, &granted);
        let store = builder(&server).connect_in_background().unwrap();
        store.probe().await.ok();
        // A script that the server has seen is run by its name alone.
        let faults = if missing == "+eval" {
            run(&server, &["SCRIPT", "FLUSH"].map(str::to_owned));
            store.probe().await.ok();
            store.faults()
        } else {
            store.faults()
        };
        let refused = FaultKind::Refused(RefusalReason::NoPermission);
        let [fault] = &faults[..] else { panic!("without {missing}: {faults:?}") };
        assert_eq!(fault.kind, refused, "without {missing}: {fault}");
        let line = format!("ACL SETUSER limiter {}", words[5..].join(" "));
        assert!(fault.advice.contains(&line), "without {missing}: {fault}");
        // The line of the advice is all that it takes.
        run(&server, &line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        while !store.faults().is_empty() {
            store.probe().await.ok();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_line_of_the_guide_is_enough_for_each_node_of_a_cluster() {
    let cluster = RedisCluster::start();
    let words = documented("each node of a cluster");
    let line: Vec<&str> = words.iter().map(String::as_str).collect();
    cluster.ask_all(&line);
    let urls: Vec<String> = cluster.urls().iter().map(|url| as_limiter(url)).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let store = RedisStore::cluster_builder(&urls, names())
        .patient()
        .deny_cache(0)
        .connect()
        .await
        .unwrap();
    use_all_of(&store).await;
    assert_eq!(store.permissions(), words[5..].join(" "));
    // Each command of the scripts is missed by name.
    let refused = FaultKind::Refused(RefusalReason::NoPermission);
    let commands = line[5..].iter().filter_map(|word| word.strip_prefix('+'));
    for command in commands.filter(|name| !["asking", "eval", "cluster|slots"].contains(name)) {
        cluster.ask_all(&["ACL", "SETUSER", "limiter", &format!("-{command}")]);
        store.probe().await.unwrap_err();
        assert_eq!(store.faults()[0].kind, refused, "without {command}");
        cluster.ask_all(&["ACL", "SETUSER", "limiter", &format!("+{command}")]);
        store.probe().await.unwrap();
        assert_eq!(store.faults(), [], "with {command}");
    }
    // Who may not ask for the map is told so.
    cluster.ask_all(&["ACL", "SETUSER", "limiter", "-cluster"]);
    let store = RedisStore::cluster_builder(&urls, names()).connect_in_background().unwrap();
    store.probe().await.ok();
    let faults = store.faults();
    assert_eq!(faults[0].kind, FaultKind::Refused(RefusalReason::NoPermission), "{faults:?}");
    assert!(faults[0].advice.contains("+cluster|slots"), "{faults:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lines_of_the_guide_are_enough_behind_sentinels() {
    let master = RedisProcess::start();
    let sentinel = RedisProcess::start_sentinel(&master, "limits");
    let words = documented("each server behind sentinels");
    run(&master, &words);
    run(&sentinel, &documented("each sentinel"));
    let url = as_limiter(&sentinel.url());
    let builder = RedisStore::sentinel_builder(&[&url], "limits", names()).patient();
    let store = builder.deny_cache(0).connect().await.unwrap();
    use_all_of(&store).await;
    assert_eq!(store.permissions(), words[5..].join(" "));
}

/// Keys of another prefix are none of our business.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_that_the_user_may_not_write_is_refused_with_its_prefix() {
    let server = RedisProcess::start();
    let words: Vec<String> = documented("one server")
        .iter()
        .map(|word| word.replace("~tollbar1*", "~tollbar1:shop:*"))
        .collect();
    run(&server, &words);
    let store = builder(&server).namespace("bar").connect().await.unwrap();
    let error = store.check(b"key", &Policy::fixed_window("1/h").unwrap(), 1).await.unwrap_err();
    assert!(matches!(cause(&error), RedisStoreError::Server { .. }), "{error:?}");
    let fault = &store.faults()[0];
    assert_eq!(fault.kind, FaultKind::Refused(RefusalReason::NoPermission), "{fault}");
    assert!(fault.advice.ends_with("~tollbar1:bar:*"), "{fault}");
}
