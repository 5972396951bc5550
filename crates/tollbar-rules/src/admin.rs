//! Rules and exemptions as JSON and as YAML: what an admin API sends and takes, what a database keeps, and
//! what a person reads. There is one type of a rule, [`Rule`](crate::Rule); with the feature `admin` it
//! implements `Serialize`, `Deserialize` and `JsonSchema`.
//!
//! ```
//! use serde_json::json;
//! use tollbar_rules::admin;
//! # fn main() -> Result<(), admin::FormError> {
//! let rule = admin::from_json(json!({
//!     "name": "search", "httpMethod": "GET", "pathPattern": "/v1/search/**",
//!     "algorithm": "token_bucket", "maxRequests": 100, "windowSeconds": 60, "burstCapacity": 20,
//!     "exempt": [{ "api_key": "internal" }],
//! }))?;
//! assert_eq!(rule.limits[0].text(), "100/min");
//! assert_eq!(admin::to_json(&rule)["maxRequests"], 100);
//! # Ok(())
//! # }
//! ```

mod edit;
mod error;
mod exemption;
mod fields;
mod json;
mod schema;
mod view;
mod yaml;

pub use crate::date::parse_instant;
pub use crate::file::from_yaml;
pub use error::{FormError, Problem};
pub use exemption::{ExemptionForm, SubjectType};
pub use schema::FILE_SCHEMA;
pub use view::{FieldChange, RuleView, Scope, changed_fields, from_json, to_json};
pub use yaml::{condition_texts, field_texts, to_yaml};
