//! The Lua scripts: put together from the twins of the algorithms that a call needs, and no others.
//!
//! Redis runs a script from its first line at every call, and each function defined on the way costs
//! a tenth of a microsecond. So there is a script for each set of algorithms that are asked for
//! together, made when it is first needed: 1,024 sets, of which most programs use two or three.

pub(crate) mod blob;
pub(crate) mod call;
pub(crate) mod intent;
pub(crate) mod policy;
pub(crate) mod reply;

use std::fmt;
use std::sync::OnceLock;

use tollbar::Policy;

use crate::error::RedisStoreError;
use crate::script::policy::Kind;

/// What a script does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// One request under one policy.
    One,
    /// One request under several policies, each with a counter of its own.
    Few,
    /// Several questions at one instant.
    Many,
    /// Refunds, overdrafts, reservations.
    Settle,
    /// One lease.
    Renew,
    /// One counter that has to know what was granted before.
    Reset,
    /// A key of no counter, to see that the server takes writes.
    Probe,
    /// The secret that a namespace belongs to.
    Claim,
    /// What is under way in several slots of a cluster.
    Intent,
    /// Tokens of one counter, charged early.
    Lend,
}

/// A set of algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct KindSet(usize);

/// A script and its name.
pub(crate) struct Script {
    pub(crate) text: String,
    /// The hexadecimal SHA-1 of the text, by which `EVALSHA` knows it.
    pub(crate) sha: String,
}

/// All scripts there can be, each made when it is first asked for.
#[derive(Debug)]
pub(crate) struct Scripts(Box<[OnceLock<Script>]>);

const TASKS: usize = 10;
const SETS: usize = 1 << Kind::ALL.len();

impl KindSet {
    fn insert(&mut self, kind: Kind) {
        self.0 |= Self::bit(kind);
    }

    pub(crate) fn for_policy(policy: &Policy) -> Result<Self, RedisStoreError> {
        let mut set = Self::default();
        set.insert_of(policy)?;
        Ok(set)
    }

    /// The algorithm of `policy`; where it warms up, both.
    pub(crate) fn insert_of(&mut self, policy: &Policy) -> Result<(), RedisStoreError> {
        self.insert(Kind::for_policy(policy)?);
        self.insert(Kind::plain_of(policy)?);
        Ok(())
    }

    /// As a number, to be written down.
    fn bits(self) -> usize {
        self.0
    }

    /// The set that was written down as this number; `None` where it holds an algorithm that there is not.
    fn from_bits(bits: usize) -> Option<Self> {
        (bits < SETS).then_some(Self(bits))
    }

    fn contains(self, kind: Kind) -> bool {
        self.0 & Self::bit(kind) != 0
    }

    fn bit(kind: Kind) -> usize {
        1 << (kind as usize - 1)
    }
}

#[cfg(test)]
impl FromIterator<Kind> for KindSet {
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> Self {
        let mut set = Self::default();
        kinds.into_iter().for_each(|kind| set.insert(kind));
        set
    }
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self((0..TASKS * SETS).map(|_| OnceLock::new()).collect())
    }

    pub(crate) fn get(&self, task: Task, kinds: KindSet) -> &Script {
        self.0[task as usize * SETS + kinds.0].get_or_init(|| Script::new(task, kinds))
    }
}

impl Script {
    fn new(task: Task, kinds: KindSet) -> Self {
        let text = text(task, kinds);
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Script({})", self.sha)
    }
}

fn text(task: Task, kinds: KindSet) -> String {
    let (tables, body) = match task {
        Task::One => ("", include_str!("lua/one.lua")),
        Task::Few => ("", include_str!("lua/few.lua")),
        Task::Many => {
            (concat!("holds = {}\n", include_str!("lua/once.lua")), include_str!("lua/many.lua"))
        }
        Task::Renew => ("renews = {}\n", include_str!("lua/renew.lua")),
        Task::Reset => ("resets = {}\n", include_str!("lua/reset.lua")),
        Task::Probe => ("", include_str!("lua/probe.lua")),
        Task::Claim => ("", include_str!("lua/claim.lua")),
        Task::Intent => (include_str!("lua/once.lua"), include_str!("lua/intent.lua")),
        Task::Lend => ("cuts = {}\n", include_str!("lua/lend.lua")),
        Task::Settle => ("refunds, overdraws = {}, {}\n", include_str!("lua/settle.lua")),
    };
    let mut text = format!("{}\n{tables}", include_str!("lua/prelude.lua"));
    if matches!(task, Task::One | Task::Few) && !kinds.contains(Kind::WarmUp) {
        // A window that is only counted up expires as before: of a request under a bucket and a window,
        // that spares the server 6 of 100 instructions.
        text.push_str("keeps = KEEP\n");
    }
    // Those that are parts of others as well come first, and once.
    let needs = |kinds_of: &[Kind]| kinds_of.iter().any(|kind| kinds.contains(*kind));
    if needs(&[Kind::Bucket, Kind::LeakyQueue]) {
        text.push_str(include_str!("lua/bucket.lua"));
    }
    if needs(&[Kind::FixedWindow, Kind::CalendarWindow]) {
        text.push_str(include_str!("lua/counted_window.lua"));
    }
    if needs(&[Kind::Concurrency, Kind::Leased]) {
        text.push_str(include_str!("lua/concurrency.lua"));
    }
    for kind in Kind::ALL.into_iter().filter(|kind| kinds.contains(*kind)) {
        text.push_str(match kind {
            Kind::Bucket | Kind::Concurrency => "",
            Kind::FixedWindow => include_str!("lua/fixed_window.lua"),
            Kind::CalendarWindow => include_str!("lua/calendar_window.lua"),
            Kind::SlidingWindow => include_str!("lua/sliding_window.lua"),
            Kind::SlidingStrict => include_str!("lua/sliding_strict.lua"),
            Kind::SlidingLog => include_str!("lua/sliding_log.lua"),
            Kind::WarmUp => include_str!("lua/warm_up.lua"),
            Kind::LeakyQueue => include_str!("lua/leaky_queue.lua"),
            Kind::Leased => include_str!("lua/leased.lua"),
        });
    }
    text.push_str(body);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_holds_the_algorithms_it_needs_and_no_others() {
        let scripts = Scripts::new();
        let bucket = scripts.get(Task::One, KindSet::from_iter([Kind::Bucket]));
        assert!(bucket.text.contains("steps[1] =") && !bucket.text.contains("steps[2] ="));
        let all = scripts.get(Task::Settle, KindSet::from_iter(Kind::ALL));
        for kind in Kind::ALL {
            assert!(all.text.contains(&format!("steps[{}] =", kind as u8)), "{kind:?}");
            assert!(all.text.contains(&format!("refunds[{}] =", kind as u8)), "{kind:?}");
        }
        assert_ne!(bucket.sha, all.sha);
        assert_eq!(bucket.sha.len(), 40);
    }
}
