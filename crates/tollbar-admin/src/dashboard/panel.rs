//! Panels that pages share: traffic over time, health, and the parts of the overview.

pub(crate) mod health;
pub(crate) mod overview;
pub(crate) mod traffic;
