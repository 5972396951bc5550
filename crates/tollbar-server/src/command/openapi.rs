//! `tollbar openapi`: the documents of the HTTP interfaces, as the daemon serves them.

use clap::Args;

use super::Ending;

#[derive(Debug, Args)]
pub(crate) struct Openapi {
    /// That of the admin API
    #[arg(long)]
    admin: bool,
}

impl Openapi {
    pub(crate) fn run(self) -> Ending {
        print!("{}", if self.admin { crate::admin::document() } else { crate::api::document() });
        Ending::Well
    }
}
