//! The `portolan` binary: configuration and command line over all the other crates.

mod cli;
mod control_plane;
mod members;
mod placements;
mod readiness;
mod rights;
mod texts;
mod upstream;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
