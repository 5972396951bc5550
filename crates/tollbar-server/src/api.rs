//! The HTTP interface without its wire: a method, a path and a body in, a status and JSON out.

mod answer;
mod question;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::json;
use tollbar_rules::{Request, UsageError};

use crate::daemon::Daemon;
pub(crate) use answer::Answer;
use question::{Batch, Question, Reset, ResetFields, parse};

/// The largest body that is read.
pub(crate) const BODY_BYTES_MAX: usize = 256 * 1024;

/// The most requests of one batch.
const BATCH_MAX: usize = 1_000;

/// Every path, its method, and whether it is open to whoever has no token.
const ROUTES: [(&str, &str, bool); 7] = [
    ("/healthz", "GET", true),
    ("/readyz", "GET", true),
    ("/v1/check", "POST", false),
    ("/v1/check/batch", "POST", false),
    ("/v1/peek", "POST", false),
    ("/v1/explain", "POST", false),
    ("/v1/reset", "POST", false),
];

/// One request to the daemon.
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// The header `Authorization`.
    pub(crate) bearer: Option<&'a [u8]>,
    pub(crate) body: &'a [u8],
}

/// Answers what is asked over HTTP.
pub(crate) struct Api {
    daemon: Arc<Daemon>,
}

impl Api {
    pub(crate) fn new(daemon: Arc<Daemon>) -> Self {
        Self { daemon }
    }

    pub(crate) async fn answer(&self, asked: &Asked<'_>) -> Answer {
        let Some((path, method, is_open)) = ROUTES.iter().find(|it| it.0 == asked.path) else {
            return Answer::unknown_path(ROUTES.iter().map(|it| it.0));
        };
        if *method != asked.method {
            return Answer::wrong_method(method);
        }
        if !is_open && !self.is_admitted(asked.bearer) {
            return Answer::unauthorized();
        }
        let answer = match *path {
            "/v1/check" => self.check(asked.body).await,
            "/v1/check/batch" => self.check_batch(asked.body).await,
            "/v1/peek" => self.peek(asked.body).await,
            "/v1/explain" => self.explain(asked.body).await,
            "/v1/reset" => self.reset(asked.body).await,
            // Both: without its store it still answers, as rules say what to answer then.
            _ => Ok(Answer::new(200, json!({ "status": self.daemon.health().word() }))),
        };
        answer.unwrap_or_else(|wrong| wrong)
    }

    fn is_admitted(&self, bearer: Option<&[u8]>) -> bool {
        self.daemon.is_admitted(bearer.and_then(|it| it.strip_prefix(b"Bearer ")))
    }

    async fn check(&self, body: &[u8]) -> Result<Answer, Answer> {
        let question: Question = parse(body)?;
        self.ask(&question, question.cost.unwrap_or(1)).await
    }

    async fn peek(&self, body: &[u8]) -> Result<Answer, Answer> {
        let question: Question = parse(body)?;
        if question.cost.is_some() {
            return Err(Answer::bad_request("a peek charges nothing: leave `cost` out"));
        }
        self.ask(&question, 0).await
    }

    async fn check_batch(&self, body: &[u8]) -> Result<Answer, Answer> {
        let Batch { requests } = parse(body)?;
        if requests.len() > BATCH_MAX {
            let count = requests.len();
            let message = format!("{count} requests are too many: send at most {BATCH_MAX}");
            return Err(Answer::bad_request(&message));
        }
        // All are looked at before the first is charged: a batch with a mistake charges nothing.
        for (at, question) in requests.iter().enumerate() {
            if let Err(error) = question.with_request(1, |_| ()) {
                return Err(Answer::bad_request(&format!("requests[{at}]: {error}")));
            }
        }
        let mut results = Vec::with_capacity(requests.len());
        for question in &requests {
            let Answer { status, mut body, .. } =
                self.ask(question, question.cost.unwrap_or(1)).await?;
            body["status"] = status.into();
            results.push(body);
        }
        Ok(Answer::new(200, json!({ "results": results })))
    }

    async fn ask(&self, question: &Question, cost: u64) -> Result<Answer, Answer> {
        let attributes = question.attributes();
        let request = question.request(&attributes, cost).map_err(|error| refuse(&error))?;
        let answered = self.daemon.check(&request).await;
        Ok(Answer::of_verdict(&answered, self.daemon.now()))
    }

    async fn explain(&self, body: &[u8]) -> Result<Answer, Answer> {
        let question: Question = parse(body)?;
        let attributes = question.attributes();
        let cost = question.cost.unwrap_or(1);
        let request = question.request(&attributes, cost).map_err(|error| refuse(&error))?;
        let explanation = self.daemon.engine.explain_async(&request).await;
        Ok(Answer::new(200, crate::command::explanation_as_json(&explanation)))
    }

    async fn reset(&self, body: &[u8]) -> Result<Answer, Answer> {
        let Reset { rule, question } = parse::<ResetFields>(body)?.split();
        let attributes = question.attributes();
        let request: Request<'_> =
            question.request(&attributes, 1).map_err(|error| refuse(&error))?;
        match self.daemon.engine.reset_async(&rule, &request).await {
            Ok(()) => Ok(Answer::new(200, json!({ "rule": rule, "reset": true }))),
            Err(error @ UsageError::UnknownRule { .. }) => {
                Err(Answer::error(404, "unknown_rule", &error.to_string()))
            }
            Err(error @ UsageError::MissingAttribute { .. }) => {
                Err(Answer::bad_request(&error.to_string()))
            }
            Err(error) => Err(Answer::error(503, "store_unavailable", &error.to_string())),
        }
    }
}

fn refuse(error: &tollbar_rules::RequestError) -> Answer {
    Answer::bad_request(&error.to_string())
}
