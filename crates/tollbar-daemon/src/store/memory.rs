//! The flags that say how large the store in memory is.

use clap::Args;
use tollbar::{MemoryStore, MemoryStoreBuilder};

use crate::count_flag::count;

/// A request is charged under up to 32 keys at once, and each can be in one of 8 places. Of 300 requests
/// with 32 keys, 20 did not fit a store for 32 keys, and 3 one for 48; from 64 on all did.
const MAX_KEYS_MIN: u64 = 1_000;

/// How much there is room for. What is not said is the library's to choose.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "fields have the names of their flags")]
pub(super) struct MemoryFlags {
    /// How many keys the memory store has room for, at 32 bytes each. At least 1,000, so that the keys of
    /// one request never take each other's places
    #[arg(long, env = "TOLLBAR_MAX_KEYS", value_name = "COUNT", default_value_t = 1_000_000,
          value_parser = count::<u64>(MAX_KEYS_MIN..=1_000_000_000))]
    max_keys: u64,

    /// How many keys with a longer state the memory store has room for: those of strict windows (290 bytes
    /// each), logs and leases (150 bytes and what their stamps or leases take), and warm-ups. As many open
    /// reservations fit as well. A quarter of --max-keys by default
    #[arg(long, env = "TOLLBAR_MAX_WIDE_KEYS", value_name = "COUNT",
          value_parser = count::<u64>(1..=100_000_000))]
    max_wide_keys: Option<u64>,

    /// How many stamps all sliding window logs together have room for in memory, at 8.5 bytes each. 16 for
    /// each wide key by default, and at least 2,560,000
    #[arg(long, env = "TOLLBAR_MAX_LOG_STAMPS", value_name = "COUNT",
          value_parser = count::<u64>(1..=1_000_000_000))]
    max_log_stamps: Option<u64>,

    /// How many leases all keys together have room for in memory, at 17 bytes each. 16 for each wide key by
    /// default, and at least 2,560,000
    #[arg(long, env = "TOLLBAR_MAX_LEASES", value_name = "COUNT",
          value_parser = count::<u64>(1..=1_000_000_000))]
    max_leases: Option<u64>,

    /// How many request ids are remembered in memory, at 100 bytes each, or 260 where a request has two or
    /// three limits. Each lasts for ten minutes: 600,000 by default, for 1,000 ids a second
    #[arg(long, env = "TOLLBAR_MAX_REQUEST_IDS", value_name = "COUNT",
          value_parser = count::<u64>(1..=100_000_000))]
    max_request_ids: Option<u64>,
}

impl MemoryFlags {
    pub(super) fn builder(&self) -> MemoryStoreBuilder {
        let mut builder = MemoryStore::builder().max_keys(size(self.max_keys));
        if let Some(count) = self.max_wide_keys {
            builder = builder.max_wide_keys(size(count));
        }
        if let Some(count) = self.max_log_stamps {
            builder = builder.max_log_stamps(size(count));
        }
        if let Some(count) = self.max_leases {
            builder = builder.max_leases(size(count));
        }
        if let Some(count) = self.max_request_ids {
            builder = builder.max_request_ids(size(count));
        }
        builder
    }
}

fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        memory: MemoryFlags,
    }

    fn builder(args: &[&str]) -> String {
        let line = Line::parse_from([&["tollbar"], args].concat());
        format!("{:?}", line.memory.builder())
    }

    #[test]
    fn each_flag_sizes_its_own_part_of_the_store() {
        let flags = [
            ("--max-keys", "keys_max: 1007,"),
            ("--max-wide-keys", "wide_keys_max: Some(1007),"),
            ("--max-log-stamps", "log_stamps_max: Some(1007),"),
            ("--max-leases", "leases_max: Some(1007),"),
            ("--max-request-ids", "request_ids_max: 1007,"),
        ];
        for (flag, expected) in flags {
            let told = builder(&[flag, "1007"]);
            assert!(told.contains(expected), "{flag}: {told}");
        }
    }

    #[test]
    fn a_store_that_is_too_small_for_one_request_is_refused() {
        let parsed = Line::try_parse_from(["tollbar", "--max-keys", "999"]);
        let error = parsed.err().expect("it is too small").to_string();
        assert!(error.contains("write a whole number from 1000 to 1000000000"), "{error}");
    }

    #[test]
    fn what_is_not_said_is_the_librarys_default() {
        let sizes = |text: &str| text.split(" clock:").next().unwrap_or_default().to_owned();
        assert_eq!(sizes(&builder(&[])), sizes(&format!("{:?}", MemoryStore::builder())));
    }
}
