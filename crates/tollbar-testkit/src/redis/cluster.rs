//! A cluster of the test's own: three masters, each with a replica.

use std::ops::RangeInclusive;

use crate::redis::launch::{Launch, Program};
use crate::redis::process::{FREE_PORT, RedisProcess};

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
    launch: Launch,
}

impl RedisCluster {
    /// A cluster whose slots are all served.
    ///
    /// # Panics
    /// If there is no `redis-server` or no `redis-cli`, or if the servers do not find together.
    #[must_use]
    pub fn start() -> Self {
        Self::launch(&Launch::default())
    }

    /// The same of any program, with or without TLS.
    ///
    /// # Panics
    /// As above.
    #[must_use]
    pub fn launch(launch: &Launch) -> Self {
        let nodes: Vec<RedisProcess> = (0..NODES)
            .map(|_| {
                let options =
                    ["--cluster-enabled", "yes", "--cluster-node-timeout", NODE_TIMEOUT_MS];
                let bus_port: &[&str] = match launch.program {
                    // The nodes of older ones talk at 10,000 ports above their own.
                    Program::OldestRedis => &[],
                    Program::Redis | Program::Valkey => &["--cluster-port", FREE_PORT],
                };
                RedisProcess::launch(launch.clone().with(&options).with(bus_port))
            })
            .collect();
        let cluster = Self { nodes, launch: launch.clone() };
        let addresses = cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port()));
        let output = launch
            .client()
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

    /// The masters: their ids, ports and slots.
    ///
    /// # Panics
    /// If no node can be asked.
    #[must_use]
    pub fn masters(&self) -> Vec<Master> {
        let tables = self.nodes.iter().map(|node| self.ask(node.port(), &["CLUSTER", "NODES"]));
        // Of a node that was killed there is none.
        let table = tables.into_iter().find(|table| table.contains("myself"));
        table.expect("some node is there").lines().filter_map(master).collect()
    }

    /// The master that serves `slot`.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn master_of(&self, slot: u16) -> Master {
        let is_owner = |master: &Master| master.slots.iter().any(|range| range.contains(&slot));
        // On a busy machine nodes take each other for dead now and then.
        let mut found = (0..QUESTIONS_MAX).map(|_| self.masters().into_iter().find(is_owner));
        found.find_map(|master| master).expect("every slot has a master")
    }

    /// Moves every slot that has keys to the next master, step by step as people do, while the cluster serves. Returns how
    /// many keys have moved.
    ///
    /// # Panics
    /// If a node refuses.
    #[must_use]
    pub fn move_all_keys(&self) -> usize {
        let masters = self.masters();
        let mut moved = 0;
        // First look, then move: what arrives at a later master is not to go on from there.
        let keys_of = |master: &Master| self.ask(master.port, &["KEYS", "*"]);
        let all: Vec<String> = masters.iter().map(keys_of).collect();
        for (at, keys) in all.iter().enumerate() {
            let (from, to) = (&masters[at], &masters[(at + 1) % masters.len()]);
            for key in keys.lines().filter(|key| !key.is_empty()) {
                let slot = self.ask_well(from.port, &["CLUSTER", "KEYSLOT", key]);
                self.ask_well(to.port, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from.id]);
                self.ask_well(from.port, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to.id]);
                let to_port = to.port.to_string();
                let migrate = ["MIGRATE", "127.0.0.1", &to_port, key, "0", "5000"];
                // A counter that has ended meanwhile is not there.
                moved += usize::from(self.ask_well(from.port, &migrate) == "OK");
                for port in [to.port, from.port] {
                    self.ask_well(port, &["CLUSTER", "SETSLOT", &slot, "NODE", &to.id]);
                }
            }
        }
        moved
    }

    fn ask_well(&self, port: u16, words: &[&str]) -> String {
        let answer = self.ask(port, words);
        assert!(!answer.contains("ERR"), "{words:?}: {answer}");
        answer.trim().to_owned()
    }

    /// Ends the master that serves `slot`, at once, as `kill -9` does. Returns its port.
    ///
    /// # Panics
    /// If there is none.
    pub fn kill_master_of(&mut self, slot: u16) -> u16 {
        let port = self.master_of(slot).port;
        let node = self.nodes.iter_mut().find(|node| node.port() == port);
        node.expect("the node is one of ours").kill();
        port
    }

    /// Starts the node at `port` again. It has lost its counters and kept its slots.
    ///
    /// # Panics
    /// If there is none, or it does not start.
    pub fn restart(&mut self, port: u16) {
        let node = self.nodes.iter_mut().find(|node| node.port() == port);
        node.expect("the node is one of ours").restart();
    }

    /// Asks every node the same.
    ///
    /// # Panics
    /// If there is no `redis-cli`.
    pub fn ask_all(&self, words: &[&str]) {
        for node in &self.nodes {
            println!("{}: {}", node.port(), self.ask(node.port(), words));
        }
    }

    /// What the node at `port` answers.
    ///
    /// # Panics
    /// If there is no `redis-cli`.
    #[must_use]
    pub fn ask(&self, port: u16, words: &[&str]) -> String {
        self.launch.ask(port, words)
    }

    fn until_each(&self, command: &str, word: &str, what: &str, is_so: impl Fn(&str) -> bool) {
        for _ in 0..QUESTIONS_MAX {
            if self.nodes.iter().all(|node| is_so(&self.ask(node.port(), &[command, word]))) {
                return;
            }
        }
        panic!("never happened: {what}");
    }
}

/// A node that serves slots, or could.
#[derive(Debug, Clone)]
pub struct Master {
    /// What the cluster calls it.
    pub id: String,
    /// Where it listens.
    pub port: u16,
    /// What it serves.
    pub slots: Vec<RangeInclusive<u16>>,
}

/// A line of `CLUSTER NODES`: id, address, flags, and from the ninth word on the slots.
fn master(line: &str) -> Option<Master> {
    let words: Vec<&str> = line.split(' ').collect();
    let [id, address, flags, ..] = words[..] else {
        return None;
    };
    let port = address.split('@').next()?.rsplit(':').next()?.parse().ok()?;
    let slots = words.iter().skip(8).filter_map(|word| range(word)).collect();
    // `fail` or `fail?`; a node may also be `nofailover`.
    let has = |wanted: &str| flags.split(',').any(|flag| flag.trim_end_matches('?') == wanted);
    let is_master = has("master") && !has("fail");
    is_master.then(|| Master { id: id.to_owned(), port, slots })
}

/// `0-5460`, or one slot alone.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}
