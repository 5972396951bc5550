//! Spans of checks, for an OpenTelemetry collector. Off unless `--otlp` names one, and free then: a check
//! looks at one pointer.
//!
//! A caller that sends a W3C `traceparent` says whether its check is traced, and the span continues its
//! trace; of the others a share is. A span has the rule and what it said, and no client. Spans wait in a
//! queue of bounded length: while the collector is slow or gone they are dropped, and no check waits.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use clap::Args;
use hyper::Uri;
use hyper::header::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider,
};
use thiserror::Error;
use tollbar::Timestamp;
use tollbar_rules::Verdict;
use tollbar_tls::Connector;
use tonic::transport::{Channel, Endpoint};

use crate::decision_log::DecisionId;
use crate::metrics::{Outcome, ProtocolName};

/// Spans that wait to be sent.
const QUEUE_MAX: usize = 2_048;

/// For a batch of spans to be taken, and for the last of them when the daemon ends.
const EXPORT_TIME_MAX: Duration = Duration::from_secs(5);

/// Whether and where spans go.
#[derive(Debug, Clone, Args)]
pub struct TraceFlags {
    /// Sends spans of some checks to this OpenTelemetry collector, by gRPC, such as
    /// `http://127.0.0.1:4317`
    #[arg(long, env = "TOLLBAR_OTLP", value_name = "URL")]
    otlp: Option<CollectorUrl>,

    /// The share of checks that begin a trace, 0 to 1; whoever sends a traceparent decides for itself
    #[arg(long, env = "TOLLBAR_TRACE_SAMPLE", value_name = "SHARE", default_value = "0.01")]
    trace_sample: SampleShare,
}

/// Where spans are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CollectorUrl(String);

/// A share, as what a random number has to be below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SampleShare(u64);

#[derive(Debug, Error)]
#[error("this is no address of a collector: write one such as http://127.0.0.1:4317")]
struct CollectorUrlError;

#[derive(Debug, Error)]
#[error("this is no share: write one of 0 to 1, such as 0.01")]
struct SampleShareError;

/// Why no spans can be sent.
#[derive(Debug, Error)]
pub enum TracesError {
    #[error("--otlp: {0}")]
    Exporter(ExporterBuildError),
    #[error("--otlp: {0}")]
    Address(#[from] tonic::transport::Error),
    #[error("--otlp: {0}")]
    Tls(#[from] rustls::Error),
}

/// Makes spans and sends them.
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
    share: SampleShare,
}

/// The beginning of the span of a check that is traced.
pub struct CheckSpan {
    parent: Context,
    start: Timestamp,
}

/// A check that is over, for its span.
pub struct FinishedCheck<'a> {
    pub(crate) protocol: ProtocolName,
    pub(crate) outcome: Outcome,
    pub(crate) verdict: &'a Verdict,
    pub(crate) id: DecisionId,
    pub(crate) took: Duration,
}

impl TraceFlags {
    /// What makes spans, where they are wanted. Called on the runtime that is to send them.
    pub fn open(&self) -> Result<Option<Traces>, TracesError> {
        let Some(CollectorUrl(url)) = &self.otlp else {
            return Ok(None);
        };
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(url);
        let exporter = exporter.with_timeout(EXPORT_TIME_MAX);
        let exporter = match url.strip_prefix("https://") {
            Some(host) => exporter.with_channel(secure_channel(url, host)?),
            None => exporter,
        };
        let exporter = exporter.build().map_err(TracesError::Exporter)?;
        let batches = BatchConfigBuilder::default().with_max_queue_size(QUEUE_MAX).build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name("tollbar").with_attribute(version);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_resource(resource.build())
            .build();
        let tracer = provider.tracer("tollbar");
        let propagator = TraceContextPropagator::new();
        Ok(Some(Traces { provider, tracer, propagator, share: self.trace_sample }))
    }
}

/// A channel to a collector whose certificate a public authority has signed.
fn secure_channel(url: &str, host: &str) -> Result<Channel, TracesError> {
    let config = tollbar_tls::client_config(tollbar_tls::public_authorities())?;
    // The connector speaks TLS, and tonic is not to.
    let endpoint = Endpoint::from_shared(format!("http://{host}"))?;
    let endpoint = endpoint.origin(url.parse::<Uri>().unwrap_or_default());
    Ok(endpoint.timeout(EXPORT_TIME_MAX).connect_with_connector_lazy(Connector::new(config)))
}

impl Traces {
    /// The trace that a request is part of, where it says so.
    pub(crate) fn context_of(&self, headers: &HeaderMap) -> Option<Context> {
        headers.contains_key("traceparent").then(|| {
            self.propagator.extract_with_context(&Context::new(), &HeaderExtractor(headers))
        })
    }

    /// Decides whether a check is traced: as its caller says, if that is known here, else by chance.
    pub(crate) fn begin(&self, now: impl FnOnce() -> Timestamp) -> Option<CheckSpan> {
        let parent = Context::current();
        let is_traced = {
            let span = parent.span();
            let caller = span.span_context();
            if caller.is_valid() { caller.is_sampled() } else { self.share.is_hit() }
        };
        is_traced.then(|| CheckSpan { parent, start: now() })
    }

    /// Sends the span of a check that is over. The id of its trace.
    pub(crate) fn end(&self, span: &CheckSpan, finished: &FinishedCheck<'_>) -> u128 {
        let FinishedCheck { protocol, outcome, verdict, id, took } = *finished;
        let mut attributes = vec![
            KeyValue::new("tollbar.listener", protocol.name()),
            KeyValue::new("tollbar.outcome", outcome.name()),
            KeyValue::new("tollbar.decision_id", id.to_string()),
        ];
        if let Some(rule) = verdict.decided_by() {
            attributes.push(KeyValue::new("tollbar.rule", rule.to_owned()));
        }
        if let Some(tier) = verdict.binding().and_then(|decision| decision.tier()) {
            attributes.push(KeyValue::new("tollbar.tier", tier.to_owned()));
        }
        let start = SystemTime::UNIX_EPOCH + Duration::from_micros(span.start.as_micros());
        let mut span = self
            .tracer
            .span_builder("tollbar.check")
            .with_kind(SpanKind::Server)
            .with_start_time(start)
            .with_attributes(attributes)
            .start_with_context(&self.tracer, &span.parent);
        span.end_with_timestamp(start + took);
        u128::from_be_bytes(span.span_context().trace_id().to_bytes())
    }

    /// Sends what waits, within a bound. Blocks.
    pub fn finish(&self) {
        // What could not be sent is lost, and the SDK has told so.
        #[expect(
            clippy::let_underscore_must_use,
            reason = "the exporter has reported its own errors"
        )]
        let _ = self.provider.shutdown_with_timeout(EXPORT_TIME_MAX);
    }
}

impl SampleShare {
    #[expect(clippy::disallowed_methods, reason = "which requests are traced is no secret")]
    fn is_hit(self) -> bool {
        self.0 == u64::MAX || fastrand::u64(..) < self.0
    }
}

impl FromStr for SampleShare {
    type Err = SampleShareError;

    fn from_str(text: &str) -> Result<Self, SampleShareError> {
        let share: f64 = text.parse().map_err(|_| SampleShareError)?;
        if !(0.0..=1.0).contains(&share) {
            return Err(SampleShareError);
        }
        #[expect(clippy::cast_sign_loss, reason = "it is between 0 and 1")]
        let below = (share * u64::MAX as f64) as u64;
        Ok(Self(below))
    }
}

impl FromStr for CollectorUrl {
    type Err = CollectorUrlError;

    fn from_str(text: &str) -> Result<Self, CollectorUrlError> {
        let uri: Uri = text.parse().map_err(|_| CollectorUrlError)?;
        let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        if is_known && is_bare { Ok(Self(text.to_owned())) } else { Err(CollectorUrlError) }
    }
}

struct HeaderExtractor<'h>(&'h HeaderMap);

impl Extractor for HeaderExtractor<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(hyper::header::HeaderName::as_str).collect()
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").field("share", &self.share).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_between_nothing_and_all() {
        for text in ["", "-0.1", "1.1", "NaN", "inf", "1%", "x"] {
            assert!(text.parse::<SampleShare>().is_err(), "{text}");
        }
        let hits = |text: &str| {
            let share: SampleShare = text.parse().unwrap();
            (0..10_000).filter(|_| share.is_hit()).count()
        };
        assert_eq!((hits("0"), hits("1")), (0, 10_000));
        assert!((4_000..6_000).contains(&hits("0.5")));
    }

    #[test]
    fn a_collector_is_an_address_and_nothing_more() {
        for text in ["http://127.0.0.1:4317", "https://collector.example", "http://[::1]:4317/"] {
            assert!(text.parse::<CollectorUrl>().is_ok(), "{text}");
        }
        for text in
            ["", "127.0.0.1:4317", "grpc://x:1", "http://", "http://x/v1/traces", "http://x?y"]
        {
            assert!(text.parse::<CollectorUrl>().is_err(), "{text}");
        }
    }
}
