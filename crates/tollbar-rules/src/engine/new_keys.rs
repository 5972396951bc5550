//! How many new keys one network brings under a rule with `new_keys`.
//!
//! A client that has a /48 of IPv6 has 65,536 blocks of the size that counts as one client, and one that makes up names of
//! users has no end of them. Each new key would have a counter of its own, with its whole limit. Under a rule with
//! `new_keys: 100/min`, a network (an IPv4 /24 or an IPv6 /48) gets that many; the requests of its other new keys share
//! one counter.
//!
//! A key is new if this process has not seen it lately. What it has seen is kept here, apart from the counters, in a table
//! of bounded size: the store is not asked again. Decision 0082.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use ipnet::IpNet;
use tollbar::MemoryStore;

use super::AsyncEngine;
use super::selection::{SelectedLimit, Selection};
use crate::Request;
use crate::matcher::ItemId;
use crate::rule::subject::{KeyBuffer, write_network};
use crate::snapshot::{NewKeyPolicies, Snapshot, VISITS_MAX};

/// How many keys and networks of all such rules are remembered: 16 MB at most, taken as they come.
const REMEMBERED_MAX: usize = 500_000;

/// Whether a look at a key counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visit {
    Counted,
    Peek,
}

impl Visit {
    /// The look that a request takes. A cost of 0 peeks, but not in a reservation, which may be settled for more.
    pub(super) fn by(request: &Request<'_>, is_reservation: bool) -> Self {
        if request.cost() == 0 && !is_reservation { Self::Peek } else { Self::Counted }
    }
}

impl AsyncEngine {
    /// Lets new keys beyond what their rules allow the request's network share a counter.
    #[inline]
    pub(crate) fn share_new_keys(
        &self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        selection: &mut Selection,
        visit: Visit,
    ) {
        if selection.has_new_keys && selection.denial.is_none() {
            self.share_selected(snapshot, request, selection, visit);
        }
    }

    #[cold]
    fn share_selected(
        &self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        selection: &mut Selection,
        visit: Visit,
    ) {
        let Selection { keys, limits, .. } = selection;
        // The limits of one rule stand together, and have one key.
        for limits in limits.chunk_by_mut(|one, other| one.rule == other.rule) {
            // A limit with a `per` of its own counts somebody else.
            let is_of_key = |selected: &SelectedLimit| !selected.has_own_key;
            let Some(&SelectedLimit { rule, key: (start, end), .. }) =
                limits.iter().find(|selected| is_of_key(selected))
            else {
                continue;
            };
            let Some(network) =
                self.shared_network(snapshot, rule, request, &keys[start..end], visit)
            else {
                continue;
            };
            let start = keys.len();
            write_network(network, keys);
            for selected in limits.iter_mut().filter(|selected| is_of_key(selected)) {
                selected.key = (start, keys.len());
            }
        }
    }

    /// Returns the network whose counter a key of a rule shares; `None` for a key with a counter of its own.
    ///
    /// A request without an address is of no network.
    pub(super) fn shared_network(
        &self,
        snapshot: &Snapshot,
        rule: ItemId,
        request: &Request<'_>,
        key: &[u8],
        visit: Visit,
    ) -> Option<IpNet> {
        let plan = snapshot.plan(rule);
        let NewKeyPolicies { visits, arrivals } = plan.new_keys.as_ref()?;
        let network = network_of(request.attribute("ip")?)?;
        let seen = self.seen.get_or_init(|| {
            let builder = MemoryStore::builder().max_keys(REMEMBERED_MAX);
            builder.clock(Arc::clone(&self.clock)).build()
        });
        let left = seen.check_now(key, visits, 0).remaining();
        if left != Some(VISITS_MAX) {
            // A key with as many visits as are remembered has nothing to write.
            if visit == Visit::Counted && left != Some(0) {
                seen.check_now(key, visits, 1);
            }
            return None;
        }
        let bits = network_bits(network);
        let is_within = match visit {
            Visit::Counted => seen.check_now(&bits, arrivals, 1).is_allowed(),
            Visit::Peek => seen.check_now(&bits, arrivals, 0).remaining() != Some(0),
        };
        match (is_within, visit) {
            (true, Visit::Counted) => {
                seen.check_now(key, visits, 1);
            }
            (false, Visit::Counted) => {
                plan.top.new_keys_limited.fetch_add(1, Ordering::Relaxed);
            }
            (_, Visit::Peek) => {}
        }
        (!is_within).then_some(network)
    }

    /// Returns the key of the counter that a key of a rule counts in, if that is the one of its network.
    pub(super) fn shared_key(
        &self,
        snapshot: &Snapshot,
        rule: ItemId,
        request: &Request<'_>,
        key: &[u8],
    ) -> Option<KeyBuffer> {
        let network = self.shared_network(snapshot, rule, request, key, Visit::Peek)?;
        let mut key = KeyBuffer::new();
        write_network(network, &mut key);
        Some(key)
    }
}

/// Returns the network of an address: an IPv4 /24 or an IPv6 /48.
fn network_of(address: &str) -> Option<IpNet> {
    let address = address.parse::<IpAddr>().ok()?.to_canonical();
    let prefix_bits = if address.is_ipv4() { 24 } else { 48 };
    Some(IpNet::new(address, prefix_bits).ok()?.trunc())
}

/// The bytes of a network's address. Those of the two families differ in length.
fn network_bits(network: IpNet) -> ArrayVec<u8, 16> {
    match network.network() {
        IpAddr::V4(address) => address.octets().into_iter().collect(),
        IpAddr::V6(address) => address.octets().into(),
    }
}
