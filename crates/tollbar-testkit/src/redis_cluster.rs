//! A cluster of the test's own: three masters, each with a replica.

use std::process::Command;

use crate::redis_process::{FREE_PORT, RedisProcess};

/// So many servers; half of them are masters.
const NODES: usize = 6;

/// How often the cluster is asked whether it is ready; each time takes some milliseconds.
const QUESTIONS_MAX: usize = 10_000;

/// How long a node may be silent until the others replace it.
const NODE_TIMEOUT_MS: &str = "500";

/// The servers of a cluster; they end with it.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisProcess>,
}

impl RedisCluster {
    /// A cluster whose slots are all served.
    ///
    /// # Panics
    /// If there is no `redis-server` or no `redis-cli`, or if the servers do not find together.
    #[must_use]
    pub fn start() -> Self {
        let nodes: Vec<RedisProcess> = (0..NODES)
            .map(|_| {
                let cluster = ["--cluster-enabled", "yes", "--cluster-port", FREE_PORT];
                let timeout = ["--cluster-node-timeout", NODE_TIMEOUT_MS];
                RedisProcess::start_with(&[&cluster[..], &timeout].concat())
            })
            .collect();
        let cluster = Self { nodes };
        let addresses = cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port()));
        let output = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .expect("redis-cli can be started: it comes with redis-server");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "the cluster was not made:\n{text}");
        cluster.until_each("CLUSTER", "INFO", "every node serves", |info| {
            info.contains("cluster_state:ok")
        });
        // Replicas that are not in touch with their masters cannot take over from them.
        cluster.until_each("INFO", "replication", "every replica follows its master", |info| {
            info.contains("role:master") || info.contains("master_link_status:up")
        });
        cluster
    }

    /// The addresses of all nodes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisProcess::url).collect()
    }

    /// Ends the master that serves `slot`, at once, as `kill -9` does.
    ///
    /// # Panics
    /// If there is none.
    pub fn kill_master_of(&mut self, slot: u16) {
        let slots = ask(&self.nodes[0], &["CLUSTER", "NODES"]);
        let is_owner = |line: &&str| {
            let mut words = line.split(' ');
            let is_master = words.nth(2).is_some_and(|flags| flags.contains("master"));
            let ranges = line.split(' ').skip(8);
            is_master && ranges.filter_map(range).any(|range| range.contains(&slot))
        };
        let line = slots.lines().find(is_owner).expect("every slot has a master");
        let address = line.split([' ', '@']).nth(1).expect("a node has an address");
        let port: u16 =
            address.split(':').next_back().and_then(|it| it.parse().ok()).expect("a port");
        let node = self.nodes.iter_mut().find(|node| node.port() == port);
        node.expect("the node is one of ours").kill();
    }

    fn until_each(&self, command: &str, word: &str, what: &str, is_so: impl Fn(&str) -> bool) {
        for _ in 0..QUESTIONS_MAX {
            if self.nodes.iter().all(|node| is_so(&ask(node, &[command, word]))) {
                return;
            }
        }
        panic!("never happened: {what}");
    }
}

fn ask(node: &RedisProcess, words: &[&str]) -> String {
    let output = Command::new("redis-cli")
        .args(["-p", &node.port().to_string()])
        .args(words)
        .output()
        .expect("redis-cli can be started: it comes with redis-server");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `0-5460`, or one slot alone.
fn range(text: &str) -> Option<std::ops::RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}
