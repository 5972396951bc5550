//! An operator at work, in headless Chromium, from signing in to putting a rule back.

use std::path::Path;

use super::webdriver::Browser;
use super::{EVIL, deny_evil, started};
use crate::common::{Daemon, Scratch, status};

/// The key Tab, in the protocol.
const TAB: &str = "\u{e004}";

const RULES: &str = "rules:
  - { name: once, match: { path: /once }, per: [user], limit: 1/day }
  - { name: steady, match: { path: /steady }, limit: 1000000/day }
  - { name: tried, match: { path: /steady }, limit: 2/day, mode: shadow }
";

/// Nothing is wrong with the page that is shown, in either theme, large or small.
fn audited(browser: &Browser) {
    for (width, height) in [(1_440, 900), (375, 812)] {
        for theme in ["light", "dark"] {
            browser.look(width, height, theme);
            let wrong = browser.run(include_str!("audit.js"));
            assert_eq!(wrong, serde_json::json!([]), "{} {width} {theme}", browser.place());
        }
    }
    browser.look(1_440, 900, "light");
}

/// Keeps a picture where `TOLLBAR_SCREENSHOTS` says, for people to look at.
fn kept(browser: &Browser, name: &str) {
    if let Some(place) = std::env::var_os("TOLLBAR_SCREENSHOTS") {
        std::fs::write(Path::new(&place).join(name), browser.picture()).unwrap();
    }
}

fn check(daemon: &Daemon, path: &str, user: &str) -> u16 {
    let json = serde_json::json!({ "path": path, "attributes": { "user": user } });
    status(&daemon.post("/v1/check", &json.to_string()))
}

fn text(browser: &Browser, selector: &str) -> String {
    let script = format!("return document.querySelector('{selector}').textContent");
    browser.run(&script).as_str().unwrap_or_default().to_owned()
}

#[test]
fn an_operator_makes_a_rule_sees_it_deny_boosts_a_key_and_puts_the_rule_back() {
    let scratch = Scratch::new("dashboard-browser");
    let (daemon, token) = started(&scratch, RULES);
    deny_evil(&daemon);
    for user in 0..50 {
        check(&daemon, "/steady", &user.to_string());
    }
    let browser = Browser::start();
    let at = |path: &str| format!("http://{}{path}", daemon.address("admin"));

    // A wrong token first, as people do; then the right one.
    browser.go(&at("/"));
    assert_eq!(browser.place(), "/login");
    audited(&browser);
    browser.fill("#token", "tbar_no");
    browser.click("button.primary");
    browser.until_told(".trouble", "not known");
    browser.fill("#token", &token);
    browser.click("button.primary");
    browser.until("location.pathname === '/'");
    // The browser says that a page was answered by 401; that is all it may have to say.
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|complaint| complaint.contains("401")), "{complaints:?}");

    // The first Tab leads past what is on every page.
    browser.press(TAB);
    assert_eq!(browser.run("return document.activeElement.className"), "skip");

    // Live, and nothing moves for it.
    browser.until("document.getElementById('live-state').classList.contains('on')");
    let first = text(&browser, "#live-state");
    browser.until(&format!("document.getElementById('live-state').textContent !== '{first}'"));
    let moved = "return new Promise(done => new PerformanceObserver(list => done(list.getEntries() \
                 .reduce((sum, it) => sum + it.value, 0))).observe({ type: 'layout-shift', buffered: true }) \
                 || setTimeout(() => done(0), 500))";
    assert!(browser.run(moved).as_f64().unwrap() < 0.02, "the page jumps");
    assert_eq!(
        browser.run("return document.querySelectorAll('script, img[src=x], svg[onload]').length"),
        1
    );
    let shown = browser.run("return document.getElementById('keys').textContent").to_string();
    assert!(
        shown.contains("<script>alert(1)</script>") && shown.contains("\\\\u{202e}nimda"),
        "{shown}"
    );
    assert!(!shown.contains(EVIL[2]));
    audited(&browser);
    kept(&browser, "overview.png");

    // A rule, by the form; nothing happens before it was looked over.
    browser.go(&at("/rules/new"));
    audited(&browser);
    for (field, value) in [
        ("name", "e2e"),
        ("pathPattern", "/e2e/**"),
        ("per", "user"),
        ("maxRequests", "3"),
        ("windowSeconds", "3600"),
    ] {
        browser.fill(&format!("#{field}"), value);
    }
    browser.click("form.grid button.primary");
    browser.until_told("h1", "Create e2e?");
    audited(&browser);
    browser.click("form.actions button.primary");
    browser.until("document.querySelector('.notice')");
    browser.until_told("pre.yaml", "limit: 3/h");
    let own = browser.place();
    audited(&browser);

    // It denies, and a click says why.
    let statuses: Vec<u16> = (0..5).map(|_| check(&daemon, "/e2e/x", "42")).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    browser.go(&at("/"));
    browser.until("document.querySelector('#tail a .rule')?.textContent === 'e2e'");
    // Held still, so that the line that is found is the line that is clicked.
    browser.click("#pause");
    assert_eq!(text(&browser, "#live-state"), "paused");
    browser.click("#tail a");
    browser.until("document.getElementById('sheet').open");
    let why = text(&browser, "#sheet-body");
    assert!(why.contains("Denied.") && why.contains("3/h") && why.contains("GET /e2e/x"), "{why}");
    kept(&browser, "explained.png");
    browser.click("#sheet button");
    // Without a script, the same is a page.
    browser.run("location.assign(document.querySelector('#tail a').href)");
    browser.until("location.pathname === '/explain' && document.getElementById('answer')");
    audited(&browser);

    // The key is boosted, and passes again.
    browser.go(&at(&format!("{own}#keys-title")));
    browser.click(".keys tbody th a");
    browser.until("location.pathname === '/key'");
    audited(&browser);
    browser.fill("#factorPercent", "300");
    browser.fill("#boost-reason", "a launch");
    browser.click("#boost button");
    browser.until("document.querySelector('.notice')");
    assert!(text(&browser, ".record").contains("to 300%"));
    assert_eq!(check(&daemon, "/e2e/x", "42"), 200);

    // The rule is changed as YAML, and put back.
    browser.go(&at(&format!("{own}/edit?as=yaml")));
    audited(&browser);
    browser.fill("#yaml", "name: e2e\nmatch: { path: \"/e2e/**\" }\nper: [user]\nlimit: 1/h\n");
    browser.click("form.grid button.primary");
    browser.until_told(".diff", "1/h");
    browser.click("form.actions button.primary");
    browser.until("document.querySelector('.notice')");
    assert_eq!([check(&daemon, "/e2e/x", "7"), check(&daemon, "/e2e/x", "7")], [200, 429]);
    browser.click("#history a[href$='rollback?version=1']");
    browser.until("document.querySelector('.diff')");
    browser.click("form.actions button.primary");
    browser.until_told(".notice", "Rolled back");
    browser.until_told("pre.yaml", "limit: 3/h");
    assert_eq!(check(&daemon, "/e2e/x", "7"), 200);

    for path in ["/rules", "/keys", "/exemptions", "/usage", "/tokens", "/explain"] {
        browser.go(&at(path));
        audited(&browser);
    }
    assert_eq!(browser.complaints(), [""; 0], "the policy for content holds");
}
