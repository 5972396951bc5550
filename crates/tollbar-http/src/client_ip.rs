//! The client's address, which nobody can choose for himself.
//!
//! The peer of the connection, unless that is a proxy of ours. Then it is whom our proxies have seen:
//! what they have written is at the right end of the header, and what the client has written himself
//! is to the left of it and never looked at.

mod forwarded;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::num::NonZeroU32;

use http::{HeaderMap, HeaderName, header};
use tollbar_rules::{Cidr, address_part};

/// The most entries that are looked at, from the right: more proxies than anybody has in a row.
const ENTRIES_MAX: usize = 64;

/// The longest address with a port: `[` + 45 + `]:65535`.
const NODE_BYTES_MAX: usize = 53;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Whose word is taken for who the client is.
///
/// ```
/// use http::HeaderMap;
/// use tollbar_http::ClientIp;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client_ip = ClientIp::behind_proxies(["10.0.0.0/8".parse()?]);
/// let mut headers = HeaderMap::new();
/// // The client claims to be somebody else; the proxy has appended who it really is.
/// headers.insert("x-forwarded-for", "192.0.2.1, 203.0.113.7".parse()?);
/// let proxy = Some("10.1.2.3".parse()?);
/// assert_eq!(client_ip.of(proxy, &headers), Some("203.0.113.7".parse()?));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIp {
    trust: ProxyTrust,
    /// Whether a peer without an address, behind a Unix socket, is a proxy.
    trusts_nameless: bool,
    header: ForwardingHeader,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ProxyTrust {
    Nobody,
    Blocks(Box<[Cidr]>),
    /// So many proxies, whoever they are.
    Hops(NonZeroU32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ForwardingHeader {
    XForwardedFor,
    Forwarded,
}

impl ClientIp {
    /// The peer is the client: there is no proxy. No header is believed.
    #[must_use]
    pub fn peer() -> Self {
        Self {
            trust: ProxyTrust::Nobody,
            trusts_nameless: false,
            header: ForwardingHeader::XForwardedFor,
        }
    }

    /// Proxies are those with an address in one of `blocks`; the client is the first, from the
    /// right, who is not one.
    #[must_use]
    pub fn behind_proxies(blocks: impl IntoIterator<Item = Cidr>) -> Self {
        Self { trust: ProxyTrust::Blocks(blocks.into_iter().collect()), ..Self::peer() }
    }

    /// Every request passes exactly `count` proxies, each of which appends the address it has seen.
    ///
    /// For proxies whose addresses are not known. Whoever can reach the service around them can
    /// claim any address, so see to it that nobody can.
    #[must_use]
    pub fn trusted_hops(count: NonZeroU32) -> Self {
        Self { trust: ProxyTrust::Hops(count), ..Self::peer() }
    }

    /// A peer without an address, such as one behind a Unix socket, is a proxy too.
    #[must_use]
    pub fn trusting_nameless_peers(self) -> Self {
        Self { trusts_nameless: true, ..self }
    }

    /// Reads `Forwarded` (RFC 7239) and not `X-Forwarded-For`. Of the two only one is ever read:
    /// the other is not written by the proxy, and so by the client.
    #[must_use]
    pub fn by_forwarded(self) -> Self {
        Self { header: ForwardingHeader::Forwarded, ..self }
    }

    /// Returns the header from which addresses are read: `X-Forwarded-For` or `Forwarded`.
    #[must_use]
    pub fn header(&self) -> &'static HeaderName {
        match self.header {
            ForwardingHeader::XForwardedFor => &X_FORWARDED_FOR,
            ForwardingHeader::Forwarded => &header::FORWARDED,
        }
    }

    /// True where `peer` is a proxy of ours, so that headers which it sets can be believed.
    #[must_use]
    pub fn trusts(&self, peer: Option<IpAddr>) -> bool {
        match (&self.trust, peer) {
            (ProxyTrust::Nobody, _) => false,
            (ProxyTrust::Hops(_), _) => true,
            (ProxyTrust::Blocks(_), None) => self.trusts_nameless,
            (ProxyTrust::Blocks(blocks), Some(peer)) => contains(blocks, peer),
        }
    }

    /// The client's address. `None` where neither the peer nor a proxy has told one.
    ///
    /// An entry that is no address ends the search: the client is then the last one whose address
    /// was told. Addresses of IPv4 in IPv6 clothes come out as IPv4.
    #[must_use]
    pub fn of(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        let peer = peer.map(|peer| peer.to_canonical());
        if !self.trusts(peer) {
            return peer;
        }
        match self.header {
            ForwardingHeader::XForwardedFor => {
                self.walk(peer, entries(headers, &X_FORWARDED_FOR), address)
            }
            ForwardingHeader::Forwarded => {
                self.walk(peer, entries(headers, &header::FORWARDED), forwarded::address)
            }
        }
    }

    /// From the peer on to the left, as long as it is known who speaks.
    fn walk<'h>(
        &self,
        peer: Option<IpAddr>,
        entries: impl Iterator<Item = &'h [u8]>,
        address: impl Fn(&[u8]) -> Option<IpAddr>,
    ) -> Option<IpAddr> {
        let mut client = peer;
        match &self.trust {
            ProxyTrust::Nobody => {}
            ProxyTrust::Blocks(blocks) => {
                for entry in entries {
                    let Some(address) = address(entry) else {
                        break;
                    };
                    client = Some(address);
                    if !contains(blocks, address) {
                        break;
                    }
                }
            }
            ProxyTrust::Hops(count) => {
                // Entries within the count were written by proxies, whatever they say.
                for entry in entries.take(count.get() as usize) {
                    client = address(entry).or(client);
                }
            }
        }
        client
    }
}

impl Default for ClientIp {
    fn default() -> Self {
        Self::peer()
    }
}

fn contains(blocks: &[Cidr], address: IpAddr) -> bool {
    blocks.iter().any(|block| block.contains(address))
}

/// The entries of all lines of a header, the last first.
///
/// Commas separate also where they stand between quotes: no address has one in it, and a quote that
/// a client has opened would otherwise swallow what proxies append.
fn entries<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h [u8]> {
    let lines = headers.get_all(name).iter().rev();
    lines
        .flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','))
        .take(ENTRIES_MAX)
        .map(<[u8]>::trim_ascii)
        // A list may have empty elements, which mean nothing.
        .filter(|entry| !entry.is_empty())
}

/// `203.0.113.7`, `203.0.113.7:1234`, `2001:db8::7`, `[2001:db8::7]`, `[2001:db8::7]:1234`.
fn address(node: &[u8]) -> Option<IpAddr> {
    // A zone is of the machine that wrote it.
    if node.len() > NODE_BYTES_MAX || node.contains(&b'%') {
        return None;
    }
    let node = std::str::from_utf8(node).ok()?;
    Some(address_part(node)?.parse::<IpAddr>().ok()?.to_canonical())
}
