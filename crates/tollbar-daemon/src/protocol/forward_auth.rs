//! Forward-auth: a proxy holds a request, asks about it in one of its own, and goes by the status.
//!
//! Most proxies send along whatever their client has sent. So nothing of such a question is believed
//! but the few headers that its [`Profile`] names, which the proxy writes itself, and these only from
//! proxies that are [trusted](ProxyTrust). What is missing or said twice is refused, never guessed.
//!
//! 200 lets the request pass, and nothing else has this status. What an operator has to put right is
//! answered 400: no proxy takes that for leave to pass.
//!
//! Envoy can ask over gRPC as well: see [`ExtAuthz`].

mod ext_authz;
pub mod openapi;
mod profile;
mod profiles;
mod trust;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use tollbar_http::{Denial, Format};
use tollbar_rules::{Admission, Request, Verdict};

use super::http::{ApiResponse, Refusal};
use crate::daemon::Daemon;
use crate::decision_log::{DecisionId, LoggedRequest};
use crate::header_flags::ClientHeaders;
use crate::net::Peer;
use crate::problem::Problem;
pub use ext_authz::ExtAuthz;
pub(crate) use ext_authz::METHOD as EXT_AUTHZ_METHOD;
use profile::{OriginalRequest, Profile};
use profiles::PROFILES;
pub use trust::{ApiKeysError, ProxyFlags, ProxyFlagsError, ProxyTrust};

/// What the paths of all profiles begin with.
pub(crate) const PREFIX: &str = "/v1/forward-auth/";

/// The token of proxies, where one is asked for: `Authorization` is their client's.
const TOKEN: &str = "x-tollbar-token";

/// Answers proxies.
#[derive(Debug)]
pub(crate) struct ForwardAuth {
    daemon: Arc<Daemon>,
    trust: Arc<ProxyTrust>,
}

impl ForwardAuth {
    pub(crate) fn new(daemon: Arc<Daemon>, trust: Arc<ProxyTrust>) -> Self {
        Self { daemon, trust }
    }

    /// The answer to a question whose path begins with [`PREFIX`].
    pub(crate) async fn answer(&self, mut head: Parts, peer: Peer) -> ApiResponse {
        let answer = self.check(&mut head, peer).await;
        answer.unwrap_or_else(|refusal| {
            self.daemon.reject(&refusal.0.detail);
            refusal.answer(format_of(&head.headers))
        })
    }

    /// Checks the request that a question is about. What cannot be decided is refused, and not counted yet.
    async fn check(&self, head: &mut Parts, peer: Peer) -> Result<ApiResponse, Refusal> {
        let forwarded = self.read(head, peer)?;
        self.decide(forwarded, head, self.daemon.queue_waiters.max_wait()).await
    }

    /// Checks a request with these headers, which may wait in a queue for so long.
    async fn decide(
        &self,
        forwarded: ForwardedRequest,
        head: &mut Parts,
        max_wait: Duration,
    ) -> Result<ApiResponse, Refusal> {
        let trust = &*self.trust;
        let ForwardedRequest { profile, method, target, client } = forwarded;
        head.extensions.insert(tollbar_http::Peer(client));
        let attributes = trust.identity.attributes(head, self.daemon.now());
        let pairs: Vec<_> = attributes.iter().collect();
        let mut request = Request::new(&method, &target)?.with_attributes(&pairs)?;
        let described = trust.terms.describe(&head.headers, &mut request);
        described.map_err(|error| Refusal::bad_request(error.to_string()))?;
        let began = self.daemon.begin(request.cost());
        let waiters = &self.daemon.queue_waiters;
        request.set_max_wait(Duration::ZERO);
        let mut admission = self.daemon.decide(&request, None).await;
        let place = waiters.enter(&admission.verdict, &request);
        if place.is_some() {
            request.set_max_wait(max_wait);
            admission = self.daemon.decide(&request, None).await;
        }
        let Admission { verdict, hold } = admission;
        if let Some(refusal) = refuse_permits(&verdict) {
            // A store that cannot be reached gives them back when their leases end.
            if let Some(hold) = hold
                && let Err(error) = self.daemon.engine.release(&hold).await
            {
                self.daemon.report_hold_failure(&error);
            }
            return Err(refusal);
        }
        self.daemon.meter(&verdict, &request);
        self.daemon.conclude(&verdict, &began, || LoggedRequest::from_request(&request));
        let delay = verdict.delay();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        drop(place);
        Ok(self.response(profile, &verdict, began.id, &head.headers))
    }

    /// Reads the question of a proxy that is trusted.
    fn read(&self, head: &Parts, peer: Peer) -> Result<ForwardedRequest, Refusal> {
        let trust = &*self.trust;
        let (profile, rest) = find_profile(head.uri.path())?;
        self.expect_trusted(peer)?;
        let token = profile::single_value(&head.headers, TOKEN).map(str::as_bytes);
        // 400 also where there were too many: no proxy takes that for leave to pass.
        self.daemon.authorize(token, peer).map_err(|wrong| match wrong.retry_after_s {
            Some(seconds) => Refusal::bad_request(Problem::too_many_failures(seconds).detail),
            None => Refusal::bad_request(
                "the token is missing or wrong: have the proxy send `X-Tollbar-Token: ` and a token of \
                 --token-file",
            ),
        })?;
        let OriginalRequest { method, target, client } = profile.read(head, rest, &trust.chain)?;
        Ok(ForwardedRequest {
            profile,
            method: method.to_owned(),
            target: target.to_owned(),
            client,
        })
    }

    /// Refuses a peer that is no trusted proxy.
    fn expect_trusted(&self, peer: Peer) -> Result<(), Refusal> {
        if self.trust.trusts(peer) {
            return Ok(());
        }
        Err(Refusal::bad_request(format!(
            "{} is not a trusted proxy: if it is yours, start the daemon with --trusted-proxies and its \
             address",
            name_of(peer)
        )))
    }

    fn response(
        &self,
        profile: &Profile,
        verdict: &Verdict,
        decision_id: DecisionId,
        headers: &HeaderMap,
    ) -> ApiResponse {
        let ClientHeaders { http: style, jitter, .. } = self.daemon.client_headers;
        let retry_after = jitter.lengthen(verdict);
        let mut answer = if verdict.is_allowed() {
            ApiResponse::new(Bytes::new())
        } else {
            let denial = Denial::new(verdict, retry_after);
            let mut answer = denial.response(format_of(headers));
            *answer.status_mut() = profile.status_of(&denial);
            answer.headers_mut().extend(decision_id.header());
            answer
        };
        style.write(verdict, retry_after, self.daemon.now(), answer.headers_mut());
        answer
    }
}

/// A question that is to be answered.
struct ForwardedRequest {
    profile: &'static Profile,
    method: String,
    target: String,
    client: IpAddr,
}

/// The profile that a path names, and what follows it.
fn find_profile(path: &str) -> Result<(&'static Profile, &str), Refusal> {
    let asked = path.strip_prefix(PREFIX).unwrap_or_default();
    let (name, rest) = asked.split_at(asked.find('/').unwrap_or(asked.len()));
    match PROFILES.iter().find(|profile| profile.name == name) {
        Some(profile) => Ok((profile, rest)),
        None => Err(Refusal::unknown_path(
            PROFILES.iter().map(|profile| format!("{PREFIX}{}", profile.name)),
        )),
    }
}

/// The form of a body. Not gRPC's, whose denials have the status 200, which is leave to pass.
fn format_of(headers: &HeaderMap) -> Format {
    match Format::wanted(headers) {
        Format::Grpc => Format::Json,
        format => format,
    }
}

/// Permits would be held for good, or until their lease ends: no proxy says when a request is over.
fn refuse_permits(verdict: &Verdict) -> Option<Refusal> {
    let mut decisions = verdict.decisions();
    let decision = decisions.find(|decision| decision.limit().policy().has_permits())?;
    let rule = &decision.rule().name;
    Some(Refusal::bad_request(format!(
        "rule `{rule}` limits what is in flight, and a proxy does not say when a request is over: limit \
         by time, or match other paths"
    )))
}

fn name_of(peer: Peer) -> String {
    match peer {
        Peer::Tcp(address) => address.ip().to_canonical().to_string(),
        Peer::Unix => "a peer on a Unix socket".to_owned(),
    }
}

impl Profile {
    /// Only a request that may never pass is told so; any other denial is 429. Above all it is none of the
    /// 5xx, which some proxies can be told to let pass.
    fn status_of(&self, denial: &Denial<'_>) -> StatusCode {
        match (self.denied_as, denial.status()) {
            (Some(status), _) | (None, status @ StatusCode::UNPROCESSABLE_ENTITY) => status,
            _ => StatusCode::TOO_MANY_REQUESTS,
        }
    }
}
