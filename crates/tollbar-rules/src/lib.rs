//! Which limits apply to a request.

mod cidr;
mod condition;
mod path;
mod pattern;
mod request;
mod subject;

pub use cidr::{Cidr, CidrError};
pub use condition::{Condition, Conditions, Test};
pub use pattern::{PathPattern, PatternError};
pub use request::{Criticality, Request, RequestError};
pub use subject::{Missing, Per, readable};
