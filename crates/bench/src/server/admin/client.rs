//! Speaks to the admin interface of a daemon: as much HTTP as that takes, on one connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

/// For one answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

pub(super) struct Client {
    stream: BufReader<TcpStream>,
    token: String,
}

/// A page of a list.
pub(super) struct Page {
    pub(super) rows: u64,
    pub(super) next: Option<String>,
}

impl Client {
    pub(super) fn connect(port: u16, token: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        Ok(Self { stream: BufReader::new(stream), token: token.to_owned() })
    }

    /// Makes the rule that all others are made of; its id.
    pub(super) fn make_rule(&mut self) -> io::Result<String> {
        let rule = json!({
            "name": "bench-0", "scope": "endpoint", "pathPattern": "/bench/0",
            "maxRequests": 1_000_000, "windowSeconds": 1,
        });
        let made = self.ask("POST", "/v1/rate-limit/rules", &rule.to_string())?;
        let id = made["ruleId"].as_str().map(str::to_owned);
        id.ok_or_else(|| io::Error::other(format!("no rule was made: {made}")))
    }

    /// Gives a rule another limit.
    pub(super) fn change(&mut self, rule: &str, max_requests: u64) -> io::Result<()> {
        let form = json!({
            "name": "bench-0", "scope": "endpoint", "pathPattern": "/bench/0",
            "maxRequests": max_requests, "windowSeconds": 1,
        });
        let path = format!("/v1/rate-limit/rules/{rule}");
        self.ask("PUT", &path, &form.to_string()).map(drop)
    }

    /// Exempts one from a rule.
    pub(super) fn exempt(&mut self, rule: &str) -> io::Result<()> {
        let form = json!({ "subjectType": "user", "subjectValue": "0" });
        let path = format!("/v1/rate-limit/rules/{rule}/exemptions");
        self.ask("POST", &path, &form.to_string()).map(drop)
    }

    /// A page of all exemptions.
    pub(super) fn exemptions(&mut self, rows: u64, cursor: Option<&str>) -> io::Result<Page> {
        let cursor = cursor.map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
        let path = format!("/v1/rate-limit/exemptions?limit={rows}{cursor}");
        let page = self.ask("GET", &path, "")?;
        let rows = page["items"].as_array().map_or(0, Vec::len) as u64;
        Ok(Page { rows, next: page["nextCursor"].as_str().map(str::to_owned) })
    }

    fn ask(&mut self, method: &str, path: &str, body: &str) -> io::Result<Value> {
        let Self { stream, token } = self;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nif-match: *\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.get_mut().write_all(request.as_bytes())?;
        let mut status = String::new();
        stream.read_line(&mut status)?;
        let mut bytes = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Err(io::Error::other("the daemon has closed the connection"));
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(length) = line.strip_prefix("content-length:") {
                bytes = length.trim().parse().map_err(io::Error::other)?;
            }
        }
        let mut body = vec![0; bytes];
        stream.read_exact(&mut body)?;
        if !status.starts_with("HTTP/1.1 20") {
            let body = String::from_utf8_lossy(&body);
            return Err(io::Error::other(format!("{method} {path}: {} {body}", status.trim_end())));
        }
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }
}

/// Whether the rule of that number binds a request for its path.
pub(super) fn is_limited_by(resp: u16, rule: u64) -> io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", resp))?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    // Its limit is lower than that of the file, so it is the one that binds.
    stream.write_all(format!("TB.PEEK GET /bench/{rule} WITH user 1\r\nQUIT\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.contains(&format!("bench-{rule}\r\n")))
}
