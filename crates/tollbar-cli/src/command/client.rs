//! Speaks to the admin interface of a daemon: which one, with which token, and what it says to errors.
//! Knows no rule and no path; the commands do.

mod connection;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use form_urlencoded::Serializer;
use hyper::Method;
use serde_json::Value;
use thiserror::Error;

use super::table::visible;
use super::{ExitStatus, print_text};
pub(super) use connection::ServerAddress;
use connection::{ClientCertificate, Connector};
use tollbar_daemon::files;

/// Rows of one page.
const PAGE_ROWS: &str = "1000";

/// The most rows that are shown at once.
const ROWS_MAX: usize = 100_000;

/// How long a daemon may take for one response.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// Which daemon, and who asks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The daemon")]
pub(crate) struct ServerFlags {
    /// The admin interface of the daemon: http://HOST:PORT, https://HOST:PORT or unix:PATH
    #[arg(
        long,
        global = true,
        env = "TOLLBAR_SERVER",
        value_name = "URL",
        default_value = "http://127.0.0.1:8082"
    )]
    server: ServerAddress,

    /// The file that has the token; without it, the variable `TOLLBAR_TOKEN` is the token
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Believes a certificate of the daemon that an authority in this file has signed, in PEM; without
    /// it, those that browsers believe
    #[arg(long, global = true, env = "TOLLBAR_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// The certificate that the daemon is shown, in PEM, for a daemon with --tls-client-ca
    #[arg(
        id = "client_cert",
        long = "cert",
        global = true,
        env = "TOLLBAR_CERT",
        value_name = "FILE",
        requires = "client_key"
    )]
    cert: Option<PathBuf>,

    /// The key of --cert, in PEM
    #[arg(
        id = "client_key",
        long = "key",
        global = true,
        env = "TOLLBAR_KEY",
        value_name = "FILE",
        requires = "client_cert"
    )]
    key: Option<PathBuf>,

    /// Prints JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
}

/// Why a command has not done what it was told.
#[derive(Debug, Error)]
pub(crate) enum ApiError {
    #[error("{0}")]
    InvalidInput(String),
    #[error(
        "cannot reach {server}: {why}: start `tollbar serve --database FILE.sqlite` there, or say where \
         it is by --server or TOLLBAR_SERVER"
    )]
    Unreachable { server: String, why: String },
    #[error("{server} does not answer as an admin interface does: {why}: is it another port?")]
    UnexpectedResponse { server: String, why: String },
    #[error("{0}")]
    Refused(Refusal),
}

/// The problem that the daemon answers with when it refuses a request.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(super) status: u16,
    code: String,
    detail: String,
    errors: Vec<(String, String)>,
}

/// A client of the admin API.
pub(crate) struct Client {
    connector: Connector,
    token: Option<String>,
    pub(super) json: bool,
}

/// One request to the admin API.
pub(super) struct ApiRequest {
    method: Method,
    target: String,
    if_match: Option<String>,
    body: Option<Value>,
}

/// The body of a response, `null` if it has none.
pub(super) type ApiResult = Result<Value, ApiError>;

impl ServerFlags {
    /// Does `what` over a client, and says what went wrong.
    pub(crate) fn run(
        &self,
        what: impl AsyncFnOnce(&Client) -> Result<ExitStatus, ApiError>,
    ) -> ExitStatus {
        let done = self.client().and_then(|client| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| ApiError::InvalidInput(error.to_string()))?;
            runtime.block_on(what(&client))
        });
        done.unwrap_or_else(|error| {
            eprintln!("{error}");
            error.exit_status()
        })
    }

    fn client(&self) -> Result<Client, ApiError> {
        let token = match &self.token_file {
            Some(path) => Some(files::read_to_string(path).map_err(|error| {
                ApiError::InvalidInput(format!(
                    "--token-file: cannot read {}: {error}",
                    path.display()
                ))
            })?),
            None => std::env::var("TOLLBAR_TOKEN").ok(),
        };
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        let certificate =
            ClientCertificate { cert: self.cert.as_deref(), key: self.key.as_deref() };
        let connector = Connector::new(self.server.clone(), self.ca.as_deref(), certificate)
            .map_err(ApiError::InvalidInput)?;
        Ok(Client { connector, token, json: self.json })
    }
}

impl ApiError {
    pub(super) fn exit_status(&self) -> ExitStatus {
        match self {
            Self::InvalidInput(_) => ExitStatus::UsageError,
            Self::Refused(_) => ExitStatus::Refused,
            Self::Unreachable { .. } | Self::UnexpectedResponse { .. } => ExitStatus::Unreachable,
        }
    }
}

impl ApiRequest {
    pub(super) fn new(method: Method, target: impl Into<String>) -> Self {
        Self { method, target: target.into(), if_match: None, body: None }
    }

    pub(super) fn post(target: impl Into<String>, body: Value) -> Self {
        Self { body: Some(body), ..Self::new(Method::POST, target) }
    }

    /// The same, with this body.
    pub(super) fn with_body(self, body: Value) -> Self {
        Self { body: Some(body), ..self }
    }

    /// The same, whichever version it is.
    pub(super) fn if_any_version(self) -> Self {
        Self { if_match: Some("*".to_owned()), ..self }
    }

    /// The same, for that version and no other.
    pub(super) fn if_version(self, version: u64) -> Self {
        Self { if_match: Some(format!("\"{version}\"")), ..self }
    }
}

impl Client {
    pub(super) async fn get(&self, target: &str) -> ApiResult {
        self.send(ApiRequest::new(Method::GET, target)).await
    }

    /// Sends a request and returns the body of the response; `null` if it has none.
    pub(super) async fn send(&self, api_request: ApiRequest) -> ApiResult {
        let (status, body) = self.connector.exchange(&api_request, self.token.as_deref()).await?;
        if !(200..300).contains(&status) {
            return Err(self.refusal(status, &body));
        }
        if body.is_empty() {
            return Ok(Value::Null);
        }
        let unexpected_response =
            |error| self.connector.unexpected_response(format!("this is no JSON: {error}"));
        serde_json::from_slice(&body).map_err(unexpected_response)
    }

    /// Writes what is answered to `to`, as it comes.
    pub(super) async fn copy(&self, target: &str, to: impl Write) -> Result<(), ApiError> {
        let api_request = ApiRequest::new(Method::GET, target);
        match self.connector.copy(&api_request, self.token.as_deref(), to).await? {
            None => Ok(()),
            Some((status, body)) => Err(self.refusal(status, &body)),
        }
    }

    /// Every refusal of an admin interface has a word for programs; what has none is something else's.
    fn refusal(&self, status: u16, body: &[u8]) -> ApiError {
        let refusal = Refusal::read(status, body);
        if refusal.code.is_empty() {
            return self.connector.unexpected_response(format!("the status is {status}"));
        }
        ApiError::Refused(refusal)
    }

    /// Returns the error for a response that no daemon of this version sends.
    pub(super) fn unexpected_response(&self, why: String) -> ApiError {
        self.connector.unexpected_response(why)
    }

    /// Every row of a list, page by page.
    pub(super) async fn items(&self, path: &str, query: &Query) -> Result<Vec<Value>, ApiError> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = query.clone().and("limit", Some(PAGE_ROWS)).and("cursor", cursor.as_deref());
            let mut page = self.get(&page.target(path)).await?;
            let Some(Value::Array(rows)) = page.get_mut("items").map(Value::take) else {
                return Err(self
                    .connector
                    .unexpected_response("there are no `items` in it".to_owned()));
            };
            items.extend(rows);
            if items.len() > ROWS_MAX {
                let message = format!(
                    "there are more than {ROWS_MAX}: ask for fewer, by a flag that narrows it"
                );
                return Err(ApiError::InvalidInput(message));
            }
            cursor = page["nextCursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return Ok(items);
            }
        }
    }

    /// Shows an answer: as JSON where that is wanted, else as `text` makes of it.
    pub(super) fn show(&self, json: &Value, text: impl FnOnce() -> String) -> ExitStatus {
        if self.json {
            print_text(&format!("{json:#}\n"));
        } else {
            print_text(&text());
        }
        ExitStatus::Success
    }
}

/// What narrows a list.
#[derive(Debug, Clone, Default)]
pub(super) struct Query(Vec<(&'static str, String)>);

impl Query {
    pub(super) fn and(mut self, name: &'static str, value: Option<&str>) -> Self {
        self.0.extend(value.map(|value| (name, value.to_owned())));
        self
    }

    pub(super) fn target(&self, path: &str) -> String {
        if self.0.is_empty() {
            return path.to_owned();
        }
        let query = Serializer::new(String::new()).extend_pairs(&self.0).finish();
        format!("{path}?{query}")
    }
}

/// A text as one segment of a path.
pub(super) fn segment(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        if is_plain(byte) {
            segment.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            write!(segment, "%{byte:02X}").unwrap_or_default();
        }
    }
    segment
}

impl Refusal {
    fn read(status: u16, body: &[u8]) -> Self {
        let problem: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let errors = problem["errors"].as_array().into_iter().flatten();
        let errors = errors.map(|error| (text(&error["field"]), text(&error["detail"]))).collect();
        Self { status, code: text(&problem["code"]), detail: text(&problem["detail"]), errors }
    }

    /// What to do, where the daemon cannot know.
    fn advice(&self) -> Option<&'static str> {
        match self.status {
            401 => Some(
                "give a good token by TOLLBAR_TOKEN or --token-file; where all are lost, `tollbar token \
                 create NAME --scope admin --database ..` on the daemon's machine makes one",
            ),
            412 => Some("somebody has changed it meanwhile: look at it and say it again"),
            _ => None,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { status, code, detail, errors } = self;
        let detail = if detail.is_empty() { "it does not say why" } else { detail };
        let [told, code] = [detail, code.as_str()].map(visible);
        write!(f, "the daemon refuses: {told} ({status} {code})")?;
        // Of one field the sentence has said it.
        for (field, detail) in errors.iter().filter(|error| !detail.contains(&error.1)) {
            let [field, detail] = [field, detail].map(|text| visible(text));
            write!(f, "\n  {field}: {detail}")?;
        }
        self.advice().map_or(Ok(()), |advice| write!(f, "\n{advice}"))
    }
}

impl From<io::Error> for ApiError {
    fn from(error: io::Error) -> Self {
        Self::InvalidInput(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_of_a_path_is_one_whatever_it_says() {
        assert_eq!(segment("per_client-1.a~"), "per_client-1.a~");
        assert_eq!(segment("acme/../é ?#%"), "acme%2F..%2F%C3%A9%20%3F%23%25");
    }

    #[test]
    fn a_query_says_what_was_given_and_no_more() {
        let query = Query::default().and("tenant", Some("a&b=c")).and("scope", None);
        assert_eq!(query.target("/x"), "/x?tenant=a%26b%3Dc");
        assert_eq!(Query::default().target("/x"), "/x");
    }

    #[test]
    fn a_refusal_is_a_sentence_with_its_fields_and_what_to_do() {
        let body = br#"{"status":422,"detail":"this is no rule","code":"invalid",
            "errors":[{"field":"maxRequests","detail":"send \u001b1 or more"}]}"#;
        let told = Refusal::read(422, body).to_string();
        let expected = "the daemon refuses: this is no rule (422 invalid)\n  maxRequests: send \u{fffd}1 or more";
        assert_eq!(told, expected);
        let told = Refusal::read(412, br#"{"code":"conflict"}"#).to_string();
        let expected = "the daemon refuses: it does not say why (412 conflict)\nsomebody ";
        assert!(told.starts_with(expected), "{told}");
    }
}
