//! Which policy a key is under: one for all, some of their own, or whatever a closure says.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::Policy;

/// Chooses a policy by key. Asked on every check, so it should be quick.
pub trait PolicyResolver: Send + Sync + 'static {
    /// The policy `key` is under at this moment.
    fn resolve(&self, key: &[u8]) -> Policy;
}

impl<F: Fn(&[u8]) -> Policy + Send + Sync + 'static> PolicyResolver for F {
    fn resolve(&self, key: &[u8]) -> Policy {
        self(key)
    }
}

/// A default policy, and others for some keys. Clones share the same policies, and a change through
/// any of them is seen by the next check.
///
/// ```
/// use tollbar::{Limiter, Overrides, Policy};
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let tenants = Overrides::new(Policy::token_bucket("10/s")?);
/// let limiter = Limiter::resolved_by(tenants.clone());
///
/// tenants.set("tenant:acme", Policy::token_bucket("1000/s")?);
/// assert_eq!(limiter.check("tenant:acme").limit(), 1_000);
/// assert_eq!(limiter.check("tenant:other").limit(), 10);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Overrides {
    current: Arc<ArcSwap<Table>>,
}

#[derive(Clone)]
struct Table {
    default: Policy,
    by_key: HashMap<Box<[u8]>, Policy>,
}

impl Overrides {
    /// `default` for every key.
    #[must_use]
    pub fn new(default: Policy) -> Self {
        let table = Table { default, by_key: HashMap::new() };
        Self { current: Arc::new(ArcSwap::from_pointee(table)) }
    }

    /// Puts every key without one of its own under `policy`.
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
    pub fn set(&self, key: impl AsRef<[u8]>, policy: Policy) {
        self.change(|table| {
            table.by_key.insert(key.as_ref().into(), policy.clone());
        });
    }

    /// Puts `key` back under the default.
    pub fn unset(&self, key: impl AsRef<[u8]>) {
        self.change(|table| {
            table.by_key.remove(key.as_ref());
        });
    }

    /// Changes a copy and swaps it in: checks never wait, changes cost a copy of the table.
    fn change(&self, change: impl Fn(&mut Table)) {
        self.current.rcu(|table| {
            let mut table = Table::clone(table);
            change(&mut table);
            table
        });
    }
}

impl PolicyResolver for Overrides {
    fn resolve(&self, key: &[u8]) -> Policy {
        let table = self.current.load();
        table.by_key.get(key).unwrap_or(&table.default).clone()
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.current.load();
        f.debug_struct("Overrides")
            .field("default", &table.default)
            .field("overrides", &table.by_key.len())
            .finish()
    }
}
