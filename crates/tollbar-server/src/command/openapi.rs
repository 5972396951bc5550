//! `tollbar openapi`: the document of the HTTP interface, as the daemon serves it.

use clap::Args;

use super::Ending;

#[derive(Debug, Args)]
pub(crate) struct Openapi {}

impl Openapi {
    #[expect(clippy::unused_self, reason = "commands run alike")]
    pub(crate) fn run(self) -> Ending {
        print!("{}", crate::api::document());
        Ending::Well
    }
}
