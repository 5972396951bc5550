//! `tollbar rules explain`: which rules apply to a request. Every counter is fresh, because no
//! service is asked.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tollbar::store::block_on;
use tollbar::{Batch, Feature, MemoryStore, Reply, Store, StoreError};
use tollbar_rules::{AsyncEngine, Criticality, InvalidRequest, Request};

use super::read;
use crate::command::{EXIT_CODES, ExitStatus};
use tollbar_daemon::protocol::http::ExplainResponse;

#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct ExplainFileArgs {
    /// The file of rules
    file: PathBuf,

    #[command(flatten)]
    request: RequestFlags,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A request as it is written on a command line.
#[derive(Debug, Args)]
pub(crate) struct RequestFlags {
    /// The request line: a method and a path
    #[arg(long, value_name = "METHOD PATH", value_parser = request_line)]
    pub(crate) request: (String, String),

    /// An attribute of the request, such as user=42; may be given several times
    #[arg(short, long = "attribute", value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) attributes: Vec<(String, String)>,

    /// What the request costs before rules multiply it
    #[arg(long, default_value_t = 1)]
    pub(crate) cost: u64,

    /// How much the request matters: low, normal, high or critical
    #[arg(long, value_parser = criticality)]
    pub(crate) criticality: Option<Criticality>,
}

const EXAMPLE: &str = "\
Example:
  tollbar rules explain rules.yaml --request 'GET /v1/users/7' -a user=42 -a ip=203.0.113.7";

impl ExplainFileArgs {
    pub(crate) fn run(self) -> ExitStatus {
        let file = match read(&self.file) {
            Ok(file) => file,
            Err(exit_status) => return exit_status,
        };
        let attributes: Vec<(&str, &str)> =
            self.request.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
        let request = match self.request.request(&attributes) {
            Ok(request) => request,
            Err(error) => {
                eprintln!("the request cannot be checked: {error}");
                return ExitStatus::UsageError;
            }
        };
        let engine = match AsyncEngine::new(file.rules, Arc::new(FreshStore::new())) {
            Ok(engine) => engine,
            Err(error) => {
                eprintln!("{}: {error}", self.file.display());
                return ExitStatus::Findings;
            }
        };
        let explanation = block_on(engine.explain(&request));
        if self.json {
            match serde_json::to_string_pretty(&ExplainResponse::from_explanation(&explanation)) {
                Ok(text) => println!("{text}"),
                Err(error) => eprintln!("{error}"),
            }
        } else {
            print!("{explanation}");
        }
        ExitStatus::Success
    }
}

/// Counters that nobody has charged. It stands for any store that nodes share, so that the explanation says how
/// exactly they count.
#[derive(Debug)]
struct FreshStore(MemoryStore);

impl FreshStore {
    fn new() -> Self {
        Self(MemoryStore::builder().max_keys(1).build())
    }
}

impl Store for FreshStore {
    fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
        self.0.supports(feature)
    }

    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        self.0.decide(batch)
    }
}

impl RequestFlags {
    fn request<'a>(
        &'a self,
        attributes: &'a [(&'a str, &'a str)],
    ) -> Result<Request<'a>, InvalidRequest> {
        let (method, path) = &self.request;
        let request = Request::new(method, path)?.with_attributes(attributes)?;
        let request = request.with_cost(self.cost);
        Ok(match self.criticality {
            Some(criticality) => request.with_criticality(criticality),
            None => request,
        })
    }
}

fn request_line(text: &str) -> Result<(String, String), String> {
    match text.split_once(' ') {
        Some((method, path)) if path.starts_with('/') => Ok((method.to_owned(), path.to_owned())),
        _ => Err("write a method and a path, such as 'GET /v1/users'".to_owned()),
    }
}

/// Reads `name=value`.
pub(crate) fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write a name, `=` and a value, such as user=42".to_owned()),
    }
}

fn criticality(text: &str) -> Result<Criticality, String> {
    Criticality::of_name(text).ok_or_else(|| "write low, normal, high or critical".to_owned())
}
