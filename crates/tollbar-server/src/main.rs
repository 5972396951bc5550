//! `tollbar`: the command line and the daemon are in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollbar_server::main()
}
