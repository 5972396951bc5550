//! `tollbar nodes`: the daemons over one database, and which rules they enforce.

use clap::Args;
use serde_json::Value;

use super::ExitStatus;
use super::client::ServerFlags;
use super::table::{Table, cell};

#[derive(Debug, Args)]
pub(crate) struct NodesArgs {
    #[command(flatten)]
    server: ServerFlags,
}

impl NodesArgs {
    pub(crate) fn run(self) -> ExitStatus {
        self.server.run(async |client| {
            let nodes = client.get("/v1/rate-limit/nodes").await?;
            Ok(client.show(&nodes, || text(&nodes)))
        })
    }
}

fn text(nodes: &Value) -> String {
    let mut table = Table::new(&["NODE", "REVISION", "SEEN", "STORE", ""]);
    let latest = nodes["revision"].as_u64();
    for node in nodes["items"].as_array().into_iter().flatten() {
        let is_behind = node["revision"].as_u64() < latest;
        let note = if is_behind { "behind" } else { "" };
        let mut cells =
            ["node", "revision", "seenAt", "store"].map(|name| cell(&node[name])).to_vec();
        cells.push(note.to_owned());
        table.row(cells);
    }
    format!("{}revision {}\n", table.text("no node has reported yet"), cell(&nodes["revision"]))
}
