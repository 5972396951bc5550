//! What connections may take: how many, and how long for each of their steps.

use clap::Args;

use crate::count_flag::count;
use crate::duration_flag::DurationFlag;

/// The bounds of every listener, the same for each.
#[derive(Debug, Clone, Copy, Args)]
pub struct Bounds {
    /// How many connections each listener serves at once; more wait to be accepted
    #[arg(long, env = "TOLLBAR_MAX_CONNECTIONS", value_name = "COUNT", default_value_t = 1_024,
          value_parser = count::<u32>(1..=1_000_000))]
    pub max_connections: u32,

    /// For a connection to agree on TLS
    #[arg(long, env = "TOLLBAR_HANDSHAKE_TIMEOUT", value_name = "TIME", default_value = "10s")]
    pub(crate) handshake_timeout: DurationFlag,

    /// For a connection over HTTP to send the next head: also how long an idle one is kept
    #[arg(long, env = "TOLLBAR_HEAD_TIMEOUT", value_name = "TIME", default_value = "30s")]
    pub head_timeout: DurationFlag,

    /// For a request over HTTP to send its body, and for a command over --resp to end once it has begun
    #[arg(long, env = "TOLLBAR_BODY_TIMEOUT", value_name = "TIME", default_value = "10s")]
    pub(crate) body_timeout: DurationFlag,

    /// A connection on which nothing has moved for this long is closed, before it is twice as long
    #[arg(long, env = "TOLLBAR_IDLE_TIMEOUT", value_name = "TIME", default_value = "5min")]
    pub(crate) idle_timeout: DurationFlag,

    /// For connections to end by themselves when the daemon stops
    #[arg(long, env = "TOLLBAR_DRAIN_TIMEOUT", value_name = "TIME", default_value = "10s")]
    pub(crate) drain_timeout: DurationFlag,
}

impl Default for Bounds {
    fn default() -> Self {
        let seconds = |count| DurationFlag(std::time::Duration::from_secs(count));
        Self {
            max_connections: 1_024,
            handshake_timeout: seconds(10),
            head_timeout: seconds(30),
            body_timeout: seconds(10),
            idle_timeout: seconds(300),
            drain_timeout: seconds(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bounds: Bounds,
    }

    #[test]
    fn what_is_not_said_is_the_default() {
        let said = Line::parse_from(["tollbar"]).bounds;
        assert_eq!(format!("{said:?}"), format!("{:?}", Bounds::default()));
    }
}
