//! The pages, a file for each noun. Each asks the operations that the JSON interface asks, on behalf of
//! whoever is signed in: what they may not do is refused there.

pub(crate) mod exemptions;
pub(crate) mod explain;
pub(crate) mod keys;
pub(crate) mod overview;
pub(crate) mod own_usage;
pub(crate) mod rule;
pub(crate) mod rule_edit;
pub(crate) mod rule_fields;
pub(crate) mod rules;
pub(crate) mod tokens;
pub(crate) mod usage;
