//! A set of servers with sentinels: when the master dies, its replica is found.

use std::time::Duration;

use crate::support::{Patient, RUNTIME};
use tokio::time::{Instant, sleep};
use tollbar::{Policy, Store};
use tollbar_redis::{FleetSecret, KeyNames, RedisStore, RedisStoreError};
use tollbar_testkit::redis::launch::{Launch, Program};
use tollbar_testkit::redis::process::RedisProcess;

const DEADLINE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(30);

fn info(server: &RedisProcess, port: u16) -> String {
    let url = server.url().replace(&server.port().to_string(), &port.to_string());
    let client = redis::Client::open(url).unwrap().get_connection();
    client.and_then(|mut client| redis::cmd("INFO").query(&mut client)).unwrap_or_default()
}

#[test]
fn the_replica_of_a_dead_master_takes_over_with_its_counters() {
    takes_over(Program::Redis);
}

#[test]
fn so_it_does_where_all_of_them_are_valkeys() {
    takes_over(Program::Valkey);
}

fn takes_over(program: Program) {
    let mut master = RedisProcess::launch(Launch::new(program));
    let port = master.port().to_string();
    let replica =
        RedisProcess::launch(Launch::new(program).with(&["--replicaof", "127.0.0.1", &port]));
    let sentinel = RedisProcess::start_sentinel(&master, "limits");
    let url = sentinel.url();
    RUNTIME.block_on(async {
        let until = async |what: &str, is_so: &dyn Fn() -> bool| {
            let started = Instant::now();
            while !is_so() {
                assert!(started.elapsed() < PATIENCE, "never: {what}");
                sleep(Duration::from_millis(20)).await;
            }
        };
        let follows = || info(&replica, replica.port()).contains("master_link_status:up");
        until("the replica follows", &follows).await;
        until("the sentinel knows it", &|| info(&sentinel, sentinel.port()).contains("slaves=1"))
            .await;

        // One that is gone holds nobody up.
        let urls = ["redis://127.0.0.1:1", &url];
        let builder = RedisStore::sentinel_builder(
            &urls,
            "limits",
            KeyNames::Hashed(FleetSecret::new([7; 32])),
        );
        let builder = builder.timeout(DEADLINE).deny_cache(0).connect_timeout(PATIENCE);
        let store = builder.connect().await.expect("the master is there");
        let policy = Policy::fixed_window("1000000/day").unwrap();
        for _ in 0..20 {
            store.check(b"key", &policy, 1).await.unwrap();
        }
        let copied = || info(&replica, replica.port()).contains("db0:keys=1");
        until("the replica has the counter", &copied).await;

        master.kill();
        let started = Instant::now();
        let mut failed = 0;
        let decision = loop {
            let asked = Instant::now();
            let answer = store.check(b"key", &policy, 1).await;
            assert!(
                asked.elapsed() < DEADLINE + Duration::from_millis(250),
                "{:?}",
                asked.elapsed()
            );
            match answer {
                Ok(decision) => break decision,
                Err(_) => failed += 1,
            }
            assert!(started.elapsed() < PATIENCE, "never came back: {store:?}");
            sleep(Duration::from_millis(10)).await;
        };
        assert!(failed > 0);
        let charged = 1_000_000 - decision.remaining().unwrap();
        assert!((2..=21).contains(&charged), "{charged}");
    });
}

#[test]
fn a_master_that_no_sentinel_knows_is_an_error() {
    let master = RedisProcess::start();
    let sentinel = RedisProcess::start_sentinel(&master, "limits");
    let url = sentinel.url();
    let builder = RedisStore::sentinel_builder(&[&url], "others", KeyNames::Raw);
    let error = RUNTIME.block_on(builder.connect()).unwrap_err();
    assert!(matches!(error, RedisStoreError::UnknownMaster { .. }), "{error:?}");
    assert!(error.to_string().contains("`others`"), "{error}");
}

/// What the guide says that a user needs behind sentinels, and what of them.
#[test]
fn a_user_with_few_rights_does() {
    let master = RedisProcess::start();
    let sentinel = RedisProcess::start_sentinel(&master, "limits");
    let rights = "+evalsha +eval +get +set +del +time +info +hello ~tollbar1* +role";
    for (server, rights) in
        [(&master, rights), (&sentinel, "+hello +sentinel|get-master-addr-by-name")]
    {
        let mut client = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let mut command = redis::cmd("ACL");
        command.arg(&["SETUSER", "limiter", "on", ">secret"]);
        command.arg(rights.split(' ').collect::<Vec<_>>());
        command.exec(&mut client).unwrap();
    }
    // A database is the master's alone: sentinels have none.
    let url = sentinel.url().replace("redis://", "redis://limiter:secret@");
    let policy = Policy::fixed_window("10/day").unwrap();
    let builder = RedisStore::sentinel_builder(&[&url], "limits", KeyNames::Raw);
    let store = RUNTIME.block_on(builder.patient().connect()).unwrap();
    assert_eq!(store.check(b"key", &policy, 1).wait().unwrap().remaining().unwrap(), 9);
    let url = sentinel.url() + "/3";
    let builder = RedisStore::sentinel_builder(&[&url], "limits", KeyNames::Raw);
    let store = RUNTIME.block_on(builder.patient().connect()).unwrap();
    assert_eq!(store.check(b"key", &policy, 1).wait().unwrap().remaining().unwrap(), 9);
}
