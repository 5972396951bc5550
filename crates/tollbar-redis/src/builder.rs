//! How a store is made.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tollbar::Clock;
use tollbar::remote::{Connector, Deadlines, Gate, Link, RemoteCounters};

use crate::error::RedisStoreError;
use crate::keys::{Colocate, KeyNamer, KeyNames};
use crate::runner::TestClock;
use crate::script::Scripts;
use crate::server::cluster::{Cluster, LinkOptions};
use crate::server::findings::{Findings, LastSeen, ServerCounters};
use crate::server::node::{Connections, Node};
use crate::server::route::{Route, Topology};
use crate::server::tls::Tls;
use crate::store::{RedisStore, RedisStoreParts};

const TIMEOUT_DEFAULT: Duration = Duration::from_millis(25);
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
const FAILURES_MAX_DEFAULT: u32 = 5;
const DENIALS_MAX_DEFAULT: usize = 4_096;
const IN_FLIGHT_MAX_DEFAULT: usize = 16_384;
const SAME_IN_FLIGHT_MAX_DEFAULT: usize = 256;

/// Of all checks that may be under way, those of one key that wait for others of the same key are one in so many at
/// most. So one key leaves room for all others.
const WAITING_DIVISOR: usize = 4;

/// Where the counters are.
pub(crate) enum StoreAddress {
    Server(String),
    Sentinels { urls: Vec<String>, master: String },
    Cluster(Vec<String>),
}

/// A [`RedisStore`] in the making.
pub struct RedisStoreBuilder {
    address: StoreAddress,
    key_names: KeyNames,
    namespace: Option<String>,
    colocate: Option<Colocate>,
    tls: Option<Tls>,
    timeout: Duration,
    connect_timeout: Duration,
    failures_max: u32,
    denials_max: usize,
    max_in_flight: usize,
    same_in_flight_max: usize,
    test_clock: Option<TestClock>,
}

impl RedisStore {
    /// A store at `url`: `redis://[user:password@]host[:port][/database]`, or `unix:///path`.
    #[must_use]
    pub fn builder(url: &str, key_names: KeyNames) -> RedisStoreBuilder {
        RedisStoreBuilder::new(StoreAddress::Server(url.to_owned()), key_names)
    }

    /// A store at the master that sentinels call `master`. These are at `urls`; their user, password and
    /// database are taken to be the master's as well.
    #[must_use]
    pub fn sentinel_builder(urls: &[&str], master: &str, key_names: KeyNames) -> RedisStoreBuilder {
        let urls = urls.iter().map(ToString::to_string).collect();
        RedisStoreBuilder::new(
            StoreAddress::Sentinels { urls, master: master.to_owned() },
            key_names,
        )
    }

    /// A store in the cluster that the servers at `urls` are part of.
    ///
    /// What is counted for one key is in one slot, and so is what
    /// [`colocate_by`](RedisStoreBuilder::colocate_by) brings together. A request under keys of several
    /// slots is charged in each, and given back where one denies: no more passes than may, but for that
    /// moment others may be denied for nothing. One with a request id, or a reservation, takes two round
    /// trips more; what a process leaves behind that dies halfway, others give back.
    #[must_use]
    pub fn cluster_builder(urls: &[&str], key_names: KeyNames) -> RedisStoreBuilder {
        let urls = urls.iter().map(ToString::to_string).collect();
        RedisStoreBuilder::new(StoreAddress::Cluster(urls), key_names)
    }
}

impl RedisStoreBuilder {
    pub(crate) fn new(address: StoreAddress, key_names: KeyNames) -> Self {
        Self {
            address,
            key_names,
            namespace: None,
            colocate: None,
            tls: None,
            timeout: TIMEOUT_DEFAULT,
            connect_timeout: CONNECT_TIMEOUT_DEFAULT,
            failures_max: FAILURES_MAX_DEFAULT,
            denials_max: DENIALS_MAX_DEFAULT,
            max_in_flight: IN_FLIGHT_MAX_DEFAULT,
            same_in_flight_max: SAME_IN_FLIGHT_MAX_DEFAULT,
            test_clock: None,
        }
    }

    /// Counters apart from those of other namespaces: part of every name in Redis, and so of every
    /// counter's memory.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self }
    }

    /// Keys of which `part` is the same are counted in the same slot of a cluster, so that a request
    /// under several of them is charged all or none in one call. By default the whole key.
    ///
    /// Choose what clients cannot choose: whoever has many keys with one part has them on one server.
    #[must_use]
    pub fn colocate_by(self, part: impl Fn(&[u8]) -> &[u8] + Send + Sync + 'static) -> Self {
        Self { colocate: Some(Arc::new(part)), ..self }
    }

    /// Certificates for a URL that begins with `rediss://`: whom to trust, and what to show.
    #[must_use]
    pub fn tls(self, tls: Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// How long a check may take; after that, the limiter's failure policy answers. 25 ms by default.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// How long an attempt to connect may take. A second by default.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// How many checks in a row may miss their deadline before the connection is given up, and
    /// checks fail at once until there is another. 5 by default, at least 1.
    #[must_use]
    pub fn breaker_failures(self, failures_max: u32) -> Self {
        Self { failures_max, ..self }
    }

    /// How many denials are told again without asking the server, each for a second at most: a client
    /// that keeps asking costs it next to nothing. 4,096 by default; 0 for none.
    ///
    /// Where a counter is [reset](tollbar::Store::reset) or refunded by another process, a client that
    /// was denied before may be denied for up to a second more.
    #[must_use]
    pub fn deny_cache(self, denials_max: usize) -> Self {
        Self { denials_max, ..self }
    }

    /// How many checks may be under way at once, of all keys. One more fails at once, is not sent, and the
    /// limiter's failure policy answers: a server that is slow is not buried under what waits for it. That is a
    /// [fault](RedisStore::faults) until 10 seconds have passed without it. 16,384 by default, at least 1.
    #[must_use]
    pub fn max_in_flight(self, max_in_flight: usize) -> Self {
        Self { max_in_flight: max_in_flight.max(1), ..self }
    }

    /// Keeps a stampede on one key from the network: of checks of the same keys at the same time, so many
    /// are sent. The others wait in this process, for half of the [`timeout`](Self::timeout), and are answered by
    /// a denial of one before them, or sent in their turn. 256 by default; 0 sends all of them.
    ///
    /// A check that has waited for so long, or finds that a quarter of [`max_in_flight`](Self::max_in_flight)
    /// wait for the same keys, is denied without a charge
    /// ([`Outcome::Busy`](tollbar::Outcome::Busy)): no key can flood its own checks, or those of other keys, into
    /// the failure policy. So a key that is allowed very much has a bound in each process: with 256 under way and a
    /// round trip of 0.5 ms, 512,000 checks a second.
    #[must_use]
    pub fn max_in_flight_per_key(self, same_in_flight_max: usize) -> Self {
        Self { same_in_flight_max, ..self }
    }

    /// For tests only: decides by `clock` and not by the server's. Counters are kept for `grace`
    /// longer than they need to be, since the server expires them by its own clock. Switches the deny
    /// cache off, which is there for clocks that go forward.
    #[must_use]
    pub fn test_clock(self, clock: impl Clock, grace: Duration) -> Self {
        let test_clock = Some(TestClock { clock: Arc::new(clock), grace });
        Self { test_clock, denials_max: 0, ..self }
    }

    /// Connects, and fails if that does. From then on the store reconnects by itself. Needs a tokio
    /// runtime, which drives its connections for as long as the store lives.
    pub async fn connect(self) -> Result<RedisStore, RedisStoreError> {
        let counters = Arc::default();
        let topology = if let Some(node) = self.node(&counters)? {
            let connections = node.connect().await?;
            Topology::Server(self.link(node, Some(connections)))
        } else {
            let cluster = self.cluster(&counters)?;
            cluster.connect().await?;
            Topology::Cluster(cluster)
        };
        Ok(self.build(topology, counters))
    }

    /// Connects in the background: for programs that must start while Redis is down. Until there is a
    /// connection, checks fail and failure policies answer. Fails only if a URL or a certificate is none.
    ///
    /// # Panics
    /// If it is not called on a tokio runtime.
    pub fn connect_in_background(self) -> Result<RedisStore, RedisStoreError> {
        let counters = Arc::default();
        let topology = if let Some(node) = self.node(&counters)? {
            Topology::Server(self.link(node, None))
        } else {
            let cluster = self.cluster(&counters)?;
            cluster.connect_soon();
            Topology::Cluster(cluster)
        };
        Ok(self.build(topology, counters))
    }

    /// Where there is one server to be asked; `None` for a cluster.
    fn node(&self, counters: &Arc<ServerCounters>) -> Result<Option<Node>, RedisStoreError> {
        let (timeout, tls) = (self.connect_timeout, self.tls.as_ref());
        let findings = Findings::new(Arc::clone(counters));
        Ok(match &self.address {
            StoreAddress::Server(url) => Some(Node::single(url, tls, timeout, findings)?),
            StoreAddress::Sentinels { urls, master } => {
                Some(Node::sentinel(urls, master, tls, timeout, findings)?)
            }
            StoreAddress::Cluster(_) => None,
        })
    }

    fn link(&self, node: Node, first: Option<Connections>) -> Link<Node> {
        Link::new(node, self.failures_max, &Handle::current(), first)
    }

    fn cluster(&self, counters: &Arc<ServerCounters>) -> Result<Cluster, RedisStoreError> {
        let urls = match &self.address {
            StoreAddress::Cluster(urls) => &urls[..],
            StoreAddress::Server(_) | StoreAddress::Sentinels { .. } => &[],
        };
        let link_options = LinkOptions {
            connect_timeout: self.connect_timeout,
            failures_max: self.failures_max,
            runtime: Handle::current(),
            counters: Arc::clone(counters),
        };
        Cluster::new(urls, self.tls.as_ref(), link_options)
    }

    fn build(self, topology: Topology, server_counters: Arc<ServerCounters>) -> RedisStore {
        let deadlines = Deadlines::new(Handle::current(), self.timeout, self.max_in_flight);
        let counters = RemoteCounters::default();
        let overload = LastSeen::default();
        let route = Route { deadlines, topology, counters, server_counters, overload };
        RedisStore::new(RedisStoreParts {
            route: Arc::new(route),
            scripts: Arc::new(Scripts::new()),
            names: KeyNamer::new(self.namespace.as_deref(), self.key_names, self.colocate),
            gate: Gate::with_limits(self.same_in_flight_max, self.max_in_flight / WAITING_DIVISOR)
                .map(Arc::new),
            denials_max: self.denials_max,
            test_clock: self.test_clock,
        })
    }
}

impl std::fmt::Debug for RedisStoreBuilder {
    /// Without its URL, which may hold a password.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("RedisStoreBuilder")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
