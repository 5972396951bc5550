//! Who sends a request, and what they may do: tokens, their lookup, and the permissions of their scopes.

pub(crate) mod access;
pub(crate) mod authentication;
pub mod credential;
