//! A browser, driven over the `WebDriver` protocol: JSON over HTTP to Debian's `chromedriver`.
//!
//! As little of it as these tests need. Nothing here sleeps: what takes time is waited for in the page.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use base64::Engine;
use serde_json::{Value, json};

/// Headless Chromium, and what drives it.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

/// How long something may take to come true in a page. The machine may have other things to do.
const PATIENCE_MS: u32 = 60_000;

/// How often it is looked whether it has.
const LOOK_EVERY_MS: u32 = 50;

impl Browser {
    pub(crate) fn start() -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("install Debian's chromium and chromium-driver");
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let mut ports = lines.map_while(Result::ok).filter_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let port = ports.next().expect("chromedriver says where it listens");
        let mut browser = Self { driver, port, session: String::new() };
        let flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "timeouts": { "script": PATIENCE_MS, "pageLoad": PATIENCE_MS },
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": flags },
        } } });
        let made = browser.ask("POST", "/session", &wanted);
        made["sessionId"].as_str().expect("a session").clone_into(&mut browser.session);
        browser
    }

    pub(crate) fn go(&self, url: &str) {
        self.command("url", &json!({ "url": url }));
    }

    /// Where it is: the path and what stands behind it.
    pub(crate) fn place(&self) -> String {
        self.run("return location.pathname + location.search").as_str().unwrap().to_owned()
    }

    /// Runs a script in the page.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Returns when an expression is true in the page, looking every few moments: in the page, which is
    /// where time passes.
    pub(crate) fn until(&self, expression: &str) {
        let script = format!(
            "return new Promise(done => setTimeout(() => done(Boolean({expression})), {LOOK_EVERY_MS}))"
        );
        let path = format!("/session/{}/execute/sync", self.session);
        let body = json!({ "script": script, "args": [] });
        let mut latest = Ok(Value::Null);
        for _ in 0..PATIENCE_MS / LOOK_EVERY_MS {
            // A page that gives way to the next takes the question with it.
            latest = self.try_ask("POST", &path, &body);
            if latest == Ok(json!(true)) {
                return;
            }
        }
        panic!("it does not come true: {expression}: {latest:?}");
    }

    /// Returns when an element has this in its text.
    pub(crate) fn until_told(&self, selector: &str, part: &str) {
        let part = json!(part);
        self.until(&format!("document.querySelector('{selector}')?.textContent.includes({part})"));
    }

    /// Writes into a field, instead of what is there.
    pub(crate) fn fill(&self, selector: &str, text: &str) {
        let field = self.find(selector);
        self.command(&format!("element/{field}/clear"), &json!({}));
        self.command(&format!("element/{field}/value"), &json!({ "text": text }));
    }

    /// Clicks, as a person would: on something that can be seen.
    pub(crate) fn click(&self, selector: &str) {
        let element = self.find(selector);
        self.command(&format!("element/{element}/click"), &json!({}));
    }

    /// Presses a key, by its code in the protocol.
    pub(crate) fn press(&self, key: &str) {
        self.command(
            "actions",
            &json!({ "actions": [{ "type": "key", "id": "keys", "actions": [
            { "type": "keyDown", "value": key }, { "type": "keyUp", "value": key },
        ] }] }),
        );
    }

    /// How large the page is shown, and in which theme.
    pub(crate) fn look(&self, width: u32, height: u32, theme: &str) {
        let is_phone = width < 500;
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({
                "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone,
            }),
        );
        self.devtools(
            "Emulation.setEmulatedMedia",
            &json!({
                "features": [{ "name": "prefers-color-scheme", "value": theme }],
            }),
        );
    }

    /// What it looks like, as a PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let picture = self.devtools("Page.captureScreenshot", &json!({ "format": "png" }));
        let data = picture["data"].as_str().unwrap();
        base64::engine::general_purpose::STANDARD.decode(data).unwrap()
    }

    /// What the browser has complained about since it was asked last.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let entries = self.command("se/log", &json!({ "type": "browser" }));
        let is_bad = |entry: &&Value| entry["level"] == "SEVERE" || entry["level"] == "WARNING";
        let entries = entries.as_array().unwrap().iter().filter(is_bad);
        entries.map(|entry| entry["message"].to_string()).collect()
    }

    fn find(&self, selector: &str) -> String {
        let found = self.command("element", &json!({ "using": "css selector", "value": selector }));
        found.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned()
    }

    fn devtools(&self, name: &str, params: &Value) -> Value {
        self.command("goog/cdp/execute", &json!({ "cmd": name, "params": params }))
    }

    fn command(&self, name: &str, body: &Value) -> Value {
        self.ask("POST", &format!("/session/{}/{name}", self.session), body)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.try_ask(method, path, body);
        answer.unwrap_or_else(|error| panic!("{path} {body}: {error}"))
    }

    fn try_ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, Value> {
        let (body, port) = (body.to_string(), self.port);
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        let mut is_well = false;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            is_well |= line.starts_with("HTTP/1.1 200");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer).unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        if is_well { Ok(answer["value"].clone()) } else { Err(answer) }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.ask("DELETE", &format!("/session/{}", self.session), &json!({}));
        }
        // It ends the browser with itself.
        let id = self.driver.id().to_string();
        let _ = Command::new("kill").args(["-s", "TERM", &id]).status();
        let _ = self.driver.wait();
    }
}
