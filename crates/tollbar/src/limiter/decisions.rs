//! What several decisions about one request come to.

use smallvec::SmallVec;

use crate::store::{Entry, Role, binding_place};
use crate::{Decision, Denied, Outcome};

/// As many as most requests have, without an allocation.
pub(crate) type ShortVec<T> = SmallVec<[T; 4]>;

/// The decisions about one request under several limits, in the order of its charges.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "it says whether the request may pass"]
pub struct Decisions {
    /// Two without an allocation: more would make every error that holds them large.
    each: SmallVec<[Decision; 2]>,
    /// The charge that binds; `None` where nothing was enforced.
    binding: Option<u32>,
}

impl Decisions {
    /// Reads the decisions out of entries that a store has decided.
    ///
    /// Shadows do not bind. Denied: the longest retry binds, and one that can never pass before any
    /// other. Allowed: the one with the least of its limit remaining. Ties: the first.
    pub fn from_entries(entries: &[Entry<'_>]) -> Self {
        let each: SmallVec<[Decision; 2]> =
            entries.iter().map(|entry| entry.decision.unwrap_or(Decision::UNDECIDED)).collect();
        let binding = binding_place(entries, |entry| {
            let decision = entry.decision.filter(|_| entry.role == Role::Enforce)?;
            Some((entry.alternative, decision))
        });
        // Four billion entries fit no memory.
        Self { each, binding: binding.map(|at| at as u32) }
    }

    /// True where the request may pass. With nothing enforced, it may.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decision().is_none_or(|decision| decision.is_allowed())
    }

    /// Each decision, in the order of the charges.
    #[must_use]
    pub fn each(&self) -> &[Decision] {
        &self.each
    }

    /// The place of the charge that binds; `None` where nothing was enforced.
    #[must_use]
    pub fn binding(&self) -> Option<usize> {
        self.binding.map(|at| at as usize)
    }

    /// The decision that binds.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        self.binding().map(|at| self.each[at])
    }

    /// The denial that binds; `None` where the request may pass.
    #[must_use]
    pub fn denied(&self) -> Option<Denied> {
        self.decision().and_then(|decision| decision.denied())
    }

    /// The outcome of the decision that binds.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.decision().map_or(Outcome::Allow, |decision| decision.outcome())
    }

    /// True where the store could not answer.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.each.iter().any(|decision| decision.degraded().is_some())
    }
}
