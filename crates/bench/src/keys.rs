//! The keys that are checked, and in which order.
//!
//! A sequence is a `Vec` of strings in the order of access, so that reading the next key is a
//! sequential read for everybody and what is measured is the limiter's own table.

/// A key of 15 bytes: `user:0000123456` for 123,456.
#[must_use]
pub fn key(id: u64) -> String {
    format!("user:{id:010}")
}

/// A small deterministic generator (splitmix64): every subject sees the same sequence.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator of the sequence that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: uniform but for a bias of bound / 2^64.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 up to and without 1.
    pub fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Draws ranks so that rank r (from 1) comes up in proportion to r^-exponent.
#[derive(Debug)]
pub struct Zipf {
    /// The share of the first ranks, rank by rank; the last is 1.
    cumulative: Vec<f64>,
}

impl Zipf {
    /// The distribution over `ranks` ranks.
    #[must_use]
    pub fn new(ranks: u64, exponent: f64) -> Self {
        let mut total = 0.0;
        let mut cumulative: Vec<f64> = (1..=ranks)
            .map(|rank| {
                total += (rank as f64).powf(-exponent);
                total
            })
            .collect();
        for share in &mut cumulative {
            *share /= total;
        }
        Self { cumulative }
    }

    /// A rank from 0, the most frequent, up.
    pub fn rank(&self, random: &mut Random) -> u64 {
        let fraction = random.fraction();
        let rank = self.cumulative.partition_point(|share| *share <= fraction);
        rank.min(self.cumulative.len() - 1) as u64
    }
}

/// How the keys of a sequence are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Every key as likely as any other.
    Uniform,
    /// By Zipf's law with exponent 0.99, as caches and users behave.
    Zipf,
}

/// `accesses` keys out of `key_count`, in the order in which they are checked.
#[must_use]
pub fn sequence(order: Order, key_count: u64, accesses: usize) -> Vec<String> {
    const SEED: u64 = 0x701_1BA2;
    // Prime, so that it has no factor in common with the numbers of keys used: multiplying by it
    // spreads the frequent ranks over all keys, one to one.
    const STRIDE: u64 = 7_368_787;
    let mut random = Random::new(SEED);
    match order {
        Order::Uniform => (0..accesses).map(|_| key(random.below(key_count))).collect(),
        Order::Zipf => {
            let zipf = Zipf::new(key_count, 0.99);
            (0..accesses).map(|_| key(zipf.rank(&mut random) * STRIDE % key_count)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_fifteen_bytes() {
        assert_eq!(key(123_456), "user:0000123456");
        assert_eq!(key(9_999_999).len(), 15);
    }

    #[test]
    fn a_sequence_is_the_same_each_time() {
        assert_eq!(sequence(Order::Uniform, 1_000, 50), sequence(Order::Uniform, 1_000, 50));
        assert_eq!(sequence(Order::Zipf, 1_000, 50), sequence(Order::Zipf, 1_000, 50));
    }

    #[test]
    fn uniform_reaches_nearly_all_keys_about_equally() {
        let mut counts = [0_u32; 100];
        let mut random = Random::new(1);
        for _ in 0..100_000 {
            counts[random.below(100) as usize] += 1;
        }
        // 1,000 expected each, with a standard deviation of 31.
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn zipf_gives_each_rank_its_share() {
        let draws = 200_000;
        let zipf = Zipf::new(1_000, 0.99);
        let mut random = Random::new(2);
        let mut counts = vec![0_u32; 1_000];
        for _ in 0..draws {
            counts[zipf.rank(&mut random) as usize] += 1;
        }
        let weights: f64 = (1..=1_000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for rank in [1_u32, 2, 5, 20] {
            let expected = f64::from(draws) * f64::from(rank).powf(-0.99) / weights;
            let seen = f64::from(counts[rank as usize - 1]);
            assert!((seen / expected - 1.0).abs() < 0.1, "rank {rank}: {seen} of {expected}");
        }
        // The tail is reached too.
        assert!(counts[500..].iter().sum::<u32>() > 0);
    }

    #[test]
    fn frequent_zipf_keys_are_spread_and_distinct() {
        let keys = sequence(Order::Zipf, 1_000_000, 100_000);
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert!(distinct.len() > 20_000, "{} keys", distinct.len());
        let most = keys.iter().filter(|other| **other == key(0)).count();
        // Rank 0 has about 1 in 15 of the draws over a million keys.
        assert!((5_000..9_000).contains(&most), "{most}");
    }
}
