//! Rules and exemptions as the JSON of an admin API: nothing is lost on the way, and nothing is
//! decided otherwise.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

mod exemptions;
mod forms;
mod roundtrip;
mod scopes;
