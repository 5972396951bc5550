//! What pages are written with: their layout, charts, numbers, texts of others, and static files.

pub(crate) mod assets;
pub(crate) mod chart;
pub(crate) mod formatting;
pub(crate) mod layout;
pub(crate) mod untrusted_text;
