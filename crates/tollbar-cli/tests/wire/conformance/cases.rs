//! What is asked, and what must be answered: the same over every wire.

use super::step::{Case, Expect, NOBODY, case, get, send};

pub(crate) const CASES: &[Case] = &[
    case(
        "a limit is used up, and then it denies",
        &[
            get("/plain/a").passes("plain", (2, 3)),
            get("/plain/a").passes("plain", (1, 3)),
            get("/plain/b").passes("plain", (0, 3)),
            get("/plain/a").denied("plain", (0, 3)),
            get("/plain/a").denied("plain", (0, 3)),
        ],
    ),
    case(
        "another client has a counter of its own",
        &[get("/plain/a").with(&[("user", "8")]).passes("plain", (2, 3))],
    ),
    case(
        "an API key goes before a user, and a user before an address",
        &[
            get("/plain/k").with(&[("api_key", "k"), ("user", "9")]).passes("plain", (2, 3)),
            get("/plain/k").with(&[("user", "9"), ("ip", "192.0.2.1")]).passes("plain", (2, 3)),
            get("/plain/k").with(&[("ip", "192.0.2.1")]).passes("plain", (2, 3)),
            get("/plain/k").with(&[("api_key", "k"), ("ip", "192.0.2.1")]).passes("plain", (1, 3)),
        ],
    ),
    case(
        "a user is not the key of the same name",
        &[get("/plain/k").with(&[("user", "k")]).passes("plain", (2, 3))],
    ),
    case(
        "methods are counted by their own rules",
        &[
            get("/methods/x").passes("gets", (1, 2)),
            send("POST", "/methods/x").passes("writes", (0, 1)),
            send("PUT", "/methods/x").denied("writes", (0, 1)),
            get("/methods/x").passes("gets", (0, 2)),
        ],
    ),
    case(
        "a method in small letters is the same method",
        &[
            send("get", "/methods/x").denied("gets", (0, 2)),
            send("post", "/methods/x").denied("writes", (0, 1)),
        ],
    ),
    case(
        "beyond its own quota a client is paid for by the pool",
        &[
            // Three are left of the pool: a request pays one alternative, and the largest speaks.
            get("/pooled/a").passes("pooled", (3, 3)),
            get("/pooled/a").passes("pooled", (3, 3)),
            get("/pooled/a").passes("pooled", (2, 3)),
            get("/pooled/a").with(&[("user", "8")]).passes("pooled", (2, 3)),
        ],
    ),
    case(
        "a client is denied if neither its quota nor the pool has any left",
        &[
            get("/pooled/a").passes("pooled", (1, 3)),
            get("/pooled/a").passes("pooled", (0, 3)),
            get("/pooled/a").denied("pooled", (0, 3)),
            get("/pooled/a").with(&[("user", "8")]).passes("pooled", (0, 2)),
            get("/pooled/a").with(&[("user", "8")]).denied("pooled", (0, 3)),
        ],
    ),
    case("a method that no rule names is not limited", &[send("DELETE", "/methods/x").free()]),
    case(
        "a path is matched whole",
        &[
            get("/paths/exact").passes("exact", (8, 9)),
            get("/paths/exactly").free(),
            get("/paths").free(),
            get("/paths/exact/more").free(),
        ],
    ),
    case("case matters in a path", &[get("/Paths/exact").free()]),
    case("a query is no part of a path", &[get("/paths/exact?page=2").passes("exact", (7, 9))]),
    case(
        "doubled slashes and one at the end change nothing",
        &[
            get("/paths//exact").passes("exact", (6, 9)),
            get("/paths/exact/").passes("exact", (5, 9)),
        ],
    ),
    case(
        "dots are resolved",
        &[
            get("/paths/./exact").passes("exact", (4, 9)),
            get("/other/../paths/exact").passes("exact", (3, 9)),
        ],
    ),
    case(
        "a path is decoded once",
        &[get("/paths/%65xact").passes("exact", (2, 9)), get("/paths/%2565xact").free()],
    ),
    case("an encoded slash escapes nothing", &[get("/paths%2Fexact").passes("exact", (1, 9))]),
    case(
        "a name in braces is one segment",
        &[
            get("/paths/one/1").passes("one", (8, 9)),
            get("/paths/one/2").passes("one", (7, 9)),
            get("/paths/one").free(),
            get("/paths/one/1/2").free(),
        ],
    ),
    case(
        "two stars are whatever follows, nothing included",
        &[
            get("/paths/below").passes("below", (8, 9)),
            get("/paths/below/a/b/c").passes("below", (7, 9)),
        ],
    ),
    case(
        "one counter for everybody",
        &[
            get("/everybody/a").with(&[("user", "1")]).passes("shared_counter", (1, 2)),
            get("/everybody/b").with(&[("ip", "192.0.2.9")]).passes("shared_counter", (0, 2)),
            get("/everybody/c").with(NOBODY).denied("shared_counter", (0, 2)),
        ],
    ),
    case(
        "an attribute that is missing is replaced by the address",
        &[
            get("/by_user/a").with(&[("user", "1")]).passes("by_user", (0, 1)),
            get("/by_user/a").with(&[("ip", "192.0.2.1")]).passes("by_user", (0, 1)),
            get("/by_user/a").with(&[("ip", "192.0.2.1")]).denied("by_user", (0, 1)),
            get("/by_user/a").with(&[("ip", "192.0.2.2")]).passes("by_user", (0, 1)),
        ],
    ),
    case(
        "an empty attribute is as good as none",
        &[get("/by_user/a").with(&[("user", ""), ("ip", "192.0.2.1")]).denied("by_user", (0, 1))],
    ),
    case(
        "nobody can pose as an address",
        &[get("/by_user/a").with(&[("user", "ip:192.0.2.1")]).passes("by_user", (0, 1))],
    ),
    case(
        "two attributes make one subject",
        &[
            get("/by_pair/a").with(&[("tenant", "a"), ("user", "bc")]).passes("by_pair", (0, 1)),
            get("/by_pair/a").with(&[("tenant", "ab"), ("user", "c")]).passes("by_pair", (0, 1)),
            get("/by_pair/a").with(&[("user", "bc"), ("tenant", "a")]).denied("by_pair", (0, 1)),
        ],
    ),
    case(
        "one address has one spelling",
        &[
            get("/by_ip/a").with(&[("ip", "192.0.2.7")]).passes("by_ip", (1, 2)),
            get("/by_ip/a").with(&[("ip", "::ffff:192.0.2.7")]).passes("by_ip", (0, 2)),
        ],
    ),
    case(
        "IPv6 counts by its first 64 bits",
        &[
            get("/by_ip/a").with(&[("ip", "2001:db8::1")]).passes("by_ip", (1, 2)),
            get("/by_ip/a").with(&[("ip", "2001:db8:0:0:9::")]).passes("by_ip", (0, 2)),
            get("/by_ip/a").with(&[("ip", "2001:db8:0:1::1")]).passes("by_ip", (1, 2)),
        ],
    ),
    case(
        "those who lack an attribute share a counter where the rule says so",
        &[
            get("/missing/shared").with(&[("user", "1")]).passes("missing_shared", (0, 1)),
            get("/missing/shared").with(&[("ip", "192.0.2.5")]).denied("missing_shared", (0, 1)),
        ],
    ),
    case(
        "a rule that skips does not apply",
        &[
            get("/missing/skip").free(),
            get("/missing/skip").with(&[("tenant", "a")]).passes("missing_skip", (0, 1)),
        ],
    ),
    case(
        "a rule that cannot do without an attribute denies",
        &[
            get("/missing/deny").lacks("missing_deny"),
            get("/missing/deny").with(&[("tenant", "a")]).passes("missing_deny", (0, 1)),
        ],
    ),
    case(
        "conditions on attributes choose the rule",
        &[
            get("/conditions/a").with(&[("tenant", "acme")]).passes("tenants", (4, 5)),
            get("/conditions/a").with(&[("tenant", "in-house")]).passes("prefixed", (5, 6)),
            get("/conditions/a").with(&[("ip", "10.1.2.3")]).passes("inside", (6, 7)),
            get("/conditions/a").with(&[("ip", "::ffff:10.1.2.3")]).passes("inside", (5, 7)),
            get("/conditions/a").with(&[("ip", "11.1.2.3")]).free(),
            get("/conditions/a").with(&[("tenant", "Acme")]).free(),
        ],
    ),
    case(
        "of several rules the one with the least left binds, and who is denied pays none",
        &[
            get("/several/a").passes("small", (1, 2)),
            get("/several/a").costing(2).denied("small", (1, 2)),
            get("/several/a").passes("small", (0, 2)),
            get("/several/a").denied("small", (0, 2)),
            get("/several/a").costing(0).passes("small", (0, 2)),
        ],
    ),
    case(
        "all limits of one rule hold",
        &[
            get("/twice/a").passes("twice", (1, 8)),
            get("/twice/a").passes("twice", (0, 8)),
            get("/twice/a").denied("twice", (0, 8)),
        ],
    ),
    case(
        "a route has its price, and the request's cost multiplies it",
        &[
            get("/priced/search").passes("priced", (5, 10)),
            get("/priced/other").passes("priced", (4, 10)),
            get("/priced/search").denied("priced", (4, 10)),
            get("/priced/other").costing(4).passes("priced", (0, 10)),
            get("/priced/search").costing(3).never("priced", (0, 10)),
        ],
    ),
    case(
        "a price in an attribute",
        &[
            get("/paid_by/a").with(&[("user", "1"), ("tokens", "7")]).passes("paid_by", (3, 10)),
            get("/paid_by/a").with(&[("user", "1"), ("tokens", "4")]).denied("paid_by", (3, 10)),
            get("/paid_by/a").with(&[("user", "1"), ("tokens", "11")]).never("paid_by", (3, 10)),
        ],
    ),
    case(
        "what costs more than a limit holds never passes, and pays nothing",
        &[
            get("/never/a").costing(4).never("never", (3, 3)),
            get("/never/a").costing(u64::MAX).never("never", (3, 3)),
            get("/never/a").costing(3).passes("never", (0, 3)),
        ],
    ),
    case(
        "a cost of nothing peeks, also where nothing is left",
        &[
            get("/never/a").costing(0).passes("never", (0, 3)),
            get("/never/b").with(&[("user", "b")]).costing(0).passes("never", (3, 3)),
            get("/never/b").with(&[("user", "b")]).costing(0).passes("never", (3, 3)),
        ],
    ),
    case(
        "a tier has its own limit",
        &[
            get("/tiers/a").with(&[("user", "1"), ("tier", "free")]).passes("tiered", (0, 1)),
            get("/tiers/a").with(&[("user", "1"), ("tier", "free")]).denied("tiered", (0, 1)),
            get("/tiers/a").with(&[("user", "2"), ("tier", "premium")]).passes("tiered", (2, 3)),
        ],
    ),
    case(
        "who has no tier, or one that is not known, has the default's",
        &[
            get("/tiers/a").with(&[("user", "3")]).passes("tiered", (0, 1)),
            get("/tiers/a").with(&[("user", "4"), ("tier", "gold")]).passes("tiered", (0, 1)),
            get("/tiers/a").with(&[("user", "4"), ("tier", "gold")]).denied("tiered", (0, 1)),
        ],
    ),
    case(
        "a tier may have no limit",
        &[get("/tiers/a").with(&[("user", "5"), ("tier", "staff")]).free_by("tiered")],
    ),
    case(
        "who is exempt is not counted",
        &[
            get("/exempt/a").with(&[("api_key", "internal")]).free_by("exempting"),
            get("/exempt/a").with(&[("api_key", "internal")]).free_by("exempting"),
            get("/exempt/a").with(&[("ip", "10.9.9.9")]).free_by("exempting"),
            get("/exempt/a").with(&[("api_key", "other")]).passes("exempting", (0, 1)),
        ],
    ),
    case(
        "an exemption ends",
        &[
            get("/exempt/a").with(&[("user", "former")]).passes("exempting", (0, 1)),
            get("/exempt/a").with(&[("user", "former")]).denied("exempting", (0, 1)),
        ],
    ),
    case(
        "a rule in shadow mode never denies",
        &[get("/shadow/only").free(), get("/shadow/only").free()],
    ),
    case(
        "a rule beside one in shadow mode goes on counting",
        &[
            get("/shadow/beside").passes("beside", (1, 2)),
            get("/shadow/beside").passes("beside", (0, 2)),
            get("/shadow/beside").denied("beside", (0, 2)),
        ],
    ),
    case(
        "a candidate never denies",
        &[get("/candidate").passes("trying", (2, 3)), get("/candidate").passes("trying", (1, 3))],
    ),
    case(
        "an unlimited rule lifts those below it",
        &[
            get("/open/health").free_by("open"),
            get("/open/health").free_by("open"),
            get("/open/other").passes("closed", (0, 1)),
            get("/open/other").denied("closed", (0, 1)),
        ],
    ),
    case(
        "the fallback is for those whom no other rule matches",
        &[
            get("/fallback/other").passes("others", (0, 1)),
            get("/fallback/other").denied("others", (0, 1)),
            get("/fallback/listed").passes("listed", (1, 2)),
            get("/fallback/listed").passes("listed", (0, 2)),
        ],
    ),
    case(
        "a rule that stops keeps lower ones from applying",
        &[get("/stop/a").passes("first", (3, 4)), get("/stop/a").passes("first", (2, 4))],
    ),
    case(
        "of equals the rule of higher priority binds",
        &[get("/priority/a").passes("high", (3, 4))],
    ),
    case(
        "a rule replaces another",
        &[
            get("/replaces/vip").passes("special", (2, 3)),
            get("/replaces/vip").passes("special", (1, 3)),
            get("/replaces/a").passes("general", (0, 1)),
        ],
    ),
    case(
        "a rule that is not enabled is not there",
        &[get("/disabled").free(), get("/disabled").free()],
    ),
    case("where no rule matches nothing is limited", &[get("/").free(), get("/nowhere").free()]),
    case(
        "a fixed window",
        &[
            get("/algorithms/fixed").passes("fixed", (0, 1)),
            get("/algorithms/fixed").denied("fixed", (0, 1)),
        ],
    ),
    case(
        "a sliding window",
        &[
            get("/algorithms/sliding").passes("sliding", (0, 1)),
            get("/algorithms/sliding").denied("sliding", (0, 1)),
        ],
    ),
    case(
        "a strict sliding window",
        &[
            get("/algorithms/strict").passes("strict", (0, 1)),
            get("/algorithms/strict").denied("strict", (0, 1)),
        ],
    ),
    case(
        "a log",
        &[
            get("/algorithms/log").passes("logged", (0, 1)),
            get("/algorithms/log").denied("logged", (0, 1)),
        ],
    ),
    case(
        "a leaky bucket",
        &[
            get("/algorithms/leaky").passes("leaky", (0, 1)),
            get("/algorithms/leaky").denied("leaky", (0, 1)),
        ],
    ),
    case(
        "what is not ASCII is a subject as any other",
        &[
            get("/plain/ü").with(&[("user", "Zoë \u{1f980}")]).passes("plain", (2, 3)),
            get("/plain/%C3%BC").with(&[("user", "Zoë \u{1f980}")]).passes("plain", (1, 3)),
        ],
    ),
    case(
        "what is in flight keeps others out until it is over",
        &[get("/jobs").passes("jobs", (0, 1)), get("/jobs").busy("jobs", (0, 1))],
    ),
    case("more limits than can be checked at once", &[get("/many").too_many()]),
    case(
        "what is reserved for more critical requests is left to them",
        &[
            get("/reserve/a").costing(6).never("reserving", (5, 10)),
            get("/reserve/a").costing(5).passes("reserving", (0, 10)),
            get("/reserve/a").denied("reserving", (0, 10)),
            get("/reserve/pay").denied("reserving", (0, 10)),
            get("/reserve/a").with(GOLD).costing(3).passes("reserving", (0, 10)),
            get("/reserve/a").with(GOLD).denied("reserving", (0, 10)),
            send("POST", "/reserve/pay").costing(2).passes("reserving", (0, 10)),
            send("POST", "/reserve/pay").denied("reserving", (0, 10)),
        ],
    ),
];

const GOLD: &[(&str, &str)] = &[("user", "7"), ("tier", "gold")];

/// The same while the store is out of reach.
pub(crate) const CASES_WITHOUT_STORE: &[Case] = &[
    case(
        "a rule that lets requests pass",
        &[
            get("/open").unseen(Expect::Allow, "open", 3),
            get("/open").costing(3).unseen(Expect::Allow, "open", 3),
        ],
    ),
    case(
        "a cost above the limit never passes",
        &[
            get("/open").costing(4).unseen(Expect::Never, "open", 3),
            get("/shut").costing(4).unseen(Expect::Never, "shut", 3),
            get("/share").costing(6).unseen(Expect::Never, "share", 5),
        ],
    ),
    case("a rule that turns requests away", &[get("/shut").unseen(Expect::Deny, "shut", 3)]),
    case("a rule that sheds what is not critical", &[get("/shed").unseen(Expect::Deny, "shed", 3)]),
    case(
        "what rules call critical by method, path and tier is shed last",
        &[
            get("/shedding/x").unseen(Expect::Deny, "shedding", 3),
            get("/shedding/pay").unseen(Expect::Deny, "shedding", 3),
            send("POST", "/shedding/pay").unseen(Expect::Allow, "shedding", 3),
            get("/shedding/prefetch").unseen(Expect::Deny, "shedding", 3),
            get("/shedding/x").with(GOLD).unseen(Expect::Allow, "shedding", 3),
        ],
    ),
    case(
        "a share of the limit, counted here",
        &[
            get("/share").passes("share", (1, 2)).degraded(),
            get("/share").passes("share", (0, 2)).degraded(),
            get("/share").denied("share", (0, 2)).degraded(),
        ],
    ),
    case(
        "a price above the limit, in an attribute",
        &[
            get("/priced").with(&[("user", "7"), ("tokens", "3")]).unseen(
                Expect::Allow,
                "priced",
                3,
            ),
            get("/priced").with(&[("user", "7"), ("tokens", "4")]).unseen(
                Expect::Never,
                "priced",
                3,
            ),
        ],
    ),
    case(
        "a share of what may be in flight",
        &[
            get("/jobs").passes("jobs", (0, 1)).degraded(),
            get("/jobs").busy("jobs", (0, 1)).degraded(),
        ],
    ),
    case("a rule in shadow mode turns nobody away", &[get("/tried").free().degraded()]),
    case("more limits than can be checked at once", &[get("/many").too_many()]),
    case("an attribute that is missing", &[get("/lacking").lacks("lacking")]),
    case(
        "what no limit meets is not degraded",
        &[get("/free").free_by("free"), get("/nowhere").free()],
    ),
];
