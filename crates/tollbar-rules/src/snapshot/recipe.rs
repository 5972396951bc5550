//! How the subjects of a rule are written. Most rules share a few ways, so that what is written for one
//! serves others, and what says how is in the cache.

use std::collections::HashSet;
use std::sync::Arc;

use crate::rule::subject::{KeyBuffer, SubjectKey, write_key};
use crate::{OnMissing, Per, Request, Rule};

/// One way.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Recipe {
    per: Box<[Per]>,
    missing: OnMissing,
}

/// Tells recipes apart for as long as they last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecipeId(usize);

/// The recipes of some rules.
#[derive(Debug)]
pub(super) struct Recipes(HashSet<Arc<Recipe>>);

impl Recipe {
    /// The way of a limit that counts by a `per` of its own. What a request lacks of it is shared or an address, because
    /// its rule is not applied, or denies, for want of what it cannot do without.
    pub(super) fn of_limit(per: &[Per], rule: &Rule) -> Arc<Self> {
        let missing = match rule.missing {
            OnMissing::Skip | OnMissing::Deny => OnMissing::Shared,
            missing => missing,
        };
        Arc::new(Self { per: per.into(), missing })
    }

    pub(super) fn is_for(&self, rule: &Rule) -> bool {
        *self.per == *rule.per && self.missing == rule.missing
    }

    /// By where it is.
    #[inline]
    pub(crate) fn id(self: &Arc<Self>) -> RecipeId {
        RecipeId(Arc::as_ptr(self).addr())
    }

    /// Writes the key of the request's subject at the end of `keys`.
    #[inline]
    pub(crate) fn write(&self, request: &Request<'_>, keys: &mut KeyBuffer) -> SubjectKey {
        write_key(&self.per, self.missing, request, keys)
    }
}

impl Recipes {
    pub(super) fn new<'r>(known: impl Iterator<Item = &'r Arc<Recipe>>) -> Self {
        Self(known.cloned().collect())
    }

    /// That of a rule: the same one for all that say the same.
    pub(super) fn get_or_insert(&mut self, rule: &Rule) -> Arc<Recipe> {
        let recipe = Recipe { per: rule.per.clone().into(), missing: rule.missing };
        if let Some(known) = self.0.get(&recipe) {
            return Arc::clone(known);
        }
        let recipe = Arc::new(recipe);
        self.0.insert(Arc::clone(&recipe));
        recipe
    }
}
