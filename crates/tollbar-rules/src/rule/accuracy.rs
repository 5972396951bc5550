//! How exactly a rule counts: the field `accuracy`, and what it means for one limit.
//!
//! Who spends loans and counts shares is the store's business (`tollbar-fleet`).

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use tollbar::{Accuracy, LoanError, LoanMode, LoanTerms, Policy};

use crate::Reserve;
use crate::message::shorten;
use crate::rule::cost::whole_digits;

/// The most nodes that share limits.
pub(crate) const NODES_MAX: u64 = 1_000_000;

/// The share of the burst that loans may cost where a rule names none: 5%.
const SHARE_PPM_DEFAULT: u32 = 50_000;
/// The largest share of the burst: 50%. With more, a bucket would hold next to nothing while tokens are lent.
const SHARE_PPM_MAX: u32 = 500_000;
const PPM_PER_PERCENT: u32 = 10_000;

/// How exactly a rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RuleAccuracy {
    /// Every request is charged to the counter itself.
    #[default]
    Exact,
    /// Hot keys are paid from loans, and never admit more than exact counting does.
    Conservative {
        /// The share of its burst that a bucket does without while tokens are lent, in millionths.
        share_ppm: u32,
    },
    /// Hot keys are paid from loans. A bucket admits at most this share of its burst more than exact counting does.
    Optimistic {
        /// The share, in millionths.
        share_ppm: u32,
    },
    /// Each node counts its own part of the limit by itself.
    Local {
        /// How many nodes there are; `None` for those of the [rule set](crate::RuleSet::node_count).
        nodes: Option<u64>,
    },
}

/// Why a text is no accuracy. Says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AccuracyError {
    /// A word that is not known.
    #[error(
        "`{text}` is no accuracy: write `exact`, `conservative(5%)`, `optimistic(5%)`, `local` or `local(4)` for 4 nodes"
    )]
    Unknown {
        /// The text.
        text: String,
    },
    /// A share of the burst that is none.
    #[error(
        "`{text}` is no share of the burst: write one above 0% and up to 50%, such as `conservative(5%)`"
    )]
    Share {
        /// The text.
        text: String,
    },
    /// A number of nodes that is none.
    #[error("`{text}` is no number of nodes: write 1 to {NODES_MAX}, such as `local(4)`")]
    Nodes {
        /// The text.
        text: String,
    },
}

/// Why a limit cannot be counted as its rule says. Says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LimitAccuracyError {
    /// Its tokens cannot be lent.
    #[error(transparent)]
    Loan(#[from] LoanError),
    /// A part of it is reserved. A loan would be spent by requests of any criticality.
    #[error(
        "a limit with a `reserve` is always counted exactly: write `accuracy: exact`, or leave the reserve out"
    )]
    Reserved,
    /// A part of it is less than a token.
    #[error(
        "a limit of {capacity} leaves less than a token for each of {nodes} nodes: write {nodes} or more, or `accuracy: exact`"
    )]
    BelowNodes {
        /// The limit, or the burst of a bucket.
        capacity: u64,
        /// How many nodes share it.
        nodes: u64,
    },
    /// It is one of alternatives.
    #[error(
        "alternatives are counted exactly, because which of them pays is decided in one place: write `accuracy: exact`, or \
         leave it out"
    )]
    Alternatives,
}

impl RuleAccuracy {
    /// Returns how a limit that reserves `reserve` is counted where the rule set has `node_count` nodes.
    ///
    /// # Errors
    /// If the limit cannot be counted so.
    pub fn of_limit(
        self,
        policy: &Policy,
        reserve: Option<Reserve>,
        node_count: u64,
    ) -> Result<Accuracy, LimitAccuracyError> {
        let mode = match self {
            Self::Exact => return Ok(Accuracy::Exact),
            _ if reserve.is_some() => return Err(LimitAccuracyError::Reserved),
            Self::Conservative { share_ppm } => LoanMode::Conservative { share_ppm },
            Self::Optimistic { share_ppm } => LoanMode::Optimistic { share_ppm },
            Self::Local { nodes } => return local(policy, nodes.unwrap_or(node_count)),
        };
        Ok(Accuracy::Loaned(LoanTerms::new(policy, mode)?))
    }

    /// Returns over how many nodes the rule divides its limits: 1 unless it counts by each of them.
    #[must_use]
    pub fn nodes(self, node_count: u64) -> u64 {
        match self {
            Self::Local { nodes } => nodes.unwrap_or(node_count),
            _ => 1,
        }
    }
}

fn local(policy: &Policy, nodes: u64) -> Result<Accuracy, LimitAccuracyError> {
    let any_share = LoanMode::Conservative { share_ppm: SHARE_PPM_DEFAULT };
    match LoanTerms::new(policy, any_share) {
        Err(error @ (LoanError::Algorithm { .. } | LoanError::WarmUp)) => Err(error.into()),
        // What is too small or too short to lend from can be counted by each node all the same.
        _ if policy.capacity() < nodes => {
            Err(LimitAccuracyError::BelowNodes { capacity: policy.capacity(), nodes })
        }
        _ => Ok(Accuracy::Local),
    }
}

impl FromStr for RuleAccuracy {
    type Err = AccuracyError;

    fn from_str(text: &str) -> Result<Self, AccuracyError> {
        let (mode, argument) = match text.strip_suffix(')').and_then(|text| text.split_once('(')) {
            Some((mode, argument)) => (mode, Some(argument)),
            None => (text, None),
        };
        let share = || argument.map_or(Ok(SHARE_PPM_DEFAULT), share_ppm);
        match mode {
            "exact" if argument.is_none() => Ok(Self::Exact),
            "conservative" => Ok(Self::Conservative { share_ppm: share()? }),
            "optimistic" => Ok(Self::Optimistic { share_ppm: share()? }),
            "local" => Ok(Self::Local { nodes: argument.map(nodes).transpose()? }),
            _ => Err(AccuracyError::Unknown { text: shorten(text) }),
        }
    }
}

/// The share of the burst in parentheses.
fn share_ppm(text: &str) -> Result<u32, AccuracyError> {
    let share_ppm = percent_ppm(text).filter(|share_ppm| (1..=SHARE_PPM_MAX).contains(share_ppm));
    share_ppm.ok_or_else(|| AccuracyError::Share { text: shorten(text) })
}

/// `2.5%` as 25,000.
pub(super) fn percent_ppm(text: &str) -> Option<u32> {
    let percent = text.strip_suffix('%')?;
    let (whole, fraction) = percent.split_once('.').unwrap_or((percent, "0"));
    let is_number = |text: &str, length_max: usize| {
        (1..=length_max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    // Four digits after the point are whole millionths.
    if !is_number(whole, 3) || !is_number(fraction, 4) {
        return None;
    }
    format!("{whole}{fraction:0<4}").parse().ok()
}

/// 25,000 as `2.5%`.
pub(crate) fn percent_text(share_ppm: u32) -> String {
    let fraction = format!("{:04}", share_ppm % PPM_PER_PERCENT);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{}{point}{fraction}%", share_ppm / PPM_PER_PERCENT)
}

fn nodes(text: &str) -> Result<u64, AccuracyError> {
    let digits = whole_digits(text).filter(|digits| digits.len() <= 9);
    let nodes = digits.and_then(|digits| digits.parse().ok());
    let nodes = nodes.filter(|nodes| (1..=NODES_MAX).contains(nodes));
    nodes.ok_or_else(|| AccuracyError::Nodes { text: shorten(text) })
}

/// As files write it; what is the default is left out.
impl fmt::Display for RuleAccuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, share_ppm) = match self {
            Self::Exact => return f.write_str("exact"),
            Self::Local { nodes: None } => return f.write_str("local"),
            Self::Local { nodes: Some(nodes) } => return write!(f, "local({nodes})"),
            Self::Conservative { share_ppm } => ("conservative", *share_ppm),
            Self::Optimistic { share_ppm } => ("optimistic", *share_ppm),
        };
        write!(f, "{name}({})", percent_text(share_ppm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (text, written) in [
            ("exact", "exact"),
            ("conservative", "conservative(5%)"),
            ("conservative(2.5%)", "conservative(2.5%)"),
            ("optimistic", "optimistic(5%)"),
            ("optimistic(0.0001%)", "optimistic(0.0001%)"),
            ("optimistic(50%)", "optimistic(50%)"),
            ("local", "local"),
            ("local(4)", "local(4)"),
            ("local(1000000)", "local(1000000)"),
        ] {
            let accuracy: RuleAccuracy = text.parse().unwrap();
            assert_eq!(accuracy.to_string(), written);
            assert_eq!(written.parse(), Ok(accuracy));
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_to_write() {
        for (text, start) in [
            ("", "`` is no accuracy: write `exact`"),
            ("exactly", "`exactly` is no accuracy"),
            ("exact(5%)", "`exact(5%)` is no accuracy"),
            ("conservative(5%", "`conservative(5%` is no accuracy"),
            ("conservative()", "`` is no share of the burst: write one above 0% and up to 50%"),
            ("conservative(0%)", "`0%` is no share"),
            ("conservative(150%)", "`150%` is no share"),
            ("conservative(50.0001%)", "`50.0001%` is no share"),
            ("conservative(5)", "`5` is no share"),
            ("conservative(five%)", "`five%` is no share"),
            ("conservative(-5%)", "`-5%` is no share"),
            ("conservative(5.%)", "`5.%` is no share"),
            ("optimistic(0.00001%)", "`0.00001%` is no share"),
            ("optimistic(99999999999%)", "`99999999999%` is no share"),
            ("local(0)", "`0` is no number of nodes: write 1 to 1000000"),
            ("local(many)", "`many` is no number of nodes"),
            ("local(-1)", "`-1` is no number"),
            ("local(1000001)", "`1000001` is no number"),
        ] {
            let error = text.parse::<RuleAccuracy>().unwrap_err().to_string();
            assert!(error.starts_with(start), "{text}: {error}");
        }
    }

    #[test]
    fn a_limit_is_counted_as_its_rule_says_where_it_can() {
        let bucket = Policy::token_bucket("1000/s").unwrap().with_burst(10_000).unwrap();
        let log = Policy::sliding_window_log("100/s").unwrap();
        let of =
            |text: &str, policy| text.parse::<RuleAccuracy>().unwrap().of_limit(policy, None, 3);
        assert_eq!(of("exact", &log), Ok(Accuracy::Exact));
        assert!(matches!(of("conservative", &bucket), Ok(Accuracy::Loaned(_))));
        assert_eq!(of("local", &bucket), Ok(Accuracy::Local));
        assert!(matches!(of("local", &log), Err(LimitAccuracyError::Loan(_))));
        let small = Policy::fixed_window("3/ms").unwrap();
        assert_eq!(of("local", &small), Ok(Accuracy::Local), "it is too short for loans only");
        assert_eq!(
            of("local(4)", &small).unwrap_err().to_string(),
            "a limit of 3 leaves less than a token for each of 4 nodes: write 4 or more, or `accuracy: exact`"
        );
    }
}
