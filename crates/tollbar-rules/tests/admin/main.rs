//! Rules and exemptions as the JSON of an admin API: nothing is lost on the way, and nothing is
//! decided otherwise.

mod exemptions;
mod forms;
mod roundtrip;
mod scopes;
