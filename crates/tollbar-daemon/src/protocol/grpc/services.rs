//! The list of services that answer on the port: each with what it looks like, so that health and
//! reflection know all of them.

use std::convert::Infallible;
use std::time::Duration;

use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Service, StdError};
use tonic::server::NamedService;
use tonic::service::{Routes, RoutesBuilder};
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_reflection::server::Builder as Reflection;

use crate::shutdown::ShutdownSignal;
use crate::tasks::{IDLE_TURN, Pulse, Task, Tasks};

/// The whole server is asked about by no name.
const ANY_SERVICE: &str = "";

/// How long the task that reports health may say nothing.
const TURN_MAX: Duration = Duration::from_secs(10);

/// Services, as they are put together.
#[derive(Default)]
pub(crate) struct Services {
    routes: RoutesBuilder,
    names: Vec<&'static str>,
    descriptions: Vec<&'static [u8]>,
}

impl Services {
    /// Adds a service, and the encoded `FileDescriptorSet` of its `.proto` with all that it imports.
    pub(crate) fn add<S>(&mut self, service: S, description: &'static [u8])
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
        S: NamedService + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<StdError>,
    {
        self.routes.add_service(service);
        self.names.push(S::NAME);
        self.descriptions.push(description);
    }

    /// All of them, with health and reflection.
    pub(super) fn into_routes(mut self, tasks: &Tasks, stopped: &ShutdownSignal) -> Routes {
        let descriptions = self.descriptions.iter().chain([&tonic_health::pb::FILE_DESCRIPTOR_SET]);
        let reflection = || {
            descriptions.clone().fold(Reflection::configure(), |builder, description| {
                builder.register_encoded_file_descriptor_set(description)
            })
        };
        // They are made when this is built, so they can be read; and if they could not, a daemon
        // that cannot describe itself still limits.
        let (v1, v1alpha) = (reflection().build_v1(), reflection().build_v1alpha());
        if let Ok(service) = v1 {
            self.routes.add_service(service);
        }
        if let Ok(service) = v1alpha {
            self.routes.add_service(service);
        }
        let reporter = HealthReporter::new();
        let health = HealthService::from_health_reporter(reporter.clone());
        self.routes.add_service(tonic_health::pb::health_server::HealthServer::new(health));
        let task = HealthTask { reporter, names: self.names };
        tasks.start("grpc_health", TURN_MAX, stopped, task);
        self.routes.routes().prepare()
    }
}

/// Says `SERVING` until the daemon stops: without its store it answers by the rules' failure policies,
/// which is what it is for.
struct HealthTask {
    reporter: HealthReporter,
    names: Vec<&'static str>,
}

impl Task for HealthTask {
    async fn run(&mut self, pulse: &Pulse, mut stopped: ShutdownSignal) {
        let names: Vec<&str> = self.names.iter().copied().chain([ANY_SERVICE]).collect();
        let mut turns = tokio::time::interval(IDLE_TURN);
        for name in &names {
            self.reporter.set_service_status(*name, ServingStatus::Serving).await;
        }
        loop {
            tokio::select! {
                () = stopped.wait() => break,
                _ = turns.tick() => pulse.succeed(),
            }
        }
        for name in &names {
            self.reporter.set_service_status(*name, ServingStatus::NotServing).await;
            // Ends the calls of those who watch: they would hold the daemon up.
            self.reporter.clear_service_status(name).await;
        }
    }
}
