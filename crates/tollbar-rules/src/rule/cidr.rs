//! Addresses and blocks of them: `10.0.0.0/8`, `2001:db8::/32`.
//!
//! An IPv4 address in IPv6 clothes (`::ffff:10.0.0.1`) is the IPv4 address. As a subject, an IPv6
//! address counts as its /64: whoever has one address of it has them all.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

/// A block of addresses; a single address is a block of one.
///
/// ```
/// use tollbar_rules::Cidr;
/// # fn main() -> Result<(), tollbar_rules::CidrError> {
/// let block: Cidr = "10.0.0.0/8".parse()?;
/// assert!(block.contains("::ffff:10.1.2.3".parse().unwrap()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr(IpNet);

/// Which addresses a block is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Why a text is not a block of addresses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CidrError {
    /// The address before the `/`.
    #[error(
        "`{text}` is not an address: write one such as `10.0.0.0/8`, `192.0.2.1` or `2001:db8::/32`"
    )]
    Address {
        /// The whole text.
        text: String,
    },
    /// The number after the `/`.
    #[error("`{text}` has no such prefix: write a number of bits from 0 to {bits_max}")]
    Prefix {
        /// The whole text.
        text: String,
        /// How many bits there are.
        bits_max: u32,
    },
    /// Bits beyond the prefix: the writer meant another block, or a single address.
    #[error("`{text}` has bits beyond its prefix: write `{network}`")]
    HostBits {
        /// The whole text.
        text: String,
        /// The block without them.
        network: String,
    },
}

impl Cidr {
    /// True where `address` is in the block.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// True if no address is in both blocks.
    pub(crate) fn is_disjoint_from(&self, other: &Self) -> bool {
        !self.contains(other.0.network()) && !other.contains(self.0.network())
    }

    /// The family and the length of the prefix: blocks that agree in them differ in their network.
    pub(crate) fn shape(&self) -> (Family, u32) {
        (bits_of(self.0.network()).0, u32::from(self.0.prefix_len()))
    }

    /// The address at the top of 128 bits, all bits beyond the prefix zero.
    pub(crate) fn network(&self) -> u128 {
        bits_of(self.0.network()).1
    }
}

/// The family of an address and its bits, at the top of 128.
pub(crate) fn bits_of(address: IpAddr) -> (Family, u128) {
    match address.to_canonical() {
        IpAddr::V4(address) => (Family::V4, u128::from(address.to_bits()) << 96),
        IpAddr::V6(address) => (Family::V6, address.to_bits()),
    }
}

/// The first `prefix_bits` of `bits`, the rest zero.
pub(crate) fn masked(bits: u128, prefix_bits: u32) -> u128 {
    match 128_u32.saturating_sub(prefix_bits) {
        128 => 0,
        beyond => bits >> beyond << beyond,
    }
}

/// The name under which an address is counted: IPv4 as it is, IPv6 by its /64. What is no address
/// is left as it is. A request's own has no port any more.
#[inline]
pub(crate) fn subject_of(address: &str) -> Cow<'_, str> {
    // Without a colon it is IPv4, of which there is one spelling, or no address: as it is.
    if !address.as_bytes().contains(&b':') {
        return Cow::Borrowed(address);
    }
    match address.parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(IpAddr::V4(address)) => Cow::Owned(address.to_string()),
        Ok(IpAddr::V6(address)) => {
            let network = Ipv6Addr::from_bits(masked(address.to_bits(), 64));
            Cow::Owned(format!("{network}/64"))
        }
        Err(_) => Cow::Borrowed(address),
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let quoted = || crate::message::shorten(text);
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| CidrError::Address { text: quoted() })?;
        let written_bits: u8 = if address.is_ipv4() { 32 } else { 128 };
        let refused = || CidrError::Prefix { text: quoted(), bits_max: written_bits.into() };
        let prefix_bits = match prefix {
            None => written_bits,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| refused())?
            }
            Some(_) => return Err(refused()),
        };
        // `::ffff:10.0.0.0/104` is `10.0.0.0/8`; a prefix that cuts into the `ffff` has no name.
        let canonical = address.to_canonical();
        let hidden_bits = if canonical.is_ipv4() { written_bits - 32 } else { 0 };
        let prefix_bits = prefix_bits.checked_sub(hidden_bits).ok_or_else(refused)?;
        let block = IpNet::new(canonical, prefix_bits).map_err(|_| refused())?;
        let network = block.trunc();
        if block == network {
            Ok(Self(block))
        } else {
            Err(CidrError::HostBits { text: quoted(), network: network.to_string() })
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_its_addresses_and_no_others() {
        let table: &[(&str, &[&str], &[&str])] = &[
            (
                "10.0.0.0/8",
                &["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3"],
                &["11.0.0.0", "::1"],
            ),
            ("0.0.0.0/0", &["255.1.2.3", "::ffff:1.2.3.4"], &["::1", "2001:db8::1"]),
            ("192.0.2.1", &["192.0.2.1"], &["192.0.2.2"]),
            ("::/0", &["::1", "2001:db8::1"], &["1.2.3.4"]),
            ("2001:db8::/32", &["2001:db8:ffff::1"], &["2001:db9::"]),
            ("::ffff:10.0.0.0/104", &["10.9.9.9"], &["11.0.0.0"]),
        ];
        for (block, inside, outside) in table {
            let block: Cidr = block.parse().unwrap();
            for address in *inside {
                assert!(block.contains(address.parse().unwrap()), "{address} in {block}");
            }
            for address in *outside {
                assert!(!block.contains(address.parse().unwrap()), "{address} not in {block}");
            }
        }
    }

    #[test]
    fn what_is_no_block_is_refused_with_what_to_write() {
        let table = [
            (
                "10.0.0",
                "`10.0.0` is not an address: write one such as `10.0.0.0/8`, `192.0.2.1` or \
                 `2001:db8::/32`",
            ),
            (
                "10.0.0.0/33",
                "`10.0.0.0/33` has no such prefix: write a number of bits from 0 to 32",
            ),
            (
                "10.0.0.0/+8",
                "`10.0.0.0/+8` has no such prefix: write a number of bits from 0 to 32",
            ),
            ("10.1.0.0/8", "`10.1.0.0/8` has bits beyond its prefix: write `10.0.0.0/8`"),
            (
                "2001:db8::1/64",
                "`2001:db8::1/64` has bits beyond its prefix: write `2001:db8::/64`",
            ),
            (
                "::ffff:10.0.0.0/8",
                "`::ffff:10.0.0.0/8` has no such prefix: write a number of bits from 0 to 128",
            ),
        ];
        for (text, message) in table {
            assert_eq!(text.parse::<Cidr>().expect_err(text).to_string(), message);
        }
    }

    #[test]
    fn one_client_has_one_name_however_its_address_is_spelt() {
        let table = [
            ("203.0.113.7", "203.0.113.7"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("::FFFF:cb00:7107", "203.0.113.7"),
            ("2001:DB8:0:1::7", "2001:db8:0:1::/64"),
            ("2001:db8:0:1:ffff::", "2001:db8:0:1::/64"),
            ("unknown", "unknown"),
        ];
        for (spelt, name) in table {
            assert_eq!(subject_of(spelt), name);
        }
    }
}
