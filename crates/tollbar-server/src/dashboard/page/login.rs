//! The door: a token is shown once, and a session is what is left of it.

use askama::Template;

use super::super::frame::Frame;

/// The form for a token.
#[derive(Debug, Template)]
#[template(path = "login.html")]
pub(crate) struct Login {
    pub(crate) frame: Frame,
    /// Where one wanted to go.
    pub(crate) to: String,
}
