//! What can be written behind `--store`, and what it is taken for.

use super::*;

fn read(text: &str) -> String {
    match text.parse() {
        Ok(StoreAddress::Server(url)) => url,
        Ok(StoreAddress::Cluster(urls)) => urls.join(" "),
        Ok(StoreAddress::Sentinels { urls, master }) => format!("{} of {master}", urls.join(" ")),
        Ok(StoreAddress::Memory) => "in memory".to_owned(),
        Err(StoreAddressError) => "nothing".to_owned(),
    }
}

#[test]
fn every_form_leads_to_its_servers() {
    for (text, expected) in [
        ("memory", "in memory"),
        ("redis://127.0.0.1", "redis://127.0.0.1"),
        ("rediss://:pw@cache:6380/2", "rediss://:pw@cache:6380/2"),
        ("unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
        ("redis+unix:///run/redis.sock?db=1", "redis+unix:///run/redis.sock?db=1"),
        ("redis+cluster://a:1,b:2", "redis://a:1 redis://b:2"),
        ("rediss+cluster://u:p@a,b", "rediss://u:p@a rediss://u:p@b"),
        ("redis+sentinel://a:1,b:2/mymaster", "redis://a:1 redis://b:2 of mymaster"),
        ("redis+sentinel://:p%40w@a,b/m/3", "redis://:p%40w@a/3 redis://:p%40w@b/3 of m"),
        ("", "nothing"),
        ("disk", "nothing"),
        ("redis://", "nothing"),
        ("postgres://x", "nothing"),
        ("redis+cluster://a,,b", "nothing"),
        ("redis+cluster://a/1", "nothing"),
        ("redis+sentinel://a", "nothing"),
        ("redis+sentinel://a/", "nothing"),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
}

#[test]
fn a_password_is_never_shown() {
    for text in [
        "redis://user:hunter2@host",
        "rediss+cluster://user:hunter2@a,b",
        "redis+sentinel://:hunter2@a,b/m",
    ] {
        let place: StoreAddress = text.parse().unwrap();
        for shown in [format!("{place}"), format!("{place:?}")] {
            assert!(!shown.contains("hunter2") && !shown.contains("user"), "{shown}");
            assert!(shown.contains("..@"), "{shown}");
        }
    }
}

#[test]
fn the_deadline_of_a_check_is_that_of_the_flag() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        store: StoreFlags,
    }
    let args = ["tollbar", "--store=redis://127.0.0.1", "--store-raw-keys", "--store-deadline=7s"];
    let line: Line = clap::Parser::parse_from(args);
    let redis = format!("{:?}", line.store.redis().unwrap().unwrap());
    assert!(redis.contains("timeout: 7s"), "{redis}");
}

#[tokio::test]
async fn loans_are_on_or_off_as_the_flag_says() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        store: StoreFlags,
    }
    let store = ["tollbar", "--store=redis://127.0.0.1:1", "--store-raw-keys"];
    for (flag, is_lending) in
        [("--loans=on", true), ("--loans=off", false), ("--loans=auto", false)]
    {
        let line: Line = clap::Parser::parse_from(store.iter().chain([&flag]));
        let counters = line.store.open().unwrap();
        assert_eq!(counters.loans().unwrap().stats().is_lending, is_lending, "{flag}");
    }
}

#[test]
fn a_namespace_is_a_plain_word() {
    assert!(is_namespace("prod-eu_1"));
    for name in ["", "a:b", "a{b}", "ä", &"x".repeat(33)] {
        assert!(!is_namespace(name), "{name}");
    }
}
