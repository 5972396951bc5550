//! Envoy's protocol: the daemon beside a tonic service of the same shape that decides nothing. What
//! gRPC costs is the same for both, so what is seen is the limiter.

use std::fs;
use std::io;
use std::process::{Command, ExitCode};
use std::time::Duration;

use prost::Message;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use tollbar_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollbar_proto::v1::limiter_server::LimiterServer;
use tonic::{Request, Response, Status};

use super::grpc;
use super::h2::{CallTemplate, Http2Load, KEY};
use super::peers::{program, target};
use super::process::{ServerProcess, free_port};
use super::{CPU, KEY_COUNT, RATE, ServerResults};

pub(super) const BY_FILES: &str = "tollbar, RLS";
pub(super) const BY_RULES: &str = "tollbar, RLS by rules";
pub(super) const EMPTY: &str = "tonic, RLS that decides nothing";

/// The verb by which this program serves the one that decides nothing.
pub(crate) const SERVE_EMPTY: &str = "serve-empty-rls";

/// Calls of one connection at once.
pub(super) const IN_FLIGHT: [usize; 2] = [1, 8];

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

const LIMITS: &str = "\
domain: bench
descriptors: [{ key: user, rate_limit: { unit: hour, requests_per_unit: 10000000 } }]
";
const RULES: &str = "rules: [{ name: per_user, per: [user], limit: 1000000/s, burst: 1000000 }]\n";

/// Both, as they run.
pub(super) struct EnvoyContest {
    subjects: [EnvoySubject; 5],
    servers: [ServerProcess; 2],
}

/// Who is asked for what.
struct EnvoySubject {
    name: &'static str,
    path: &'static str,
    message: Vec<u8>,
    port: u16,
    /// Which of the servers.
    server: usize,
}

impl EnvoyContest {
    pub(super) fn start() -> io::Result<Self> {
        let (ours, empty) = (free_port()?, free_port()?);
        let (limits, rules) =
            (target()?.join("bench-envoy.yaml"), target()?.join("bench-rls.yaml"));
        fs::write(&limits, LIMITS)?;
        fs::write(&rules, RULES)?;
        let mut tollbar = Command::new(program()?);
        tollbar.arg("serve").arg("--envoy-config").arg(limits).arg("--rules").arg(rules);
        tollbar.args(["--grpc", &format!("127.0.0.1:{ours}")]);
        tollbar.env("TOLLBAR_LISTEN", "off").env("TOLLBAR_RESP", "off");
        let mut tonic = Command::new(std::env::current_exe()?);
        tonic.args([SERVE_EMPTY, &empty.to_string()]);
        let servers =
            [ServerProcess::start(&mut tollbar, ours)?, ServerProcess::start(&mut tonic, empty)?];
        let subject = |name, path, message, server| {
            let port = [ours, empty][server];
            EnvoySubject { name, path, message, port, server }
        };
        let subjects = [
            subject(BY_FILES, PATH, request("bench").encode_to_vec(), 0),
            subject(EMPTY, PATH, request("bench").encode_to_vec(), 1),
            subject(BY_RULES, PATH, request("ruled").encode_to_vec(), 0),
            subject(grpc::OURS, grpc::PATH, grpc::request(), 0),
            subject(grpc::EMPTY, grpc::PATH, grpc::request(), 1),
        ];
        Ok(Self { subjects, servers })
    }

    /// All of them once.
    pub(super) fn round(&self, duration: Duration, results: &mut ServerResults) -> io::Result<()> {
        for in_flight in IN_FLIGHT {
            for EnvoySubject { name, path, message, port, server } in &self.subjects {
                let (name, server) = (*name, *server);
                let call = CallTemplate::new(path, message)?;
                let mut load = Http2Load::connect(*port, &call)?;
                let before = self.servers[server].cpu_s();
                let load_result = load.closed(in_flight, KEY_COUNT, duration)?;
                let mut add = |metric, figure| {
                    results.entry((name, in_flight, metric)).or_default().push(figure);
                };
                add(RATE, load_result.answers / load_result.elapsed_s);
                if let (Some(before), Some(after)) = (before, self.servers[server].cpu_s()) {
                    add(CPU, (after - before) * 1e6 / load_result.answers);
                }
            }
        }
        Ok(())
    }
}

fn request(domain: &str) -> RateLimitRequest {
    let entry = Entry { key: "user".to_owned(), value: KEY.to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: domain.to_owned(), descriptors: vec![descriptor], hits_addend: 1 }
}

/// Answers what a limiter would, always.
struct FixedRateLimitService;

#[tonic::async_trait]
impl RateLimitService for FixedRateLimitService {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let status = |_| DescriptorStatus {
            code: Code::Ok as i32,
            current_limit: Some(RateLimit {
                name: String::new(),
                requests_per_unit: 10_000_000,
                unit: 3,
            }),
            limit_remaining: 9_999_999,
            duration_until_reset: Some(prost_types::Duration { seconds: 1_800, nanos: 0 }),
            quota: None,
        };
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok as i32,
            statuses: request.into_inner().descriptors.iter().map(status).collect(),
            ..RateLimitResponse::default()
        }))
    }
}

/// Serves the one that decides nothing, until it is killed.
pub(crate) fn serve_empty(args: &[&str]) -> ExitCode {
    let Some(port) = args.first().and_then(|arg| arg.parse::<u16>().ok()) else {
        return crate::args::refuse("it needs a port");
    };
    let served = tokio::runtime::Builder::new_multi_thread().enable_all().build().map(|runtime| {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let services = tonic::transport::Server::builder()
            .add_service(RateLimitServiceServer::new(FixedRateLimitService))
            .add_service(LimiterServer::new(grpc::FixedLimiter));
        runtime.block_on(services.serve(address))
    });
    match served {
        Ok(Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
