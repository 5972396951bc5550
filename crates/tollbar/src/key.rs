//! Keys: what is limited, as bytes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What a request is counted under: any bytes, an address or a number. Never allocates.
///
/// ```
/// use std::net::Ipv4Addr;
/// use tollbar::{Limiter, Policy};
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let limiter = Limiter::new(Policy::token_bucket("10/s")?);
/// let client = Ipv4Addr::new(203, 0, 113, 7);
/// let name = String::from("user:42");
/// for decision in [
///     limiter.check("user:42"),
///     limiter.check(&name),
///     limiter.check(b"any bytes"),
///     limiter.check(client),
///     limiter.check(42_u64),
/// ] {
///     assert!(decision.is_allowed());
/// }
/// # Ok(())
/// # }
/// ```
///
/// An address is its octets; one that was mapped from IPv4 to IPv6 is the same key as the IPv4
/// address. A number is its octets, the most significant first. Use one kind of key with a limiter,
/// or a prefix: an IPv4 address and a text of the same four bytes are the same key.
#[derive(Clone, Copy)]
pub struct Key<'a>(Repr<'a>);

#[derive(Clone, Copy)]
enum Repr<'a> {
    Borrowed(&'a [u8]),
    Four([u8; 4]),
    Eight([u8; 8]),
    Sixteen([u8; 16]),
}

impl Key<'_> {
    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Borrowed(bytes) => bytes,
            Repr::Four(bytes) => bytes,
            Repr::Eight(bytes) => bytes,
            Repr::Sixteen(bytes) => bytes,
        }
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<&'a K> for Key<'a> {
    #[inline]
    fn from(key: &'a K) -> Self {
        Self(Repr::Borrowed(key.as_ref()))
    }
}

impl From<IpAddr> for Key<'_> {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Self(Repr::Sixteen(address.octets())),
        }
    }
}

impl From<Ipv4Addr> for Key<'_> {
    fn from(address: Ipv4Addr) -> Self {
        Self(Repr::Four(address.octets()))
    }
}

impl From<Ipv6Addr> for Key<'_> {
    fn from(address: Ipv6Addr) -> Self {
        IpAddr::V6(address).into()
    }
}

impl From<u64> for Key<'_> {
    fn from(number: u64) -> Self {
        Self(Repr::Eight(number.to_be_bytes()))
    }
}

impl From<u128> for Key<'_> {
    fn from(number: u128) -> Self {
        Self(Repr::Sixteen(number.to_be_bytes()))
    }
}

impl fmt::Debug for Key<'_> {
    /// Without the bytes, which may be somebody's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.as_bytes().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<'k>(key: impl Into<Key<'k>>) -> Vec<u8> {
        key.into().as_bytes().to_vec()
    }

    #[test]
    fn anything_that_names_a_client_is_a_key() {
        assert_eq!(bytes("user:42"), b"user:42");
        assert_eq!(bytes(&String::from("user:42")), b"user:42");
        assert_eq!(bytes(&[1_u8, 2]), [1, 2]);
        assert_eq!(bytes(7_u64), [0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(bytes(7_u128), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        let four = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));
        assert_eq!(bytes(four), [203, 0, 113, 7]);
        assert_eq!(bytes(Ipv4Addr::new(203, 0, 113, 7).to_ipv6_mapped()), [203, 0, 113, 7]);
        assert_eq!(bytes(Ipv6Addr::LOCALHOST).len(), 16);
    }
}
