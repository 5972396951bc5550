//! A promise of the table: requests in order, each with what must be answered.

/// One promise: requests in order, each with its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) steps: &'static [Step],
}

/// A request and its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) attributes: &'static [(&'static str, &'static str)],
    pub(crate) cost: u64,
    pub(crate) expected: Expected,
}

/// What must be answered. A driver compares what its wire can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) outcome: Expect,
    /// The rule that binds, or that lets the request pass.
    pub(crate) rule: Option<&'static str>,
    /// Of the limit that binds; `None` where no limit was enforced.
    pub(crate) limit: Option<u64>,
    pub(crate) remaining: Option<u64>,
    /// Whether a failure policy has answered in the store's place.
    pub(crate) is_degraded: bool,
}

impl Expected {
    /// Whether there is an instant at which the limit resets.
    pub(crate) fn has_reset(&self) -> bool {
        self.remaining.is_some() && !self.is_degraded && self.rule != Some("jobs")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Allow,
    /// Not now: there is a wait after which it may pass.
    Deny,
    /// It costs more than a limit can ever hold.
    Never,
    /// It lacks an attribute that a rule cannot do without.
    Lacks,
    /// As many are in flight as may be, and nobody knows until when.
    Busy,
    /// More limits apply than can be checked at once.
    TooMany,
}

impl Expect {
    pub(crate) const ALL: [Self; 6] =
        [Self::Allow, Self::Deny, Self::Never, Self::Lacks, Self::Busy, Self::TooMany];
}

pub(crate) const fn get(path: &'static str) -> Step {
    send("GET", path)
}

pub(crate) const fn send(method: &'static str, path: &'static str) -> Step {
    let expected = Expected {
        outcome: Expect::Allow,
        rule: None,
        limit: None,
        remaining: None,
        is_degraded: false,
    };
    Step { method, path, attributes: &[("user", "7")], cost: 1, expected }
}

impl Step {
    pub(crate) const fn with(self, attributes: &'static [(&'static str, &'static str)]) -> Self {
        Self { attributes, ..self }
    }

    pub(crate) const fn costing(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    pub(crate) const fn expect(
        self,
        outcome: Expect,
        rule: &'static str,
        left: (u64, u64),
    ) -> Self {
        let (limit, remaining) = (Some(left.1), Some(left.0));
        let expected = Expected { outcome, rule: Some(rule), limit, remaining, ..self.expected };
        Self { expected, ..self }
    }

    /// No counter is read: the limit is known, and nothing else.
    pub(crate) const fn unseen(self, outcome: Expect, rule: &'static str, limit: u64) -> Self {
        let (rule, limit) = (Some(rule), Some(limit));
        let expected = Expected { outcome, rule, limit, remaining: None, is_degraded: true };
        Self { expected, ..self }
    }

    /// By a failure policy that counts.
    pub(crate) const fn degraded(self) -> Self {
        Self { expected: Expected { is_degraded: true, ..self.expected }, ..self }
    }

    pub(crate) const fn busy(self, rule: &'static str, left: (u64, u64)) -> Self {
        self.expect(Expect::Busy, rule, left)
    }

    pub(crate) const fn too_many(self) -> Self {
        self.unlimited(Expect::TooMany, None)
    }

    /// `left` is (remaining, limit).
    pub(crate) const fn passes(self, rule: &'static str, left: (u64, u64)) -> Self {
        self.expect(Expect::Allow, rule, left)
    }

    pub(crate) const fn denied(self, rule: &'static str, left: (u64, u64)) -> Self {
        self.expect(Expect::Deny, rule, left)
    }

    pub(crate) const fn never(self, rule: &'static str, left: (u64, u64)) -> Self {
        self.expect(Expect::Never, rule, left)
    }

    /// Nothing limits it, and this rule says so.
    pub(crate) const fn free_by(self, rule: &'static str) -> Self {
        self.unlimited(Expect::Allow, Some(rule))
    }

    /// No rule applies.
    pub(crate) const fn free(self) -> Self {
        self.unlimited(Expect::Allow, None)
    }

    pub(crate) const fn lacks(self, rule: &'static str) -> Self {
        self.unlimited(Expect::Lacks, Some(rule))
    }

    pub(crate) const fn unlimited(self, outcome: Expect, rule: Option<&'static str>) -> Self {
        let expected = Expected { outcome, rule, limit: None, remaining: None, ..self.expected };
        Self { expected, ..self }
    }
}

pub(crate) const fn case(name: &'static str, steps: &'static [Step]) -> Case {
    Case { name, steps }
}

pub(crate) const NOBODY: &[(&str, &str)] = &[];
