//! What is left to a subject, as the admin API, the dashboard and their tokens are told.

use serde_json::{Value, json};

use crate::admin_daemon::AdminDaemon;
use crate::common::status;
use crate::dashboard::WebSession;

const RULES: &str = "rules:
- { name: plans, match: { path: /plans }, tiers: { free: 3/day, premium: 10/day, default: free } }
- { name: hours, match: { path: /hours }, tiers: { slow: 5/day, fast: 50/12h, default: slow } }
- { name: pair, match: { path: /pair/** }, per: [user, path], limit: 5/day }
";
const USAGE: &str = "/v1/rate-limit/usage?subjectType=user&subjectId=42";
const PEEK: &str = "/v1/rate-limit/keys/peek";

/// A daemon in which user 42 has used 4 of the 10 requests of the premium tier.
fn open(name: &str) -> AdminDaemon {
    let admin = AdminDaemon::open(name, RULES);
    for _ in 0..4 {
        assert_eq!(check(&admin, "/plans", "premium"), 200);
    }
    admin
}

fn check(admin: &AdminDaemon, path: &str, tier: &str) -> u16 {
    let body = json!({ "path": path, "attributes": { "user": "42", "tier": tier } });
    status(&admin.daemon.post("/v1/check", &body.to_string()))
}

/// Each limit as `tier remaining/limit`.
fn left(usage: &Value) -> Vec<String> {
    let text = |limit: &Value| {
        let tier = limit["tier"].as_str().unwrap_or("-");
        format!("{tier} {}/{}", limit["remaining"], limit["limit"])
    };
    usage["limits"].as_array().unwrap().iter().map(text).collect()
}

/// A premium user with 4 of 10 used was shown limit 3 and remaining 0.
#[test]
fn a_premium_user_is_shown_the_premium_limit_everywhere() {
    let admin = open("look-up-premium");
    let usage = admin.get(&format!("{USAGE}&ruleId=plans"));
    assert_eq!(
        (&usage["limit"], &usage["remaining"], &usage["tier"], &usage["rule"]),
        (&json!(10), &json!(6), &json!("premium"), &json!("plans"))
    );
    assert_eq!(left(&usage), ["premium 6/10"]);
    assert_eq!(left(&admin.get(&format!("{USAGE}&ruleId=plans&tier=free"))), ["free 0/3"]);
    let key = json!({ "ruleId": "plans", "subject": "user:42" });
    assert_eq!(left(&admin.ask("POST", PEEK, &key).expect(200)), ["premium 6/10"]);
    let mut named = key.clone();
    named["attributes"] = json!({ "tier": "free" });
    assert_eq!(left(&admin.ask("POST", PEEK, &named).expect(200)), ["free 0/3"]);

    let token = admin.token_of(&["usage:me"], Some("user:42"));
    let me = "/v1/rate-limit/usage/me";
    let own = |target: &str| admin.ask_as(&token, "GET", target, "", &Value::Null);
    let usage = own(me).expect(200);
    assert_eq!((&usage["limit"], &usage["remaining"]), (&json!(10), &json!(6)));
    assert_eq!(left(&usage), ["premium 6/10", "slow 5/5"]);
    // Its own subject is not the holder's to say.
    own(&format!("{me}?attributes=%7B%22api_key%22%3A%22k%22%7D")).problem(400, "bad_request");

    let web = WebSession::signed_in(&admin.daemon, &admin.token);
    let page = web.get("/key?rule=plans&subject=user:42");
    assert!(
        page.contains("<td><bdi>premium</bdi></td>") && !page.contains("<td><bdi>free</bdi></td>"),
        "{page}"
    );
    assert!(page.contains("<td class=\"num\">6</td><td class=\"num\">10</td>"), "{page}");
    let page = WebSession::signed_in(&admin.daemon, &token).get("/me");
    assert!(page.contains("<td><bdi>premium</bdi></td>"), "{page}");
    assert!(page.contains("counts per user and path: say which one"), "{page}");
}

#[test]
fn counters_under_two_tiers_are_both_shown_and_both_made_fresh() {
    let admin = open("look-up-tiers");
    assert_eq!((check(&admin, "/hours", "slow"), check(&admin, "/hours", "fast")), (200, 200));
    let usage = || admin.get(&format!("{USAGE}&ruleId=hours"));
    assert_eq!(left(&usage()), ["fast 49/50", "slow 4/5"]);
    assert_eq!(usage()["tier"], "fast", "the tier in force comes first");
    let key = json!({ "ruleId": "hours", "subject": "user:42" });
    admin.ask("POST", "/v1/rate-limit/keys/reset", &key).expect(200);
    assert_eq!(left(&usage()), ["fast 50/50"]);
}

#[test]
fn a_rule_that_counts_by_user_and_path_says_what_to_send() {
    let admin = open("look-up-pair");
    assert_eq!(check(&admin, "/pair/a", "premium"), 200);
    let which = "rule `pair` counts per user and path: say which one";
    let told = admin.ask("GET", &format!("{USAGE}&ruleId=pair"), &Value::Null);
    assert_eq!(told.problem(422, "invalid"), "attributes");
    assert!(told.body.contains(&format!("{which}, and send `path` too")), "{}", told.body);
    // Without a rule, the others are shown, and this one is named.
    let usage = admin.get(USAGE);
    assert_eq!(left(&usage), ["premium 6/10", "slow 5/5"]);
    let lacking = &usage["incomplete"][0];
    assert_eq!((&lacking["rule"], &lacking["missing"]), (&json!("pair"), &json!(["path"])));
    assert_eq!(left(&admin.get(&format!("{USAGE}&ruleId=pair&path=/pair/a"))), ["- 4/5"]);
    let other = "attributes=%7B%22path%22%3A%22/pair/b%22%7D";
    assert_eq!(left(&admin.get(&format!("{USAGE}&ruleId=pair&{other}"))), ["- 5/5"]);

    let peek = |key: Value| admin.ask("POST", PEEK, &key);
    let told = peek(json!({ "ruleId": "pair", "subject": "42" }));
    assert_eq!(told.problem(422, "invalid"), "subject");
    assert!(told.body.contains("`USER | PATH`"), "{}", told.body);
    let told = peek(json!({ "ruleId": "pair", "attributes": { "user": "42" } }));
    assert_eq!(told.problem(422, "invalid"), "attributes");
    for key in [
        json!({ "ruleId": "pair", "subject": "42 | /pair/a" }),
        json!({ "ruleId": "pair", "attributes": { "user": "42", "path": "/pair/a" } }),
    ] {
        assert_eq!(left(&peek(key).expect(200)), ["- 4/5"]);
    }
    let web = WebSession::signed_in(&admin.daemon, &admin.token);
    let page = web.get("/key?rule=pair&subject=42+%7C+/pair/a");
    assert!(page.contains("<td class=\"num\">4</td><td class=\"num\">5</td>"), "{page}");
    let page = web.get("/key?rule=pair&subject=42");
    assert!(page.contains(which), "{page}");
    let reset = json!({ "ruleId": "pair", "subject": "42 | /pair/a" });
    admin.ask("POST", "/v1/rate-limit/keys/reset", &reset).expect(200);
    assert_eq!(left(&peek(reset).expect(200)), ["- 5/5"]);
}
