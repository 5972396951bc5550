//! Which policy a key is under: one for all, some of their own, or whatever a function says.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::{Key, Policy, StoreError};

/// The policies of a limiter: one for all keys, a [`PolicyMap`], or a function of the key.
#[derive(Clone)]
pub struct Policies(PolicySource);

/// A function from a key to its policy.
type PolicyFn = dyn Fn(&[u8]) -> Policy + Send + Sync;

#[derive(Clone)]
enum PolicySource {
    One(Arc<Policy>),
    Map(PolicyMap),
    Function(Arc<PolicyFn>),
}

/// Says what to use instead of a rate limiter under a policy with permits.
pub(crate) const PERMITS: &str = "a limiter counts rates: use `ConcurrencyLimiter` for permits";

/// A policy that is borrowed where all keys have the same one.
pub(crate) enum ResolvedPolicy<'a> {
    Borrowed(&'a Policy),
    Owned(Policy),
}

impl Policies {
    /// Chooses the policy by a function of the key. It is called on every check, so it should be
    /// quick.
    ///
    /// A policy of [permits](crate::Concurrency) is refused by every check, as one whose cost exceeds
    /// the capacity: use [`ConcurrencyLimiter::from_fn`](crate::ConcurrencyLimiter::from_fn) for those.
    ///
    /// ```
    /// use tollbar::{Limiter, Policies, Policy};
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let (free, paid) = (Policy::token_bucket("1/s")?, Policy::token_bucket("100/s")?);
    /// let limiter = Limiter::new(Policies::from_fn(move |key| {
    ///     if key.starts_with(b"paid:") { paid.clone() } else { free.clone() }
    /// }));
    /// assert_eq!(limiter.check("paid:7").limit(), 100);
    /// assert_eq!(limiter.check("8").limit(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_fn(policy_of: impl Fn(&[u8]) -> Policy + Send + Sync + 'static) -> Self {
        Self(PolicySource::Function(Arc::new(policy_of)))
    }

    #[inline]
    pub(crate) fn with<T>(&self, key: &[u8], f: impl FnOnce(&Policy) -> T) -> T {
        match &self.0 {
            PolicySource::One(policy) => f(policy),
            PolicySource::Map(map) => f(&map.resolve(key)),
            PolicySource::Function(policy_of) => f(&policy_of(key)),
        }
    }

    #[inline]
    pub(crate) fn resolve(&self, key: &[u8]) -> ResolvedPolicy<'_> {
        match &self.0 {
            PolicySource::One(policy) => ResolvedPolicy::Borrowed(policy),
            PolicySource::Map(map) => ResolvedPolicy::Owned(map.resolve(key)),
            PolicySource::Function(policy_of) => ResolvedPolicy::Owned(policy_of(key)),
        }
    }

    /// The policy of `key`, unless it has permits: they have to come back, which a rate limiter does
    /// not see to. The policies known when a limiter is built are checked there.
    pub(crate) fn resolve_rate(&self, key: &[u8]) -> Result<ResolvedPolicy<'_>, StoreError> {
        let policy = self.resolve(key);
        if policy.as_policy().has_permits() {
            return Err(StoreError::unsupported(PERMITS));
        }
        Ok(policy)
    }

    /// The one policy of all keys.
    #[inline]
    pub(crate) fn only_one(&self) -> Option<&Policy> {
        match &self.0 {
            PolicySource::One(policy) => Some(policy),
            PolicySource::Map(_) | PolicySource::Function(_) => None,
        }
    }

    /// The policies that are known before a key is.
    pub(crate) fn known(&self) -> Vec<Policy> {
        match &self.0 {
            PolicySource::One(policy) => vec![Policy::clone(policy)],
            PolicySource::Map(map) => map.known(),
            PolicySource::Function(_) => Vec::new(),
        }
    }
}

impl ResolvedPolicy<'_> {
    #[inline]
    pub(crate) fn as_policy(&self) -> &Policy {
        match self {
            Self::Borrowed(policy) => policy,
            Self::Owned(policy) => policy,
        }
    }
}

impl From<Policy> for Policies {
    fn from(policy: Policy) -> Self {
        Self(PolicySource::One(Arc::new(policy)))
    }
}

impl From<PolicyMap> for Policies {
    fn from(map: PolicyMap) -> Self {
        Self(PolicySource::Map(map))
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            PolicySource::One(policy) => f.debug_tuple("One").field(policy).finish(),
            PolicySource::Map(map) => f.debug_tuple("Map").field(map).finish(),
            PolicySource::Function(_) => f.write_str("Function(..)"),
        }
    }
}

/// A default policy, and others for some keys. Clones share the same policies, and a change through
/// any of them is seen by the next check.
///
/// ```
/// use tollbar::{Limiter, Policy, PolicyMap};
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let tenants = PolicyMap::new(Policy::token_bucket("10/s")?);
/// let limiter = Limiter::new(tenants.clone());
///
/// tenants.set("tenant:acme", Policy::token_bucket("1000/s")?);
/// assert_eq!(limiter.check("tenant:acme").limit(), 1_000);
/// assert_eq!(limiter.check("tenant:other").limit(), 10);
/// assert!(tenants.get("tenant:other").is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PolicyMap {
    current: Arc<ArcSwap<PolicyTable>>,
}

#[derive(Clone)]
struct PolicyTable {
    default: Policy,
    by_key: HashMap<Box<[u8]>, Policy>,
}

impl PolicyMap {
    /// A map in which every key is under `default`.
    #[must_use]
    pub fn new(default: Policy) -> Self {
        let table = PolicyTable { default, by_key: HashMap::new() };
        Self { current: Arc::new(ArcSwap::from_pointee(table)) }
    }

    /// The policy of keys that have none of their own.
    #[must_use]
    pub fn default_policy(&self) -> Policy {
        self.current.load().default.clone()
    }

    /// The policy of its own that `key` has; `None` where it is under the default.
    #[must_use]
    pub fn get<'k>(&self, key: impl Into<Key<'k>>) -> Option<Policy> {
        self.current.load().by_key.get(key.into().as_bytes()).cloned()
    }

    /// The keys that have a policy of their own, and their policies, at this moment.
    pub fn iter(&self) -> impl Iterator<Item = (Box<[u8]>, Policy)> + use<> {
        self.current.load().by_key.clone().into_iter()
    }

    /// Puts every key without a policy of its own under `policy`.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "it is given away; the swap may clone it twice"
    )]
    pub fn set_default(&self, policy: Policy) {
        self.change(|table| table.default = policy.clone());
    }

    /// Puts `key` under a policy of its own.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "it is given away; the swap may clone it twice"
    )]
    pub fn set<'k>(&self, key: impl Into<Key<'k>>, policy: Policy) {
        let key = key.into();
        self.change(|table| {
            table.by_key.insert(key.as_bytes().into(), policy.clone());
        });
    }

    /// Puts `key` back under the default. False where it was under the default already.
    pub fn remove<'k>(&self, key: impl Into<Key<'k>>) -> bool {
        let key = key.into();
        let mut is_removed = false;
        self.change(|table| is_removed = table.by_key.remove(key.as_bytes()).is_some());
        is_removed
    }

    fn resolve(&self, key: &[u8]) -> Policy {
        let table = self.current.load();
        table.by_key.get(key).unwrap_or(&table.default).clone()
    }

    fn known(&self) -> Vec<Policy> {
        let table = self.current.load();
        table.by_key.values().chain([&table.default]).cloned().collect()
    }

    /// Changes a copy and swaps it in: checks never wait, changes cost a copy of the table.
    fn change(&self, mut change: impl FnMut(&mut PolicyTable)) {
        self.current.rcu(|table| {
            let mut table = PolicyTable::clone(table);
            change(&mut table);
            table
        });
    }
}

impl fmt::Debug for PolicyMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.current.load();
        f.debug_struct("PolicyMap")
            .field("default", &table.default)
            .field("keys", &table.by_key.len())
            .finish()
    }
}
