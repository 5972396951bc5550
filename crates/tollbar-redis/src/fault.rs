//! What is wrong with the servers of a store, in the words of the server, and what to do about it.
//!
//! A fault stays until somebody acts, or until a server is back. How a check fails is
//! [`RedisStoreError`]'s subject; who finds faults is `store::probe`'s.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::RedisStoreError;

/// What is wrong, on one server or on several.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFault {
    /// What it is.
    pub kind: FaultKind,
    /// The servers that have it, by address.
    pub nodes: Vec<Arc<str>>,
    /// What was found, with the server's own words.
    pub detail: String,
    /// What to do about it.
    pub advice: String,
}

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// A server, or a master of a cluster, cannot be reached. Checks of its counters are not decided.
    Unreachable,
    /// No master of the cluster serves some slots. Checks of their counters are not decided.
    Unserved,
    /// A server is there and refuses. Checks are not decided.
    Refused(RefusalReason),
    /// A server may evict counters to make room, and each counter that goes forgives what it had charged.
    Evicts,
    /// Another process counts in this namespace under another secret, so that both admit the whole limit.
    OtherSecret,
    /// More checks were under way at once than may be. Those above are not decided.
    Overloaded,
    /// Requests across slots of a cluster are not looked after: charges of a process that died do not come back, or
    /// so many are due that new ones cannot be remembered. Checks are decided.
    Unrecovered,
}

/// Why a server refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalReason {
    /// It has reached `maxmemory`.
    OutOfMemory,
    /// The user lacks a permission.
    NoPermission,
    /// There is no such user, or its password is another one.
    NotAuthenticated,
    /// It is a replica.
    ReadOnly,
    /// A key of ours holds something that is no counter.
    WrongType,
    /// A counter holds what no check has written.
    CorruptState,
    /// It cannot run a script.
    ScriptError,
    /// It cannot save to its disk, and takes no writes meanwhile.
    NotPersisted,
    /// It has too few replicas, and takes no writes meanwhile.
    NoReplicas,
    /// Its cluster is down.
    ClusterDown,
    /// Anything else.
    Other,
}

/// How often servers have refused, by reason.
#[derive(Debug, Default)]
pub(crate) struct RefusalCounters([AtomicU64; RefusalReason::ALL.len()]);

/// What the advice about a fault depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdviceContext<'a> {
    /// The user that connects.
    pub(crate) user: &'a str,
    /// The permissions that it needs.
    pub(crate) permissions: &'a str,
    /// What the names of our keys begin with.
    pub(crate) prefix: &'a str,
}

impl FaultKind {
    /// The names of all kinds, without the reasons of refusals.
    pub const NAMES: [&'static str; 7] = [
        "unreachable",
        "unserved",
        "refused",
        "evicts",
        "other_secret",
        "overloaded",
        "unrecovered",
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        let [unreachable, unserved, refused, evicts, other_secret, overloaded, unrecovered] =
            Self::NAMES;
        match self {
            Self::Unreachable => unreachable,
            Self::Unserved => unserved,
            Self::Refused(_) => refused,
            Self::Evicts => evicts,
            Self::OtherSecret => other_secret,
            Self::Overloaded => overloaded,
            Self::Unrecovered => unrecovered,
        }
    }

    /// True if checks are not decided because of it, and outage policies answer.
    #[must_use]
    pub fn is_outage(self) -> bool {
        match self {
            Self::Unreachable | Self::Unserved | Self::Refused(_) | Self::Overloaded => true,
            Self::Evicts | Self::OtherSecret | Self::Unrecovered => false,
        }
    }
}

impl RefusalReason {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::OutOfMemory,
        Self::NoPermission,
        Self::NotAuthenticated,
        Self::ReadOnly,
        Self::WrongType,
        Self::CorruptState,
        Self::ScriptError,
        Self::NotPersisted,
        Self::NoReplicas,
        Self::ClusterDown,
        Self::Other,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out_of_memory",
            Self::NoPermission => "no_permission",
            Self::NotAuthenticated => "not_authenticated",
            Self::ReadOnly => "read_only",
            Self::WrongType => "wrong_type",
            Self::CorruptState => "corrupt_state",
            Self::ScriptError => "script_error",
            Self::NotPersisted => "not_persisted",
            Self::NoReplicas => "no_replicas",
            Self::ClusterDown => "cluster_down",
            Self::Other => "other",
        }
    }

    /// Why a server refused, where `error` says that one did.
    pub(crate) fn from_error(error: &RedisStoreError) -> Option<Self> {
        match error {
            RedisStoreError::WrongType { .. } => Some(Self::WrongType),
            RedisStoreError::CorruptState { .. } => Some(Self::CorruptState),
            RedisStoreError::Replica { .. } => Some(Self::ReadOnly),
            RedisStoreError::LostWrite { .. }
            | RedisStoreError::TooOld { .. }
            | RedisStoreError::Garbled => Some(Self::Other),
            RedisStoreError::Server { source } => match source.kind() {
                ErrorKind::AuthenticationFailed => Some(Self::NotAuthenticated),
                // A server that loads its data is back by itself, and so are keys on their way.
                ErrorKind::Server(
                    ServerErrorKind::BusyLoading
                    | ServerErrorKind::NoScript
                    | ServerErrorKind::Moved
                    | ServerErrorKind::Ask
                    | ServerErrorKind::TryAgain,
                ) => None,
                ErrorKind::Server(_) | ErrorKind::Extension => {
                    Some(Self::from_words(&server_words(source)))
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// By what the server said. Redis 7 begins with a code; Redis 6.2 has the code of a command that
    /// failed within a script somewhere in its sentence. A script without a permission has no code.
    pub(crate) fn from_words(words: &str) -> Self {
        const CODES: [(&str, RefusalReason); 14] = [
            ("OOM", RefusalReason::OutOfMemory),
            ("NOPERM", RefusalReason::NoPermission),
            ("can't run this command", RefusalReason::NoPermission),
            ("ACL failure in script", RefusalReason::NoPermission),
            ("can't access at least one of the keys", RefusalReason::NoPermission),
            ("NOAUTH", RefusalReason::NotAuthenticated),
            ("WRONGPASS", RefusalReason::NotAuthenticated),
            ("READONLY", RefusalReason::ReadOnly),
            ("MASTERDOWN", RefusalReason::ReadOnly),
            ("MISCONF", RefusalReason::NotPersisted),
            ("NOREPLICAS", RefusalReason::NoReplicas),
            ("CLUSTERDOWN", RefusalReason::ClusterDown),
            ("user_script", RefusalReason::ScriptError),
            ("running script", RefusalReason::ScriptError),
        ];
        let found = CODES.iter().find(|(code, _)| words.contains(code));
        found.map_or(Self::Other, |(_, reason)| *reason)
    }

    /// True where the counter is at fault, and other counters of the server may be well.
    pub(crate) fn is_of_key(self) -> bool {
        matches!(self, Self::WrongType | Self::CorruptState | Self::ScriptError)
    }

    /// What to do about it.
    pub(crate) fn advice(self, context: &AdviceContext<'_>) -> String {
        let AdviceContext { user, permissions, prefix } = context;
        match self {
            Self::OutOfMemory => "raise `maxmemory` or free memory; keep `maxmemory-policy \
                                  noeviction`, which refuses instead of forgetting counters"
                .to_owned(),
            Self::NoPermission => format!("grant it: ACL SETUSER {user} {permissions}"),
            Self::NotAuthenticated => {
                "correct the user and the password in the address of the store".to_owned()
            }
            Self::ReadOnly => "give the address of the master, or its sentinels; \
                               or make this server the master: REPLICAOF NO ONE"
                .to_owned(),
            Self::WrongType => format!(
                "another program writes keys that begin with `{prefix}`: \
                 give tollbar a namespace of its own and delete the key"
            ),
            Self::CorruptState => format!(
                "delete the counter, and find out which program writes keys that begin with `{prefix}`"
            ),
            Self::ScriptError => {
                "see what the server says of its scripts: tollbar needs Redis 6.2, or Valkey".to_owned()
            }
            Self::NotPersisted => {
                "free space on its disk and look into its log; it takes no writes until a save succeeds"
                    .to_owned()
            }
            Self::NoReplicas => "bring its replicas back, or lower `min-replicas-to-write`".to_owned(),
            Self::ClusterDown => "bring the missing masters back; with `cluster-require-full-coverage \
                                  no` the others serve their slots meanwhile"
                .to_owned(),
            Self::Other => "do what the server says".to_owned(),
        }
    }
}

/// What the server said, as it said it.
pub(crate) fn server_words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

impl RefusalCounters {
    pub(crate) fn count(&self, reason: RefusalReason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> [(RefusalReason, u64); RefusalReason::ALL.len()] {
        RefusalReason::ALL.map(|reason| (reason, self.0[reason as usize].load(Ordering::Relaxed)))
    }
}

impl fmt::Display for StoreFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {}", self.detail, self.advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Redis 7.0, Redis 6.2 and Valkey 9.1 say of the same fault.
    #[test]
    fn a_reason_is_found_in_the_words_of_old_and_new_servers() {
        for (words, reason) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", RefusalReason::OutOfMemory),
            (
                "ERR Error running script (call to f_23): @user_script:1: @user_script: 1: -OOM \
                 command not allowed when used memory > 'maxmemory'.",
                RefusalReason::OutOfMemory,
            ),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                RefusalReason::NoPermission,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 23, \
                 on @user_script:1.",
                RefusalReason::NoPermission,
            ),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned",
                RefusalReason::NoPermission,
            ),
            (
                "ERR ACL failure in script: User default has no permissions to run the 'set' command \
                 script: on @user_script:95.",
                RefusalReason::NoPermission,
            ),
            ("READONLY You can't write against a read only replica.", RefusalReason::ReadOnly),
            ("NOREPLICAS Not enough good replicas to write.", RefusalReason::NoReplicas),
            ("MISCONF Redis is configured to save RDB snapshots", RefusalReason::NotPersisted),
            ("CLUSTERDOWN The cluster is down", RefusalReason::ClusterDown),
            ("ERR user_script:1: oh no script: 70, on @user_script:1.", RefusalReason::ScriptError),
            ("ERR max number of clients reached", RefusalReason::Other),
        ] {
            assert_eq!(RefusalReason::from_words(words), reason, "{words}");
        }
    }

    #[test]
    fn every_reason_has_a_counter_and_a_name_of_its_own() {
        let counters = RefusalCounters::default();
        for reason in RefusalReason::ALL {
            counters.count(reason);
        }
        assert!(counters.read().iter().all(|(_, count)| *count == 1));
        let names: std::collections::BTreeSet<&str> =
            RefusalReason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), RefusalReason::ALL.len());
    }

    #[test]
    fn a_missing_permission_is_answered_with_the_line_that_grants_it() {
        let context = AdviceContext { user: "limiter", permissions: "+get ~t*", prefix: "t" };
        let advice = RefusalReason::NoPermission.advice(&context);
        assert_eq!(advice, "grant it: ACL SETUSER limiter +get ~t*");
    }
}
