//! Clock that can be set while a server runs: a preloaded library, and a file with the offset.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

const DAY: i64 = 24 * 3600;
/// Offsets of the clock, in order: forward and back, but never before the certificates were issued, nor after the end
/// of the administrator's, which is valid for 30 days.
const OFF: [i64; 6] = [3 * DAY, DAY, 20 * DAY, 19 * DAY, 28 * DAY, 0];
/// Time within which a server must have read the clock.
const ASKED: Duration = Duration::from_secs(10);

/// Clock of a server.
pub(super) struct ShiftedClock {
    library: PathBuf,
    told: PathBuf,
}

impl ShiftedClock {
    pub(super) fn new(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let (source, library, told) = (dir.join("clock.c"), dir.join("clock.so"), dir.join("clock"));
        fs::write(&source, include_str!("clock.c"))?;
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let args = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o"];
        let made = Command::new(compiler).args(args).arg(&library).arg(&source).status();
        ensure!(made.context("jumps of the clock need a C compiler")?.success(), "the clock does not compile");
        fs::write(&told, [0; 16])?;
        Ok(Self { library, told })
    }

    /// Returns a wrapper of `program` that runs with this clock.
    pub(super) fn on(&self, program: &Path, dir: &Path) -> Result<PathBuf> {
        let path = dir.join("portolan-with-clock");
        let (library, told) = (self.library.display(), self.told.display());
        let run = format!("exec env LD_PRELOAD='{library}' PORTOLAN_CLOCK='{told}' '{}' \"$@\"", program.display());
        fs::write(&path, format!("#!/bin/sh\n{run}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    /// Sets the clock to the offset number `turn`, and waits until the server has read it.
    pub(super) fn jump(&self, turn: usize) -> Result<()> {
        let file = fs::File::options().read(true).write(true).open(&self.told)?;
        file.write_all_at(&[OFF[turn % OFF.len()].to_ne_bytes(), [0; 8]].concat(), 0)?;
        let start = std::time::Instant::now();
        loop {
            let mut asked = [0; 8];
            file.read_exact_at(&mut asked, 8)?;
            if i64::from_ne_bytes(asked) > 0 {
                return Ok(());
            }
            ensure!(start.elapsed() < ASKED, "the server does not ask this clock");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
