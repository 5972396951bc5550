//! As many open files as connections may need: asked of the system at the start, when it can still be
//! told that there are not enough.

use thiserror::Error;

/// For the store, rules, logs and what libraries open.
const SPARE: u64 = 256;

/// The system allows fewer than may be needed.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "--max-connections {connections} on {listeners} listeners may need {needed} open files, and the \
     system allows {allowed}: raise the hard limit (`ulimit -Hn`, `LimitNOFILE=` for systemd), or lower \
     --max-connections"
)]
pub struct TooFewFiles {
    connections: u32,
    listeners: usize,
    needed: u64,
    allowed: u64,
}

/// Raises the soft limit as far as needed, also for so many connections to an upstream.
pub fn raise_limit(
    connections: u32,
    listeners: usize,
    to_upstream: usize,
) -> Result<(), TooFewFiles> {
    let needed = u64::from(connections) * listeners as u64 + to_upstream as u64 + SPARE;
    let allowed = rlimit::increase_nofile_limit(needed).unwrap_or_default();
    if allowed < needed {
        return Err(TooFewFiles { connections, listeners, needed, allowed });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_connections_are_allowed_and_a_million_listeners_are_not() {
        assert_eq!(raise_limit(1, 1, 0), Ok(()));
        let error = raise_limit(1_000_000, 1_000_000, 0).unwrap_err().to_string();
        assert!(error.starts_with("--max-connections 1000000 on 1000000 listeners may need "));
    }
}
