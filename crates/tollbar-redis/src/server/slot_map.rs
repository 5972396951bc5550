//! In which of the 16,384 slots of a cluster a name lies, and who serves which slot, as `CLUSTER SLOTS` says.

use std::ops::RangeInclusive;

use redis::Value;

/// The number of slots of a cluster.
pub(crate) const SLOT_COUNT: u16 = 16_384;

/// The slot: CRC-16 (XMODEM) of what is between the first brace and the next closing one, if there is
/// something; else of the whole name.
pub(crate) fn slot_of(name: &[u8]) -> u16 {
    let tag = name.iter().position(|byte| *byte == b'{').and_then(|open| {
        let after = &name[open + 1..];
        let len = after.iter().position(|byte| *byte == b'}').filter(|len| *len > 0)?;
        Some(&after[..len])
    });
    crc16(tag.unwrap_or(name)) % SLOT_COUNT
}

/// The runs of slots for which `is_in` holds.
pub(crate) fn ranges_where(is_in: impl Fn(u16) -> bool) -> Vec<RangeInclusive<u16>> {
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    for slot in (0..SLOT_COUNT).filter(|slot| is_in(*slot)) {
        match ranges.last_mut() {
            Some(last) if *last.end() + 1 == slot => *last = *last.start()..=slot,
            _ => ranges.push(slot..=slot),
        }
    }
    ranges
}

/// Ranges of slots as text, `0-5460, 7000`: the first few of them.
pub(crate) fn describe_ranges(ranges: &[RangeInclusive<u16>]) -> String {
    const SHOWN_MAX: usize = 8;
    let shown = ranges.iter().take(SHOWN_MAX).map(|range| match range.start() {
        start if start == range.end() => start.to_string(),
        start => format!("{start}-{}", range.end()),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    match ranges.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more ranges"),
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    })
}

/// An address as clusters tell it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeAddress {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl NodeAddress {
    /// `host:port`, as in a redirection. A node that does not know its own host leaves it out: it is the
    /// one that was asked.
    pub(crate) fn parse(text: &str, asked_host: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        // Of IPv6 it may write the address in brackets.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.is_empty() || host == "?" { asked_host } else { host };
        Some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }
}

/// Slots and the master that serves them.
pub(crate) type Range = (RangeInclusive<u16>, NodeAddress);

/// What a node that was asked at `asked_host` answers; `None` where that is something else.
pub(crate) fn parse(answer: &Value, asked_host: &str) -> Option<Vec<Range>> {
    let Value::Array(rows) = answer else {
        return None;
    };
    rows.iter().map(|row| range(row, asked_host)).collect()
}

fn range(row: &Value, asked_host: &str) -> Option<Range> {
    let Value::Array(parts) = row else {
        return None;
    };
    // The master comes first, its replicas follow.
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else {
        return None;
    };
    let [host, Value::Int(port), ..] = &master[..] else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        Value::Nil => "",
        _ => return None,
    };
    let host = if host.is_empty() || host == "?" { asked_host } else { host };
    let slots = u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?;
    let is_valid = slots.start() <= slots.end() && *slots.end() < SLOT_COUNT;
    let address = NodeAddress { host: host.to_owned(), port: u16::try_from(*port).ok()? };
    is_valid.then_some((slots, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `CLUSTER KEYSLOT` says.
    #[test]
    fn slots_are_those_of_a_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"tollbar1{foo}bar"), 12_182);
        assert_eq!(slot_of(b"{}foo"), slot_of(b"{}foo"));
        assert_ne!(slot_of(b"{}foo"), slot_of(b"{}bar"));
    }

    #[test]
    fn slots_are_told_in_ranges() {
        let ranges = ranges_where(|slot| slot < 3 || slot == 7 || slot >= 16_382);
        assert_eq!(ranges, [0..=2, 7..=7, 16_382..=16_383]);
        assert_eq!(describe_ranges(&ranges), "0-2, 7, 16382-16383");
        let many = ranges_where(|slot| slot % 2 == 0);
        assert!(describe_ranges(&many).ends_with("14 and 8184 more ranges"));
        assert_eq!(describe_ranges(&[]), "");
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn row(first: i64, last: i64, host: Value, port: i64) -> Value {
        let replica = Value::Array(vec![text("10.0.0.9"), Value::Int(9)]);
        let master = Value::Array(vec![host, Value::Int(port), text("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), master, replica])
    }

    #[test]
    fn masters_are_found_and_those_without_a_host_are_where_they_were_asked() {
        let answer =
            Value::Array(vec![row(0, 99, text("10.0.0.1"), 7), row(100, 16_383, Value::Nil, 8)]);
        let ranges = parse(&answer, "here").unwrap();
        let at = |host: &str, port| NodeAddress { host: host.to_owned(), port };
        assert_eq!(ranges, [(0..=99, at("10.0.0.1", 7)), (100..=16_383, at("here", 8))]);
    }

    #[test]
    fn what_is_no_map_is_refused() {
        for row in [
            row(0, 16_384, text("h"), 1),
            row(-1, 5, text("h"), 1),
            row(6, 5, text("h"), 1),
            row(0, 5, text("h"), 65_536),
            row(0, 5, Value::Int(1), 1),
            Value::Nil,
        ] {
            assert_eq!(parse(&Value::Array(vec![row]), "here"), None);
        }
        assert_eq!(parse(&Value::Nil, "here"), None);
    }

    #[test]
    fn redirections_are_read() {
        let parsed =
            |text| NodeAddress::parse(text, "here").map(|address| (address.host, address.port));
        assert_eq!(parsed("10.0.0.1:7000"), Some(("10.0.0.1".to_owned(), 7_000)));
        assert_eq!(parsed(":7000"), Some(("here".to_owned(), 7_000)));
        assert_eq!(parsed("::1:7000"), Some(("::1".to_owned(), 7_000)));
        assert_eq!(parsed("[::1]:7000"), Some(("::1".to_owned(), 7_000)));
        assert_eq!(parsed("7000"), None);
        assert_eq!(parsed("h:70000"), None);
    }
}
