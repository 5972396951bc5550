//! The dashboard of the real binary: what its pages show and refuse, by hand and in a real browser.

mod browser;
mod web_session;
mod webdriver;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::admin_daemon::{AdminDaemon, first_token, send};
use crate::common::{Daemon, Scratch, serve, status};
use serde_json::json;
use tollbar_admin::database::{DatabaseLocation, Repository, UsageRow};
use tollbar_proto::client::Client;
use tollbar_proto::v1::CheckRequest;
pub(crate) use web_session::WebSession;
use web_session::location;

/// A rule that lets one request pass, for anybody by any name.
const RULES: &str = "rules: [{ name: once, match: { path: /once }, per: [user], limit: 1/day }]";

/// A daemon with a database, and the token that it prints.
pub(crate) fn started(scratch: &Scratch, rules: &str) -> (Daemon, String) {
    let rules = scratch.file("rules.yaml", rules);
    let database = scratch.path("rules.sqlite");
    let mut command = serve(&["--rules", &rules, "--database", &database]);
    command.env("TOLLBAR_ADMIN", "127.0.0.1:0");
    let daemon = Daemon::spawn(command);
    let token =
        daemon.greeting.iter().find_map(|line| line.strip_prefix("admin token (shown once): "));
    let token = token.unwrap_or_else(|| panic!("no token in {:?}", daemon.greeting)).to_owned();
    (daemon, token)
}

/// A token that another one makes, by the form.
fn made(admin: &WebSession, scope: &str, whose: &str) -> String {
    let fields = [("name", scope), ("scope", scope), ("whose", whose), ("for", "1d")];
    let page = admin.post("/tokens", &fields);
    let token =
        page.split("id=\"secret\" tabindex=\"0\">").nth(1).and_then(|rest| rest.split('<').next());
    token.unwrap_or_else(|| panic!("no token in {page}")).to_owned()
}

/// Makes a rule by the form; where its page is.
fn rule(session: &WebSession, fields: &[(&str, &str)]) -> String {
    let answer = session.post("/rules", &[&[("as", "form")], fields].concat());
    assert_eq!(status(&answer), 303, "{answer}");
    location(&answer).to_owned()
}

#[test]
fn nobody_sees_anything_before_they_have_shown_a_token() {
    let scratch = Scratch::new("dashboard-door");
    let (daemon, _) = started(&scratch, RULES);
    let session = WebSession::new(&daemon);
    for path in ["/", "/rules", "/rules/once", "/keys", "/usage", "/usage.csv", "/tokens", "/live"]
    {
        let answer = session.get(path);
        assert_eq!(status(&answer), 303, "{path}");
        assert!(location(&answer).starts_with("/login"), "{path}");
    }
    assert_eq!(status(&session.send("/rules", &[("name", "a")], "")), 401);
    let page = session.get("/login");
    assert_eq!(status(&page), 200);
    assert!(page.contains("content-security-policy: default-src 'none'; script-src 'self';"));
    // Wrong tokens are counted, and the eleventh in a minute is not even looked up.
    let wrong = format!("tbar_{}", "0".repeat(64));
    let statuses: Vec<u16> =
        (0..12).map(|_| status(&session.send("/login", &[("token", &wrong)], ""))).collect();
    assert_eq!(statuses[..5], [401; 5]);
    assert_eq!(statuses[11], 429);
}

#[test]
fn what_pages_need_is_served_here_and_kept_for_good() {
    let scratch = Scratch::new("dashboard-assets");
    let (daemon, _) = started(&scratch, RULES);
    let session = WebSession::new(&daemon);
    let page = session.get("/login");
    let paths: Vec<&str> =
        page.split("\"/assets/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(paths.len() >= 3, "{page}");
    for path in paths {
        let answer = session.get(&format!("/assets/{path}"));
        assert_eq!(status(&answer), 200, "{path}");
        assert!(answer.contains("immutable") && answer.contains("nosniff"), "{path}");
    }
    assert!(status(&session.get("/assets/dashboard-0.css")) != 200);
}

#[test]
fn forms_of_other_sites_and_of_other_sessions_do_nothing() {
    let scratch = Scratch::new("dashboard-csrf");
    let (daemon, token) = started(&scratch, RULES);
    let (session, other) =
        (WebSession::signed_in(&daemon, &token), WebSession::signed_in(&daemon, &token));
    let csrf = session.csrf();
    let fields = [("as", "form"), ("name", "x"), ("maxRequests", "1"), ("windowSeconds", "1")];
    let with = |csrf: &str, lines: &str| {
        status(&session.send("/rules", &[&fields[..], &[("csrf", csrf)]].concat(), lines))
    };
    assert_eq!(with("", ""), 403);
    assert_eq!(with(&other.csrf(), ""), 403);
    assert_eq!(with(&csrf, "origin: http://evil.example\r\n"), 403);
    assert_eq!(with(&csrf, "sec-fetch-site: cross-site\r\n"), 403);
    assert_eq!(with(&csrf, "sec-fetch-site: same-origin\r\n"), 303, "and ours do");
    // Nobody is signed in by another site either.
    let answer = session.send("/login", &[("token", &token)], "origin: http://evil.example\r\n");
    assert_eq!(status(&answer), 403);
    // Nor sent elsewhere.
    let answer = session.send("/login", &[("token", &token), ("to", "//evil.example")], "");
    assert_eq!(location(&answer), "/");
}

#[test]
fn a_session_ends_by_signing_out_and_with_its_token() {
    let scratch = Scratch::new("dashboard-session");
    let (daemon, token) = started(&scratch, RULES);
    let admin = WebSession::signed_in(&daemon, &token);
    let reader = WebSession::signed_in(&daemon, &made(&admin, "read", ""));
    let mut live = watching(&daemon, &reader);
    assert_eq!(status(&reader.get("/")), 200);
    // The second token that was ever made.
    assert_eq!(status(&admin.post("/tokens/2/revoke", &[])), 303);
    // The stream ends by itself, within the second in which it looks.
    let mut rest = String::new();
    live.read_to_string(&mut rest).unwrap();
    assert_eq!(status(&reader.get("/")), 303);
    assert_eq!(status(&admin.post("/logout", &[])), 303);
    assert_eq!(location(&admin.get("/")), "/login");
}

/// The stream of somebody who watches, from its first event on.
fn watching(daemon: &Daemon, session: &WebSession) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(daemon.address("admin")).unwrap();
    stream.write_all(session.request("/live").as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("data: {") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the stream has ended");
    }
    reader
}

#[test]
fn a_stream_ends_when_the_daemon_stops() {
    let scratch = Scratch::new("dashboard-drain");
    let (daemon, token) = started(&scratch, RULES);
    let session = WebSession::signed_in(&daemon, &token);
    let mut live = watching(&daemon, &session);
    assert_eq!(daemon.stop(), 0);
    let mut rest = String::new();
    live.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "it was told the end: {rest:?}");
}

#[test]
fn who_may_only_read_sees_everything_and_changes_nothing() {
    let scratch = Scratch::new("dashboard-read");
    let (daemon, token) = started(&scratch, RULES);
    let admin = WebSession::signed_in(&daemon, &token);
    let own = rule(&admin, &[("name", "own"), ("maxRequests", "5"), ("windowSeconds", "60")]);
    let id = own.rsplit('/').next().unwrap();
    let reader = WebSession::signed_in(&daemon, &made(&admin, "read", ""));
    for path in ["/", "/rules", &own, "/keys", "/exemptions", "/usage", "/explain"] {
        let page = reader.get(path);
        assert_eq!(status(&page), 200, "{path}");
        assert!(!page.contains("can-change") && !page.contains("New rule"), "{path}");
    }
    assert!(!reader.get(&own).contains("/edit"));
    for path in ["/tokens", "/rules/new", &format!("{own}/edit"), &format!("{own}/delete")] {
        assert_eq!(status(&reader.get(path)), 403, "{path}");
    }
    let edited = [
        ("as", "form"),
        ("name", "own"),
        ("maxRequests", "9"),
        ("windowSeconds", "60"),
        ("version", "1"),
    ];
    let whom = [("rule", id), ("subject", "user:1"), ("factorPercent", "200")];
    for (path, fields) in [
        ("/rules", &edited[..]),
        ("/rules/review", &edited),
        (&own, &edited),
        (&format!("{own}/review"), &edited),
        (&format!("{own}/delete"), &edited),
        (&format!("{own}/rollback"), &[("version", "1"), ("to", "1")]),
        (&format!("{own}/exemptions"), &[("subjectType", "user"), ("subjectValue", "1")]),
        ("/key/reset", &whom),
        ("/key/ban", &whom),
        ("/key/boost", &whom),
        ("/keys/1/lift", &[]),
        ("/exemptions/1/delete", &[]),
        ("/tokens", &[("name", "x"), ("scope", "admin")]),
        ("/tokens/1/revoke", &[]),
    ] {
        assert_eq!(status(&reader.post(path, fields)), 403, "{path}");
    }
    assert!(admin.get(&own).contains("version 1"), "nothing has changed");
}

#[test]
fn a_tenant_sees_and_changes_its_own() {
    let scratch = Scratch::new("dashboard-tenant");
    let (daemon, token) = started(&scratch, RULES);
    let admin = WebSession::signed_in(&daemon, &token);
    let theirs = rule(&admin, &[("name", "theirs"), ("maxRequests", "5"), ("windowSeconds", "60")]);
    let tenant = WebSession::signed_in(&daemon, &made(&admin, "tenant", "acme"));
    assert_eq!(location(&tenant.get("/")), "/rules");
    for path in ["/exemptions", "/explain", "/live", "/tokens"] {
        assert_eq!(status(&tenant.get(path)), 403, "{path}");
    }
    assert_eq!(status(&tenant.get(&theirs)), 404);
    assert_eq!(status(&tenant.get("/rules/once")), 404);
    // No more than the operator allows.
    let limit = [("maxRequests", "1"), ("windowSeconds", "86400")];
    let fields = [&[("name", "acme/own"), ("tenantId", "acme")][..], &limit].concat();
    let own = rule(&tenant, &fields);
    let page = tenant.get("/rules");
    assert!(
        page.contains("acme/own") && !page.contains("theirs") && !page.contains(">once<"),
        "{page}"
    );
    assert_eq!(status(&tenant.get(&own)), 200);
    let me = WebSession::signed_in(&daemon, &made(&admin, "usage:me", "user:42"));
    assert_eq!(status(&me.get("/rules")), 403);
    assert!(me.get("/me").contains("What is left to"));
}

#[test]
fn a_rule_is_made_changed_and_put_back_as_form_and_as_yaml() {
    let scratch = Scratch::new("dashboard-rules");
    let (daemon, token) = started(&scratch, RULES);
    let admin = WebSession::signed_in(&daemon, &token);
    let first = [("as", "form"), ("name", "own"), ("maxRequests", "5"), ("windowSeconds", "60")];
    let review = admin.post("/rules/review", &first);
    assert!(
        review.contains("Create own?") && review.contains("<ins><bdi>5/min</bdi></ins>"),
        "{review}"
    );
    assert!(!admin.get("/rules").contains(">own<"), "a review changes nothing");
    let own = rule(&admin, &first[1..]);
    let yaml = "name: own\nlimit: 9/min\nmode: shadow\n";
    let second = [("as", "yaml"), ("yaml", yaml), ("version", "1")];
    let review = admin.post(&format!("{own}/review"), &second);
    assert!(review.contains("<del><bdi>5/min</bdi></del>"), "{review}");
    assert_eq!(status(&admin.post(&own, &second)), 303);
    assert!(admin.get(&own).contains("badge shadow"));
    assert_eq!(status(&admin.post(&own, &second)), 412, "somebody else was faster");
    let review = admin.get(&format!("{own}/rollback?version=1"));
    assert!(
        review.contains("back to version 1?") && review.contains("<ins><bdi>5/min"),
        "{review}"
    );
    let back = [("version", "2"), ("to", "1")];
    assert_eq!(status(&admin.post(&format!("{own}/rollback"), &back)), 303);
    let page = admin.get(&own);
    assert!(page.contains("version 3") && page.contains("limit: 5/min"), "{page}");
    // What is wrong is told where it is, and what was typed is still there.
    let wrong = [("as", "form"), ("name", "own"), ("maxRequests", "many"), ("version", "3")];
    let page = admin.post(&format!("{own}/review"), &wrong);
    assert_eq!(status(&page), 422);
    assert!(page.contains("value=\"many\"") && page.contains("aria-invalid=\"true\""), "{page}");
    let wrong = [("as", "yaml"), ("yaml", "name: own\nlimit: 5/fortnight"), ("version", "3")];
    assert!(admin.post(&format!("{own}/review"), &wrong).contains("line 2, limit"));
    let gone = [("version", "3")];
    assert_eq!(status(&admin.post(&format!("{own}/delete"), &gone)), 303);
    assert!(admin.get(&own).contains("This rule was deleted"));
    let back = [("version", "4"), ("to", "1")];
    assert_eq!(status(&admin.post(&format!("{own}/rollback"), &back)), 303, "and it comes back");
    assert!(admin.get(&own).contains("limit: 5/min"));
    // A rule of the file is changed there.
    assert!(admin.get("/rules/once").contains("is in the file of rules"));
    assert_eq!(status(&admin.get("/rules/once/edit")), 403);
}

#[test]
fn pages_say_who_made_a_rule_and_a_tenant_edits_its_own() {
    let scratch = Scratch::new("dashboard-owner");
    let (daemon, token) = started(&scratch, RULES);
    let admin = WebSession::signed_in(&daemon, &token);
    let acme = WebSession::signed_in(&daemon, &made(&admin, "tenant", "acme"));
    let form = |name| {
        [("name", name), ("tenantId", "acme"), ("maxRequests", "1"), ("windowSeconds", "86400")]
    };
    let (given, own) = (rule(&admin, &form("acme/given")), rule(&acme, &form("acme/own")));
    for session in [&admin, &acme] {
        assert!(
            session.get(&given).contains("version 1, owner <bdi>operator</bdi>"),
            "{}",
            session.get(&given)
        );
        assert!(session.get(&own).contains("version 1, owner <bdi>tenant:acme</bdi>"));
        let list = session.get("/rules");
        assert!(list.contains("<td><bdi>operator</bdi></td>"), "{list}");
        assert!(list.contains("<td><bdi>tenant:acme</bdi></td>"), "{list}");
    }
    let page = acme.get(&given);
    assert!(
        page.contains("This rule belongs to the operator") && !page.contains("/edit\""),
        "{page}"
    );
    assert!(acme.get(&own).contains("/edit\"") && admin.get(&own).contains("/edit\""));
    let edit = acme.get(&format!("{given}/edit"));
    assert_eq!(status(&edit), 403);
    assert!(edit.contains("belongs to the operator"), "{edit}");
    assert_eq!(status(&acme.get(&format!("{own}/edit"))), 200);
    assert_eq!(status(&acme.post(&format!("{given}/delete"), &[("version", "1")])), 403);
    assert_eq!(status(&acme.post(&format!("{own}/delete"), &[("version", "1")])), 303);
}

/// What people put into names when nobody looks.
pub(crate) const EVIL: [&str; 5] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "\u{202e}nimda",
    "bell\u{7}esc\u{1b}[31m",
    "</textarea><svg onload=alert(3)>",
];

/// Denies everybody who has such a name, over every protocol.
pub(crate) fn deny_evil(daemon: &Daemon) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for name in EVIL {
        let json = json!({ "path": "/once", "attributes": { "user": name } }).to_string();
        assert_eq!(status(&daemon.post("/v1/check", &json)), 200);
        assert_eq!(status(&daemon.post("/v1/check", &json)), 429);
        let mut resp = TcpStream::connect(daemon.address("resp")).unwrap();
        let words = ["TB.CHECK", "GET", "/once", "WITH", "user", name];
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            let _ = write!(command, "${}\r\n{word}\r\n", word.len());
        }
        resp.write_all(command.as_bytes()).unwrap();
        let mut answer = [0; 2];
        resp.read_exact(&mut answer).unwrap();
        assert_eq!(answer[0], b'*', "a list of numbers");
        runtime.block_on(async {
            let client = Client::builder(format!("http://{}", daemon.address("grpc")));
            let client = client.connect().unwrap();
            let attributes = [("user".to_owned(), name.to_owned())].into();
            let request =
                CheckRequest { path: "/once".to_owned(), attributes, ..CheckRequest::default() };
            assert!(!client.check(request).await.unwrap().allowed);
        });
    }
}

#[test]
fn texts_of_others_are_texts_on_every_page() {
    let scratch = Scratch::new("dashboard-texts");
    let (daemon, token) = started(&scratch, RULES);
    let admin = WebSession::signed_in(&daemon, &token);
    deny_evil(&daemon);
    let own = rule(
        &admin,
        &[
            ("name", "own"),
            ("description", "<script>alert(4)</script>\u{202e}"),
            ("maxRequests", "5"),
            ("windowSeconds", "60"),
        ],
    );
    for value in EVIL.iter().filter(|text| !text.chars().any(|c| c.is_control() || c == '\u{202e}'))
    {
        let exempt =
            [("subjectType", "user"), ("subjectValue", *value), ("reason", *value), ("for", "")];
        assert_eq!(status(&admin.post(&format!("{own}/exemptions"), &exempt)), 303, "{value}");
        let ban = [("rule", "once"), ("subject", *value), ("reason", *value), ("for", "1h")];
        assert_eq!(status(&admin.post("/key/ban", &ban)), 303, "{value}");
    }
    let subject: String = form_urlencoded::byte_serialize(EVIL[1].as_bytes()).collect();
    let about: String = form_urlencoded::byte_serialize(EVIL[4].as_bytes()).collect();
    for path in [
        "/",
        "/?range=24h",
        "/keys",
        "/exemptions",
        "/usage",
        &own,
        &format!("{own}/edit"),
        &format!("{own}/edit?as=yaml"),
        &format!("/key?rule=once&subject={subject}"),
        &format!("/rules?name={about}"),
        &format!("/explain?about={about}"),
        &format!("/explain?path=/once&attributes=user={about}"),
        "/rules/%3Cscript%3E",
        "/login?to=%22%3E%3Cscript%3E",
    ] {
        let page = admin.get(path);
        let body = page.split("\r\n\r\n").nth(1).unwrap_or_default();
        assert!(!body.contains("<script>") && !body.contains("<img src=x"), "{path}: {page}");
        assert!(!body.contains("<svg onload"), "{path}: {page}");
        // A field of a form holds what was typed, and isolates it by itself.
        let is_form = path.ends_with("/edit");
        assert!(is_form || !body.contains('\u{202e}'), "{path}: {page}");
        assert!(!body.contains('\u{7}') && !body.contains('\u{1b}'), "{path}: {page}");
    }
    let page = admin.get("/");
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{page}");
    assert!(page.contains("\\u{202e}</span>nimda"), "{page}");
}

/// The log and the live view had no rule to show for a ban under every rule, and the explanation did not say whose it was.
#[test]
fn a_global_ban_is_named_in_the_log_the_live_view_and_the_explanation() {
    let scratch = Scratch::new("dashboard-global-ban");
    let rules = scratch.file("rules.yaml", RULES);
    let database = scratch.path("rules.sqlite");
    let mut daemon =
        Daemon::start_logged(&["--rules", &rules, "--database", &database, "--log-denials", "9"]);
    let token = first_token(&daemon).unwrap();
    let admin = WebSession::signed_in(&daemon, &token);
    let ban = br#"{ "subject": "user:9", "reason": "abuse", "expiresAt": "2070-01-01" }"#;
    let lines = format!("authorization: Bearer {token}\r\n");
    let address = daemon.address("admin");
    send(address, "POST", "/v1/rate-limit/keys/ban", &lines, ban).expect(201);
    let denied = daemon.post("/v1/check", r#"{"path":"/once","attributes":{"user":"9"}}"#);
    assert_eq!(status(&denied), 429, "{denied}");
    let line = daemon.logged("denied");
    assert!(line.contains("rule=\"global ban\"") && line.contains("code=\"banned\""), "{line}");
    let page = admin.get("/");
    assert!(page.contains("<span class=\"rule\"><bdi>global ban</bdi></span>"), "{page}");
    let id = line.split("decision_id=").nth(1).unwrap().split(' ').next().unwrap();
    let page = admin.get(&format!("/explain?about={id}"));
    let until = "until 1 Jan 2070, 00:00 UTC";
    let why = format!("`user:9` is banned under every rule {until}: abuse.");
    assert!(page.contains(&why) && page.contains(&format!(" days ({until})")), "{page}");
    let page = admin.get("/explain?path=/once&attributes=user=9");
    assert!(page.contains(&why), "{page}");
}

#[test]
fn an_explanation_shows_how_critical_a_request_is_and_what_is_reserved_for_others() {
    let scratch = Scratch::new("dashboard-criticality");
    let rules = "rules:
      - { name: exports, match: { path: /exports }, criticality: low, priority: 9 }
      - { name: all, per: [user], limit: 100/day, reserve: { critical: 10%, normal: 20% } }";
    let (daemon, token) = started(&scratch, rules);
    let admin = WebSession::signed_in(&daemon, &token);
    let page = admin.get("/explain?path=/exports&attributes=user=1");
    assert!(page.contains("low, by rule `exports`"), "{page}");
    assert!(page.contains("30 reserved for more critical requests"), "{page}");
    let page = admin.get("/explain?path=/other&attributes=user=1");
    assert!(page.contains("10 reserved for more critical requests"), "{page}");
}

#[test]
fn a_key_of_the_list_is_the_key_that_is_counted() {
    let scratch = Scratch::new("dashboard-keys");
    let rules = "rules:
      - { name: by_ip, match: { path: /ip }, per: [ip], limit: 2/day }
      - { name: by_user, match: { path: /user }, per: [user], limit: 2/day }
      - { name: by_client, match: { path: /client }, limit: 2/day }";
    let (daemon, token) = started(&scratch, rules);
    let admin = WebSession::signed_in(&daemon, &token);
    let check = |path: &str, name: &str, value: &str| {
        let json = json!({ "path": path, "attributes": { name: value } });
        status(&daemon.post("/v1/check", &json.to_string()))
    };
    for (path, name, value) in
        [("/ip", "ip", "203.0.113.7"), ("/user", "user", "42"), ("/client", "user", "42")]
    {
        let statuses: Vec<u16> = (0..3).map(|_| check(path, name, value)).collect();
        assert_eq!(statuses, [200, 200, 429], "{path}");
    }
    let list = admin.get("/keys");
    let links: Vec<String> = list
        .split("<th scope=\"row\"><a href=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .map(|text| text.replace("&#38;", "&").replace("&amp;", "&"))
        .collect();
    assert_eq!(links.len(), 3, "{list}");
    for link in links {
        let page = admin.get(&link);
        assert!(page.contains("<td class=\"num\">0</td>"), "nothing is left: {link} {page}");
        let fields: Vec<(String, String)> =
            form_urlencoded::parse(link.split('?').nth(1).unwrap().as_bytes())
                .into_owned()
                .collect();
        let fields: Vec<(&str, &str)> = fields.iter().map(|field| (&*field.0, &*field.1)).collect();
        assert_eq!(status(&admin.post("/key/reset", &fields)), 303, "{link}");
        let page = admin.get(&link);
        assert!(page.contains("<td class=\"num\">2</td>"), "all is left: {link} {page}");
    }
    assert_eq!(check("/ip", "ip", "203.0.113.7"), 200);
    // A ban, by hand and without the prefix, is of the same key.
    let ban = [("rule", "by_ip"), ("subject", "ip:203.0.113.7"), ("for", "1h"), ("reason", "")];
    assert_eq!(status(&admin.post("/key/ban", &ban)), 303);
    assert_eq!(check("/ip", "ip", "203.0.113.7"), 429);
    assert!(admin.get("/key?rule=by_ip&subject=203.0.113.7").contains("badge ban"));
}

#[test]
fn usage_is_a_page_and_a_file() {
    let scratch = Scratch::new("dashboard-usage");
    let (daemon, token) = started(&scratch, RULES);
    let admin = WebSession::signed_in(&daemon, &token);
    assert!(admin.get("/usage").contains("Nothing was used in these days"));
    let csv = admin.get("/usage.csv");
    assert!(
        csv.contains("content-type: text/csv") && csv.contains("attachment; filename="),
        "{csv}"
    );
    for path in
        ["/usage?from=yesterday", "/usage?from=2026-01-02&to=2026-01-01", "/usage?from=2020-01-01"]
    {
        assert_eq!(status(&admin.get(path)), 400, "{path}");
    }
}

#[tokio::test]
async fn the_page_of_usage_counts_a_request_once_and_adds_up_no_tokens_of_different_rules() {
    let admin = AdminDaemon::open("dashboard-usage-sums", RULES);
    let id = admin.rule(&json!({ "name": "search", "maxRequests": 5, "windowSeconds": 60 }));
    let row = |rule: &str, tokens: i64, requests: i64| UsageRow {
        day: 20_000,
        tenant: "acme".to_owned(),
        subject: "user:7".to_owned(),
        rule: rule.to_owned(),
        admitted_cost: tokens,
        denied_cost: 0,
        client: "user:7".to_owned(),
        tier: "gold".to_owned(),
        admitted_requests: requests,
        denied_requests: 0,
    };
    let place: DatabaseLocation = admin.database.parse().unwrap();
    let repository = Repository::open(&place).await.unwrap();
    // Three requests under two rules, of which the first has the requests.
    repository.add_usage("elsewhere", 1, &[row(&id, 700, 3), row("once", 40, 0)]).await.unwrap();

    let web = WebSession::signed_in(&admin.daemon, &admin.token);
    let page = |by: &str| web.get(&format!("/usage?from=2024-10-04&to=2024-10-04&by={by}"));
    for (by, name) in [("tenant", "acme"), ("client", "user:7"), ("tier", "gold")] {
        let page = page(by);
        assert!(page.contains("Requests admitted</span> <span class=\"num\">3</span>"), "{page}");
        let group = page.split("<th scope=\"row\">").nth(1).unwrap();
        assert!(group.contains(name) && group.contains("<td class=\"num\">3</td>"), "{group}");
        assert!(group.contains("search: 700, once: 40"), "{group}");
        assert!(!page.contains("740") && !page.contains(&id), "{page}");
    }
    let page = page("rule");
    for (name, tokens) in [("search", 700), ("once", 40)] {
        let row = page.split("<th scope=\"row\">").find(|row| row.contains(name)).unwrap();
        assert!(row.contains(&format!("<td class=\"num\">{tokens}</td>")), "{row}");
    }
    assert!(!page.contains("740") && !page.contains(&id), "{page}");
}
