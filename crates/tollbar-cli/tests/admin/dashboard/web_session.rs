//! Somebody with a browser's manners and without a browser: a cookie, an origin, forms as they are sent.

use std::net::TcpStream;

use crate::common::http::exchange;
use crate::common::{Daemon, status};

/// Somebody who is signed in, or will be.
pub(crate) struct WebSession {
    address: String,
    cookie: Option<String>,
}

impl WebSession {
    pub(crate) fn new(daemon: &Daemon) -> Self {
        Self { address: daemon.address("admin").to_owned(), cookie: None }
    }

    /// Signed in with a token.
    pub(crate) fn signed_in(daemon: &Daemon, token: &str) -> Self {
        let mut session = Self::new(daemon);
        let answer = session.send("/login", &[("token", token)], "");
        assert_eq!(status(&answer), 303, "{answer}");
        session.cookie = answer.lines().find_map(|line| {
            let cookie = line.strip_prefix("set-cookie: ")?;
            cookie.split(';').next().map(str::to_owned)
        });
        assert!(session.cookie.is_some(), "{answer}");
        session
    }

    /// The whole answer to a page.
    pub(crate) fn get(&self, path: &str) -> String {
        self.exchange(&self.request(path))
    }

    /// The request for a page.
    pub(crate) fn request(&self, path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\n{}\r\n", self.head(""))
    }

    /// The whole answer to a form as a page of ours sends it, with what that page had for this session.
    pub(crate) fn post(&self, path: &str, fields: &[(&str, &str)]) -> String {
        let csrf = self.csrf();
        self.send(path, &[fields, &[("csrf", &csrf)]].concat(), "")
    }

    /// A form as it is, with `lines` among its headers.
    pub(crate) fn send(&self, path: &str, fields: &[(&str, &str)], lines: &str) -> String {
        let body: String =
            form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let origin = if lines.contains("origin:") || lines.contains("sec-fetch-site:") {
            String::new()
        } else {
            format!("origin: http://{}\r\n", self.address)
        };
        let (length, head) = (body.len(), self.head(&format!("{origin}{lines}")));
        self.exchange(&format!(
            "POST {path} HTTP/1.1\r\n{head}content-length: {length}\r\n\r\n{body}"
        ))
    }

    /// What the forms of this session must send along.
    pub(crate) fn csrf(&self) -> String {
        let page = self.get("/rules");
        let csrf =
            page.split("name=\"csrf\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
        csrf.unwrap_or_else(|| panic!("no form in {page}")).to_owned()
    }

    fn head(&self, lines: &str) -> String {
        let cookie =
            self.cookie.as_ref().map_or(String::new(), |cookie| format!("cookie: {cookie}\r\n"));
        format!("host: {}\r\nconnection: close\r\n{cookie}{lines}", self.address)
    }

    fn exchange(&self, request: &str) -> String {
        exchange(TcpStream::connect(&self.address).unwrap(), request)
    }
}

/// Where an answer says to go.
pub(crate) fn location(answer: &str) -> &str {
    let line = answer.lines().find_map(|line| line.strip_prefix("location: "));
    line.unwrap_or_else(|| panic!("goes nowhere: {answer}"))
}
