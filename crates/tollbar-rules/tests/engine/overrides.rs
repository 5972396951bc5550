//! Bans and boosts of single subjects.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tollbar::{Clock, ManualClock, Outcome, Timestamp};
use tollbar_rules::{
    Effect, Engine, Override, Reason, Request, RuleFate, RuleFile, RuleSet, Verdict,
};

const START_US: u64 = 1_800_000_000_000_000;

struct OverrideFixture {
    engine: Engine,
    clock: ManualClock,
}

impl OverrideFixture {
    fn new(rules: &str, overrides: Vec<Override>) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(START_US));
        let rules = self::rules(rules).with_overrides(overrides);
        let engine = Engine::builder(rules).clock(clock.clone()).build();
        Self { engine, clock }
    }

    fn ask(&self, attributes: &[(&str, &str)]) -> Verdict {
        self.engine.check(&request(attributes))
    }

    fn passed(&self, attributes: &[(&str, &str)], of: usize) -> usize {
        (0..of).filter(|_| self.ask(attributes).is_allowed()).count()
    }

    fn after(&self, seconds: u64) -> Timestamp {
        self.clock.now().after(Duration::from_secs(seconds))
    }
}

fn rules(text: &str) -> RuleSet {
    RuleFile::parse("rules.yaml", text).unwrap().rules
}

fn request<'a>(attributes: &'a [(&'a str, &'a str)]) -> Request<'a> {
    Request::new("GET", "/x").unwrap().with_attributes(attributes).unwrap()
}

fn ban(subject: &str) -> Override {
    Override::new(subject, Effect::Ban)
}

fn boost(subject: &str, factor_percent: u32) -> Override {
    Override::new(subject, Effect::Boost { factor_percent })
}

fn under(rule: &str, entry: Override) -> Override {
    let mut entry = entry;
    entry.rule = Some(rule.into());
    entry
}

fn until(instant: Timestamp, entry: Override) -> Override {
    let mut entry = entry;
    entry.until = Some(instant);
    entry
}

fn is_banned(verdict: &Verdict) -> bool {
    !verdict.is_allowed() && matches!(verdict.reason(), Reason::Banned { .. })
}

#[test]
fn a_ban_denies_whatever_the_rules_say() {
    let text = "rules: [{ name: a, limit: 9/s, exempt: [{ user: free }] }, \
                { name: open, match: { tenant: t }, unlimited: true, priority: 9 }]";
    let bans = ["user:7", "api:k", "ip:2001:db8::1", "tenant:bad", "user:free"].map(ban).to_vec();
    let fixture = OverrideFixture::new(text, bans);
    let denied: [&[(&str, &str)]; 7] = [
        &[("user", "7")],
        &[("user", "7"), ("api_key", "other"), ("tenant", "t")],
        &[("api_key", "k")],
        // A neighbour in the same network, as elsewhere.
        &[("ip", "2001:db8::2")],
        &[("ip", "2001:db8::1"), ("user", "1")],
        &[("tenant", "bad"), ("user", "1")],
        &[("user", "free")],
    ];
    for attributes in denied {
        let verdict = fixture.ask(attributes);
        assert!(is_banned(&verdict) && verdict.outcome() == Outcome::Busy, "{attributes:?}");
        assert!(verdict.rule().is_none() && verdict.binding().is_none());
        assert!(is_banned(&fixture.engine.rule("a").unwrap().check(&request(attributes))));
    }
    for attributes in [&[("user", "k")][..], &[("api_key", "7")], &[("ip", "2001:db9::1")], &[]] {
        assert!(fixture.ask(attributes).is_allowed(), "{attributes:?}");
    }
    let rule = fixture.engine.rule("a").unwrap();
    let subject = rule.subject("user:7", &[]).unwrap();
    assert!(is_banned(&rule.check(&subject.request().unwrap())));
}

/// Every length of a prefix, each bit beyond it and within it, in both families, under one rule and under all.
#[test]
fn a_banned_network_denies_its_addresses_and_no_others() {
    let text = "rules: [{ name: a, limit: 9/s, burst: 9 }, { name: b, per: [user], limit: 9/s, burst: 9, missing: skip }]";
    // At the top of 128 bits, as the engine has them.
    let address = |bits: u128, is_v4: bool| {
        if is_v4 {
            Ipv4Addr::from_bits((bits >> 96) as u32).to_string()
        } else {
            Ipv6Addr::from_bits(bits).to_string()
        }
    };
    let of_v4 = u128::from(Ipv4Addr::new(203, 0, 113, 37).to_bits()) << 96;
    let of_v6 = Ipv6Addr::new(0x2001, 0xdb8, 0x1234, 0x5678, 9, 9, 9, 9).to_bits();
    // One engine for all of them: each has room for a million keys.
    let [everywhere, in_a] = [(); 2].map(|()| OverrideFixture::new(text, Vec::new()));
    let put =
        |fixture: &OverrideFixture, bans| fixture.engine.replace(rules(text).with_overrides(bans));
    for (base, is_v4, bits_max) in [(of_v4, true, 32), (of_v6, false, 64)] {
        for prefix_bits in 0..=bits_max {
            let network = base & !u128::MAX.checked_shr(prefix_bits).unwrap_or(0);
            let block = format!("ip:{}/{prefix_bits}", address(network, is_v4));
            // Others of the same length and of other lengths stand beside it.
            let beside =
                ["ip:192.0.2.0/24", "ip:198.51.100.0/24", "ip:2001:db8:ffff::/48"].map(ban);
            let bans = [&beside[..], &[ban(&block)]].concat();
            put(&in_a, bans.iter().map(|entry| under("a", entry.clone())).collect());
            put(&everywhere, bans);
            for flipped in 0..bits_max {
                let client = address(base ^ (1 << (127 - flipped)), is_v4);
                let is_inside = flipped >= prefix_bits;
                let attributes = [("ip", &*client)];
                assert_eq!(is_banned(&everywhere.ask(&attributes)), is_inside, "{client} {block}");
                assert_eq!(is_banned(&in_a.ask(&attributes)), is_inside, "{client} {block} in a");
                // Under a rule, a network is of those whom the rule counts by their address.
                let attributes = [("ip", &*client), ("user", "7")];
                assert_eq!(is_banned(&everywhere.ask(&attributes)), is_inside, "{client} {block}");
                assert!(!is_banned(&in_a.ask(&attributes)), "{client} {block} in a, by user");
            }
            let client = address(base, is_v4);
            assert!(is_banned(&everywhere.ask(&[("ip", &client)])), "{client} {block}");
            assert!(is_banned(&in_a.ask(&[("ip", &client)])), "{client} {block} in a");
            let of_other_family = if is_v4 { "2001:db8::1" } else { "10.0.0.1" };
            assert!(!is_banned(&everywhere.ask(&[("ip", of_other_family)])), "{block}");
            assert!(is_banned(&everywhere.ask(&[("ip", "198.51.100.9")])), "beside {block}");
        }
    }
    // A client that is an address and a user is in no network.
    let two = "rules: [{ name: a, per: [ip, user], limit: 9/s }]";
    let two = OverrideFixture::new(two, vec![under("a", ban("ip:203.0.113.0/24"))]);
    assert!(!is_banned(&two.ask(&[("ip", "203.0.113.9"), ("user", "7")])));
    let mapped = OverrideFixture::new(text, vec![ban("ip:203.0.113.0/24")]);
    assert!(is_banned(&mapped.ask(&[("ip", "::ffff:203.0.113.9")])));
    assert!(!is_banned(&mapped.ask(&[("ip", "::ffff:203.0.114.9")])));
}

#[test]
fn a_boosted_network_has_more_room_and_others_have_not() {
    let text = "rules: [{ name: a, limit: 4/day, algorithm: fixed_window }]";
    let boosts = [boost("ip:203.0.113.0/24", 200), boost("ip:2001:db8::/32", 150)];
    for boosts in [boosts.clone(), boosts.map(|entry| under("a", entry))] {
        let fixture = OverrideFixture::new(text, boosts.to_vec());
        for (client, expected) in [
            ("203.0.113.9", 8),
            ("::ffff:203.0.113.10", 8),
            ("203.0.114.9", 4),
            ("2001:db8:7::1", 6),
            ("2001:db9::1", 4),
        ] {
            assert_eq!(fixture.passed(&[("ip", client)], 9), expected, "{client}");
        }
    }
}

/// Limits of Envoy's files and `CL.THROTTLE` ask for them by subject.
#[test]
fn networks_are_banned_and_boosted_where_no_rule_decides() {
    let overrides = vec![ban("ip:203.0.113.0/24"), boost("ip:198.51.100.0/24", 200)];
    let fixture = OverrideFixture::new("rules: []", overrides);
    for (subject, is_banned, factor_percent) in [
        ("ip:203.0.113.9", true, None),
        ("ip:198.51.100.9", false, Some(200)),
        ("ip:192.0.2.9", false, None),
    ] {
        let found = fixture.engine.global_overrides_of_subject(subject).unwrap();
        assert_eq!((found.ban.is_some(), found.factor_percent), (is_banned, factor_percent));
    }
}

#[test]
fn a_ban_ends_and_says_when() {
    let fixture = OverrideFixture::new("rules: [{ name: a, limit: 9/s }]", Vec::new());
    let end = fixture.after(90);
    let bans = vec![until(fixture.after(30), ban("user:7")), until(end, ban("user:7"))];
    fixture.engine.replace(fixture.engine.rules().with_overrides(bans));
    let verdict = fixture.ask(&[("user", "7")]);
    assert_eq!(verdict.retry_after(), Some(Duration::from_secs(90)), "of two the longer");
    fixture.clock.advance(Duration::from_micros(89_999_999));
    let verdict = fixture.ask(&[("user", "7")]);
    assert!(is_banned(&verdict) && verdict.retry_after() == Some(Duration::from_micros(1)));
    fixture.clock.advance(Duration::from_micros(1));
    assert!(fixture.ask(&[("user", "7")]).is_allowed());
}

#[test]
fn a_ban_under_a_rule_denies_whom_that_rule_counts_and_charges_nobody() {
    let text = "rules: [{ name: a, id: x, limit: 2/day }, { name: b, per: [user, path], limit: 2/day }, \
                { name: c, per: [tenant], limit: 2/day, missing: skip, mode: shadow }]";
    let bans = vec![
        under("x", ban("user:7")),
        under("a", ban("user:8")),
        under("b", ban("9 | /x")),
        under("c", ban("t")),
        under("gone", ban("user:1")),
    ];
    let fixture = OverrideFixture::new(text, bans);
    let seven = fixture.ask(&[("user", "7")]);
    assert!(is_banned(&seven) && &*seven.rule().unwrap().name == "a");
    assert!(fixture.ask(&[("user", "8")]).is_allowed(), "an identity is meant, and not a name");
    let nine = fixture.ask(&[("user", "9")]);
    assert!(is_banned(&nine) && &*nine.rule().unwrap().name == "b");
    // A rule that only reports bans nobody.
    assert!(fixture.ask(&[("user", "1"), ("tenant", "t")]).is_allowed());
    fixture.engine.replace(rules(text));
    assert_eq!((fixture.passed(&[("user", "7")], 5), fixture.passed(&[("user", "9")], 5)), (2, 2));
}

#[test]
fn a_boost_multiplies_limits_on_the_same_counter() {
    let text = "rules: [{ name: a, limit: 4/day, algorithm: fixed_window }]";
    let fixture = OverrideFixture::new(text, Vec::new());
    let user = [("user", "7")];
    assert_eq!(fixture.passed(&user, 3), 3);
    let boosts = vec![
        boost("user:7", 150),
        boost("user:7", 260),
        until(fixture.after(60), boost("user:8", 50)),
    ];
    fixture.engine.replace(rules(text).with_overrides(boosts));
    let decision = fixture.ask(&user).binding().unwrap().decision();
    // 260% of 4 is 10.4: down. Four are spent.
    assert_eq!((decision.limit(), decision.remaining().unwrap()), (10, 6));
    assert_eq!(fixture.engine.rule("a").unwrap().usage(&request(&user)).unwrap()[0].limit, 10);
    assert_eq!(fixture.passed(&user, 9), 6);
    assert_eq!(fixture.passed(&[("user", "8")], 9), 2, "a factor below 100 is less");
    fixture.clock.advance(Duration::from_mins(1));
    assert_eq!(fixture.passed(&[("user", "8")], 9), 2, "and then the rest");
    assert_eq!(fixture.passed(&[("user", "1")], 9), 4, "others as ever");
    fixture.engine.replace(rules(text));
    let decision = fixture.ask(&user).binding().unwrap().decision();
    assert_eq!((decision.limit(), decision.remaining().unwrap()), (4, 0));
}

#[test]
fn every_algorithm_and_tier_is_boosted_and_never_to_nothing() {
    let algorithms = [
        "limit: 10/min",
        "limit: 10/min, algorithm: sliding_window_strict",
        "limit: 10/min, algorithm: sliding_window_log",
        "limit: 10/min, algorithm: token_bucket",
        "limit: 10/min, burst: 10",
        "limit: 10/min, algorithm: leaky_bucket",
        "limit: 10/min, algorithm: fixed_window, staggered: true",
        "limit: 10 per calendar day, utc_offset: '+05:30'",
        "limit: 10, algorithm: concurrency, lease: 30s",
        "tiers: { pro: 10/min, default: pro }",
    ];
    for algorithm in algorithms {
        let text = format!("rules: [{{ name: a, {algorithm} }}]");
        for (factor, expected) in [(100, 10), (200, 20), (155, 15), (1, 1)] {
            let fixture = OverrideFixture::new(&text, vec![under("a", boost("user:7", factor))]);
            assert_eq!(fixture.passed(&[("user", "7")], 30), expected, "{algorithm} at {factor}%");
            assert_eq!(fixture.passed(&[("user", "8")], 30), 10, "{algorithm}");
        }
    }
    let fixture = OverrideFixture::new(
        "rules: [{ name: a, limit: 1/s, tiers: { free: unlimited } }]",
        vec![boost("user:7", 200)],
    );
    assert_eq!(fixture.passed(&[("user", "7"), ("tier", "free")], 9), 9);
}

#[test]
fn an_explanation_mentions_both() {
    let mut banned = under("a", ban("user:7"));
    banned.reason = Some("abuse".into());
    let boosted = until(Timestamp::from_micros(START_US + 1_000_000), boost("user:8", 200));
    let all = until(Timestamp::from_micros(START_US + 1_000_000), ban("user:9"));
    let fixture =
        OverrideFixture::new("rules: [{ name: a, limit: 4/day }]", vec![banned, boosted, all]);
    let seven = fixture.engine.explain(&request(&[("user", "7")]));
    assert!(!seven.is_allowed && seven.rules[0].fate == RuleFate::Banned);
    assert_eq!(seven.summary, "denied: `user:7` is banned under `a`: abuse");
    let eight = fixture.engine.explain(&request(&[("user", "8")]));
    assert!(eight.is_allowed && eight.rules[0].limits[0].limit == 8, "{eight}");
    let why = "all its conditions hold; its limits are at 200% for this subject until \
               15 Jan 2027, 08:01 UTC";
    assert_eq!(eight.rules[0].why, why);
    let nine = fixture.engine.explain(&request(&[("user", "9")]));
    assert!(!nine.is_allowed);
    assert_eq!(
        nine.summary,
        "denied: `user:9` is banned under every rule until 15 Jan 2027, 08:01 UTC"
    );
    let why = "it was not asked: `user:9` is banned under every rule";
    assert_eq!((nine.rules[0].fate, &*nine.rules[0].why), (RuleFate::NotMatched, why));
    // Logs and pages show what has denied, also if it is no rule.
    let decided_by = |user: &str| {
        let verdict = fixture.engine.check(&request(&[("user", user)]));
        verdict.decided_by().map(ToOwned::to_owned)
    };
    assert_eq!(decided_by("7").as_deref(), Some("a"));
    assert_eq!(decided_by("9").as_deref(), Some("global ban"));
}
