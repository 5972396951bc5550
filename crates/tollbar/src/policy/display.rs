//! A policy in words, and whether two are the same.

use std::fmt;
use std::sync::Arc;

use super::{Kind, Policy};

impl PartialEq for Policy {
    /// True where both have the same algorithm, numbers and name. Two custom algorithms are the same
    /// where one is a clone of the other.
    fn eq(&self, other: &Self) -> bool {
        if let (Kind::Custom(mine), Kind::Custom(theirs)) = (&self.kind, &other.kind) {
            return Arc::ptr_eq(mine, theirs) && self.name == other.name;
        }
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        self.write_code(&mut mine) && other.write_code(&mut theirs) && mine == theirs
    }
}

impl fmt::Display for Policy {
    /// The algorithm and its main numbers: `token_bucket 10/s, burst 50`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.algorithm().name())?;
        match self.rate {
            Some(rate) => write!(f, "{rate}")?,
            None => write!(f, "{}", self.limit())?,
        }
        if let Some(length) = self.queue_length() {
            write!(f, ", queue {length}")?;
        } else if self.capacity() != self.limit() {
            write!(f, ", burst {}", self.capacity())?;
        }
        if let Some(ttl) = self.lease_ttl() {
            write!(f, ", lease {ttl:?}")?;
        }
        match self.name() {
            Some(name) => write!(f, " `{name}`"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_policy_says_what_it_is() {
        let bucket = Policy::token_bucket("10/s").unwrap();
        let permits = Policy::concurrency(3).unwrap().leased(Duration::from_secs(30)).unwrap();
        let cases = [
            (bucket.clone(), "token_bucket 10/s"),
            (bucket.with_burst(50).unwrap().with_name("api"), "token_bucket 10/s, burst 50 `api`"),
            (Policy::fixed_window("450/15min").unwrap(), "fixed_window 450/15min"),
            (Policy::leaky_queue("0.5/s", 3).unwrap(), "leaky_queue 0.5/s, queue 3"),
            (permits, "leased_concurrency 3, lease 30s"),
        ];
        for (policy, text) in cases {
            assert_eq!(policy.to_string(), text);
        }
    }

    #[test]
    fn policies_are_the_same_where_they_count_the_same() {
        let bucket = || Policy::token_bucket("10/s").unwrap();
        assert_eq!(bucket(), bucket());
        assert_ne!(bucket(), bucket().with_name("a"));
        assert_ne!(bucket(), bucket().with_burst(11).unwrap());
        assert_ne!(bucket(), Policy::leaky_bucket("10/s").unwrap());
    }
}
