//! Certificate revocation lists (RFC 5280), and until when each is up to date. rustls checks everything else in them.

use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;

/// A certificate revocation list.
#[derive(Debug, Clone)]
pub struct RevocationList {
    der: CertificateRevocationListDer<'static>,
    next_update: String,
}

impl RevocationList {
    /// Returns the lists of a text in PEM; `None` if one of them cannot be read.
    pub(crate) fn parse_all(pem: &[u8]) -> Option<Vec<Self>> {
        let lists = CertificateRevocationListDer::pem_slice_iter(pem);
        lists.map(|der| Self::new(der.ok()?)).collect()
    }

    fn new(der: CertificateRevocationListDer<'static>) -> Option<Self> {
        let next_update = next_update(&der)?;
        Some(Self { der, next_update })
    }

    /// Returns when a newer list was promised, such as `2026-11-18T12:00:00Z`.
    #[must_use]
    pub fn next_update(&self) -> &str {
        &self.next_update
    }

    pub(crate) fn into_der(self) -> CertificateRevocationListDer<'static> {
        self.der
    }
}

/// Returns the time of the next update, which RFC 5280 requires: the second of the two times behind the version, the
/// algorithm of the signature and the issuer.
fn next_update(der: &[u8]) -> Option<String> {
    let (list, _) = read_element(der, SEQUENCE)?;
    let (mut fields, _) = read_element(list, SEQUENCE)?;
    if fields.first() == Some(&INTEGER) {
        fields = read_element(fields, INTEGER)?.1;
    }
    fields = read_element(fields, SEQUENCE)?.1;
    fields = read_element(fields, SEQUENCE)?.1;
    fields = read_time(fields)?.1;
    Some(read_time(fields)?.0)
}

/// Returns a time in the form of RFC 3339, and what follows it.
fn read_time(der: &[u8]) -> Option<(String, &[u8])> {
    let tag = *der.first()?;
    if tag != UTC_TIME && tag != GENERALIZED_TIME {
        return None;
    }
    let (value, rest) = read_element(der, tag)?;
    let digits = str::from_utf8(value).ok()?.strip_suffix('Z')?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Years of two digits are 1950 to 2049.
    let (year, digits) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let century = if digits < "50" { "20" } else { "19" };
            (format!("{century}{}", &digits[..2]), &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (digits[..4].to_owned(), &digits[4..]),
        _ => return None,
    };
    let part = |at: usize| &digits[at..at + 2];
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(part);
    Some((format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z"), rest))
}

/// Returns the content of the first element, which has this tag, and what follows it.
fn read_element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, first], rest) = der.split_first_chunk()?;
    // Above 127, the byte counts those that hold the length.
    let (length, rest) = match usize::from(first) {
        length @ 0..=0x7F => (length, rest),
        long => {
            let (bytes, rest) = rest.split_at_checked(long - 0x80)?;
            let is_short = bytes.len() <= 4;
            let length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            (is_short.then_some(length)?, rest)
        }
    };
    rest.split_at_checked(length).filter(|_| found == tag)
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
        IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
    };

    use super::*;

    fn list(year: i32, revoked: u64) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let revoked_cert = |serial: u64| RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(year, 12, 31),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: (0..revoked).map(revoked_cert).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&issuer).unwrap().pem().unwrap()
    }

    #[test]
    fn a_list_says_until_when_it_is_up_to_date() {
        // 2050 is the first year that is written with four digits, and long lists have long lengths.
        for (year, revoked) in [(2021, 0), (2049, 3), (2050, 100), (2099, 3_000)] {
            let two = [list(year, revoked), list(2030, 0)].concat();
            let lists = RevocationList::parse_all(two.as_bytes()).unwrap();
            let updates: Vec<&str> = lists.iter().map(RevocationList::next_update).collect();
            assert_eq!(updates, [&*format!("{year}-12-31T00:00:00Z"), "2030-12-31T00:00:00Z"]);
        }
    }

    #[test]
    fn a_list_that_is_cut_off_or_damaged_is_no_list_and_no_panic() {
        let whole = RevocationList::parse_all(list(2030, 2).as_bytes()).unwrap().remove(0).der;
        for end in 0..whole.len().min(120) {
            let _ = next_update(&whole[..end]);
        }
        assert_eq!(next_update(&whole[..60]), None);
        for at in 0..whole.len().min(120) {
            for byte in [0, 0x7F, 0x80, 0x84, 0xFF] {
                let mut damaged = whole.to_vec();
                damaged[at] = byte;
                let _ = next_update(&damaged);
            }
        }
    }
}
