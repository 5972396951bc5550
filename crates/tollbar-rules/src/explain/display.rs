//! An explanation for people.

use std::fmt;

use super::{Explanation, LimitExplanation, NOT_SAID, RuleExplanation, RuleFate};
use crate::verdict::Enforcement;
use crate::{Criticality, RuleAccuracy};

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.method, self.path)?;
        writeln!(f, "{}", self.summary)?;
        if self.criticality != Criticality::default() || self.criticality_why != NOT_SAID {
            writeln!(f, "{}: {}", self.criticality.name(), self.criticality_why)?;
        }
        if let Some(error) = &self.store_error {
            writeln!(f, "the counters could not be read: {error}")?;
        }
        for rule in &self.rules {
            write!(f, "\n{rule}")?;
        }
        Ok(())
    }
}

impl fmt::Display for RuleExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.fate {
            RuleFate::Applied => "x",
            RuleFate::Unlimited | RuleFate::Exempt => "o",
            RuleFate::Denied => "!",
            _ => " ",
        };
        writeln!(f, "[{mark}] {}: {}", self.name, self.why)?;
        if self.limits.is_empty() {
            return Ok(());
        }
        write!(
            f,
            "    counts {} at a cost of {}",
            self.subject.as_deref().unwrap_or("nobody"),
            self.cost
        )?;
        match &self.tier {
            Some(tier) => writeln!(f, ", tier {tier}")?,
            None => writeln!(f)?,
        }
        self.limits.iter().try_for_each(|limit| writeln!(f, "    {limit}"))
    }
}

impl fmt::Display for LimitExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(alternative) = self.alternative {
            write!(f, "alternative {alternative}: ")?;
        }
        write!(f, "{} ({}", self.text, self.algorithm)?;
        match &self.subject {
            Some(subject) => write!(f, ", counts {subject}): ")?,
            None => f.write_str("): ")?,
        }
        match self.remaining {
            Some(remaining) => write!(f, "{remaining} of {} left", self.limit)?,
            None => f.write_str("not known")?,
        }
        let would = match (self.enforcement, self.would_pass) {
            (Enforcement::Live, false) if self.alternative.is_some() => ", does not allow",
            (Enforcement::Live, true) => "",
            (Enforcement::Live, false) => ", denies",
            (Enforcement::Shadow, true) => ", in the shadow",
            (Enforcement::Shadow, false) => ", would deny were it not in the shadow",
            (Enforcement::Candidate, true) => ", a candidate",
            (Enforcement::Candidate, false) => ", would deny were it not a candidate",
        };
        f.write_str(would)?;
        if self.reserved > 0 {
            write!(f, ", {} reserved for more critical requests", self.reserved)?;
        }
        if self.would_pay {
            f.write_str(", pays")?;
        }
        if self.binds {
            f.write_str(", binds")?;
        }
        if self.accuracy.written == RuleAccuracy::Exact {
            return Ok(());
        }
        write!(f, "\n      {}", self.accuracy)?;
        match self.held_tokens {
            Some(tokens) => write!(f, "; {tokens} tokens held here"),
            None => Ok(()),
        }
    }
}
