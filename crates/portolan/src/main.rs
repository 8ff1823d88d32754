//! The `portolan` binary: configuration and command line over all the other crates.

mod cli;
mod control_plane;
#[cfg(debug_assertions)]
mod failpoints;
mod gate;
mod members;
mod placements;
mod plane_name;
mod projected_writes;
mod readiness;
mod rights;
mod shared_keys;
mod streams;
mod texts;
mod upstream;

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A server makes and drops small trees all day: of a create, a quarter of the time went into the allocator of libc.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    #[cfg(debug_assertions)]
    failpoints::arm();
    cli::run()
}
