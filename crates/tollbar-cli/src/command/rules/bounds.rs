//! `tollbar rules bounds`: what each limit of a file admits in any interval, as numbers.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tollbar::parse_duration;
use tollbar_daemon::protocol::http::BoundsResponse;
use tollbar_rules::{AdmittedTokens, LimitBounds};

use super::read;
use crate::command::table::Table;
use crate::command::{EXIT_CODES, ExitStatus};

#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct BoundsArgs {
    /// The file of rules
    file: PathBuf,

    /// The lengths of the intervals
    #[arg(long, value_name = "TIMES", default_value = "1s,1min,1h", value_delimiter = ',',
          value_parser = length)]
    over: Vec<Duration>,

    /// How many nodes share the limits, in place of what the file says
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    nodes: Option<u64>,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLE: &str = "\
Example:
  tollbar rules bounds rules.yaml --over 1s,10min --nodes 4

Tokens that one subject gets: AT MOST whatever is asked, AT LEAST if it always asks. The first two columns hold while
the store answers, the last two while it does not, by the rule's on_store_failure.";

impl BoundsArgs {
    pub(crate) fn run(self) -> ExitStatus {
        let rules = match read(&self.file) {
            Ok(file) => file.rules,
            Err(exit_status) => return exit_status,
        };
        let node_count = self.nodes.unwrap_or(rules.node_count());
        let bounds = rules.with_node_count(node_count).bounds(&self.over);
        if self.json {
            match serde_json::to_string_pretty(&BoundsResponse::new(&bounds)) {
                Ok(text) => println!("{text}"),
                Err(error) => eprintln!("{error}"),
            }
        } else {
            print!("{}", text(&bounds));
        }
        ExitStatus::Success
    }
}

fn length(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// A row for each limit and interval, and below them why limits are exact that should be something else.
fn text(bounds: &[LimitBounds]) -> String {
    let mut table = Table::new(&[
        "RULE",
        "TIER",
        "LIMIT",
        "ALGORITHM",
        "ACCURACY",
        "IN ANY",
        "AT MOST",
        "AT LEAST",
        "STORE DOWN: AT MOST",
        "AT LEAST",
    ]);
    let mut notes = Vec::new();
    for limit in bounds {
        let accuracy = &limit.accuracy;
        let mode = match &accuracy.exact_because {
            Some(_) => "exact".to_owned(),
            None => accuracy.written.to_string(),
        };
        for interval in &limit.intervals {
            let AdmittedTokens { most, least, .. } = interval.answering;
            let AdmittedTokens { most: most_down, least: least_down, .. } = interval.unreachable;
            let start = [
                limit.rule.clone(),
                limit.tier.clone().unwrap_or_default(),
                limit.limit.clone(),
                limit.algorithm.unwrap_or_default().to_owned(),
                mode.clone(),
                format!("{:?}", interval.length),
            ];
            let numbers = [most, least, most_down, least_down].map(tokens);
            table.row(start.into_iter().chain(numbers));
        }
        if accuracy.exact_because.is_some() {
            notes.push(format!("`{}` of rule `{}`: {accuracy}\n", limit.limit, limit.rule));
        }
    }
    format!("{}{}", table.text("no rule is enabled"), notes.concat())
}

fn tokens(bound: Option<u64>) -> String {
    bound.map_or_else(|| "unbounded".to_owned(), |tokens| tokens.to_string())
}
