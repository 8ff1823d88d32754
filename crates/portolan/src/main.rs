//! The `portolan` binary: configuration and command line of the control plane.

mod cli;

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Allocator. A server allocates and frees small trees all the time; with libc's allocator that took a quarter of a
/// create.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    #[cfg(debug_assertions)]
    portolan_control_plane::failpoints::arm();
    cli::run()
}
