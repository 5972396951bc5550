//! From the database to the engine: reads what is to be enforced, merges it with the rules of the file, and puts
//! the result in force. A cache file has the last contents, for a start while the database does not answer.

pub(crate) mod cache;
pub(crate) mod contents;
pub mod follower;
pub(crate) mod live_rules;
pub(crate) mod merge;
pub mod node_stores;
