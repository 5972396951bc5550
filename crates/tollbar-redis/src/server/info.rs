//! What a server says of itself: its version, its role, and how it makes room.
//!
//! Everything is in `INFO`, which users may ask that may not ask for `CONFIG`.

use redis::Value;

/// The oldest Redis: the first whose `SET` and `TIME` do in scripts what is needed.
const VERSION_MIN: (u32, u32) = (6, 2);

/// The answer to `INFO`, as far as the store needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    /// What it calls its version. Valkey says that it is compatible with a Redis that is new enough.
    pub(crate) version: String,
    /// True where it follows a master and takes no writes.
    pub(crate) is_read_only: bool,
    /// True while it reads its data from disk, and answers nothing else.
    pub(crate) is_loading: bool,
    /// How it makes room, where it may evict keys; `None` where it does not.
    pub(crate) evicts_by: Option<String>,
    /// How many keys it has evicted since it was started.
    pub(crate) evicted_keys: u64,
}

impl ServerInfo {
    pub(crate) fn parse(answer: &Value) -> Self {
        let text: String = redis::from_redis_value_ref(answer).unwrap_or_default();
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.trim_end().split_once(':'));
            lines.find_map(|(found, value)| (found == name).then_some(value)).unwrap_or_default()
        };
        let number = |name: &str| field(name).parse::<u64>().unwrap_or(0);
        // Without a maximum nothing is evicted, whatever the policy. Every policy but one evicts
        // counters: they expire, so the `volatile` ones take them as well.
        let policy = field("maxmemory_policy");
        let evicts = number("maxmemory") > 0 && !matches!(policy, "" | "noeviction");
        Self {
            version: field("redis_version").to_owned(),
            is_read_only: field("role") == "slave" && field("slave_read_only") != "0",
            is_loading: field("loading") == "1",
            evicts_by: evicts.then(|| policy.to_owned()),
            evicted_keys: number("evicted_keys"),
        }
    }

    /// True where the scripts do not run there.
    pub(crate) fn is_too_old(&self) -> bool {
        version_of(&self.version).is_none_or(|version| version < VERSION_MIN)
    }
}

fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ServerInfo {
        ServerInfo::parse(&Value::BulkString(text.as_bytes().to_vec()))
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let is_too_old =
            |version: &str| parse(&format!("redis_version:{version}\r\n")).is_too_old();
        assert!(!is_too_old("6.2.0") && !is_too_old("10.0.1"));
        assert!(is_too_old("6.0.16") && is_too_old("unknown"));
        assert!(ServerInfo::parse(&Value::Nil).is_too_old());
    }

    #[test]
    fn a_version_is_found_in_what_a_server_says_of_itself() {
        let info = parse("# Server\r\nredis_version:7.0.15\r\nredis_mode:cluster\r\n");
        assert_eq!(info.version, "7.0.15");
        assert!(!info.is_read_only && !info.is_loading);
    }

    #[test]
    fn a_replica_that_takes_writes_is_no_reason_to_stop() {
        assert!(parse("role:slave\r\nslave_read_only:1\r\n").is_read_only);
        assert!(!parse("role:slave\r\nslave_read_only:0\r\n").is_read_only);
        assert!(!parse("role:master\r\n").is_read_only);
    }

    #[test]
    fn only_a_server_with_a_maximum_and_a_policy_that_evicts_evicts() {
        let evicts_by = |maximum: u64, policy: &str| {
            parse(&format!("maxmemory:{maximum}\r\nmaxmemory_policy:{policy}\r\n")).evicts_by
        };
        assert_eq!(evicts_by(1, "allkeys-lru").as_deref(), Some("allkeys-lru"));
        assert_eq!(evicts_by(1, "volatile-ttl").as_deref(), Some("volatile-ttl"));
        assert_eq!(evicts_by(0, "allkeys-lru"), None);
        assert_eq!(evicts_by(1, "noeviction"), None);
        assert_eq!(parse("evicted_keys:17\r\n").evicted_keys, 17);
    }
}
