//! Bounds how many connections of a listener one address may hold, so that one client cannot take them all.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use tollbar_http::ClientIp;

use super::Peer;

/// The connections that each address holds. IPv6 addresses count by their /64, which one client has to itself.
#[derive(Debug)]
pub struct AddressSlots {
    count_max: u32,
    /// Trusted proxies pass on connections of many clients, so they are not counted.
    exempt: ClientIp,
    /// Has at most one entry for each open connection: an address that holds none is removed.
    held: Mutex<HashMap<IpAddr, u32>>,
}

/// One connection of an address. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct AddressSlot {
    slots: Arc<AddressSlots>,
    network: IpAddr,
}

/// An address holds as many connections as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{network} holds {count_max} connections already (--max-connections-per-address)")]
pub(crate) struct TooManyConnections {
    network: IpAddr,
    count_max: u32,
}

impl AddressSlots {
    pub(crate) fn new(count_max: u32, exempt: ClientIp) -> Arc<Self> {
        Arc::new(Self { count_max, exempt, held: Mutex::default() })
    }

    /// Takes a slot for a connection of `peer`. Returns `None` for peers that are not counted.
    pub(crate) fn take(
        self: &Arc<Self>,
        peer: Peer,
    ) -> Result<Option<AddressSlot>, TooManyConnections> {
        let Peer::Tcp(address) = peer else { return Ok(None) };
        if self.exempt.trusts(Some(address.ip())) {
            return Ok(None);
        }
        let network = network(address.ip());
        let mut held = self.held();
        let count = held.entry(network).or_default();
        if *count >= self.count_max {
            return Err(TooManyConnections { network, count_max: self.count_max });
        }
        *count += 1;
        Ok(Some(AddressSlot { slots: Arc::clone(self), network }))
    }

    fn held(&self) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.slots.held().entry(self.network) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Returns what an address is counted as: IPv4 as it is, IPv6 by its first 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::Tcp((address.parse::<IpAddr>().unwrap(), 1).into())
    }

    #[test]
    fn an_address_holds_its_share_and_no_more() {
        let slots = AddressSlots::new(2, ClientIp::peer());
        for same in [
            ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1"],
            ["2001:db8::1", "2001:db8::2:0:0:1", "2001:db8::ffff"],
        ] {
            let held = [slots.take(peer(same[0])).unwrap(), slots.take(peer(same[1])).unwrap()];
            assert!(held.iter().all(Option::is_some));
            assert!(slots.take(peer(same[2])).is_err(), "{same:?}");
            assert!(slots.take(peer("192.0.2.2")).is_ok(), "another address");
            assert!(slots.take(peer("2001:db8:0:1::1")).is_ok(), "another /64");
            drop(held);
            assert!(slots.held().is_empty(), "nothing is kept of an address that is gone");
        }
    }

    #[test]
    fn trusted_proxies_and_unix_sockets_are_not_counted() {
        let proxies = ClientIp::behind_proxies(["10.0.0.0/8".parse().unwrap()]);
        let slots = AddressSlots::new(1, proxies);
        for peer in [peer("10.1.2.3"), Peer::Unix] {
            assert!(slots.take(peer).unwrap().is_none());
        }
        assert!(slots.take(peer("192.0.2.1")).unwrap().is_some());
    }
}
