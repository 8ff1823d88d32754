//! Bit flips in the stores of real servers: one bit in a store at rest, many in a store in use. The server then answers
//! with the written data or an error, or does not start. A flip in an index may hide an object, or show an earlier
//! version; then `portolan verify` must report damage.

mod sample;

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use self::sample::{Sample, SampleComparison};
use super::stand::TorturedEngine;
use super::work::Random;
use harness::portolan::Portolan;
use harness::report::CheckReport;
use harness::tools::Tools;

/// Bits that are flipped at once in the store of a running server.
const AT_ONCE: usize = 24;
/// Number of stores at rest per store in use.
const RUNNING: usize = 10;
/// Maximum distance of a flip from written bytes: a flip in bytes that were never written proves little.
const NEAR: u64 = 64;

/// Number of stores per outcome.
#[derive(Default)]
struct StoreTally {
    flips: usize,
    /// `verify` reported damage.
    found: usize,
    /// The server did not start.
    refused: usize,
    looked: SampleComparison,
}

impl fmt::Display for StoreTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flips, found, refused, looked: SampleComparison { right, told, hidden } } = self;
        write!(
            f,
            "{flips} bits; verify found damage {found} times, the server did not start {refused} times; reads: {right} right, \
             {told} answered with an error, {hidden} missing or as before (verify had found it)"
        )
    }
}

/// Flips `flips` bits in stores of an engine, as checks of a report.
pub(super) fn check(
    report: &mut CheckReport,
    program: &Path,
    tools: &Tools,
    dir: &Path,
    engine: TorturedEngine,
    flips: usize,
    seed: u64,
) {
    let bench = FlipBench { program, tools, dir, engine };
    let name = |what| format!("bit flips: {engine:?}, {what}, seed {seed}: no wrong object is answered");
    report.check(&name(format!("{flips} stores that lie still")), || bench.at_rest(flips, &mut Random::new(seed)));
    let stores = flips.div_ceil(RUNNING);
    report.check(&name(format!("{stores} stores in use")), || bench.in_use(stores, &mut Random::new(seed)));
}

struct FlipBench<'a> {
    program: &'a Path,
    tools: &'a Tools,
    dir: &'a Path,
    engine: TorturedEngine,
}

impl FlipBench<'_> {
    fn start(&self, name: &str) -> Result<Portolan> {
        let flag = format!("--store={}", format!("{:?}", self.engine).to_lowercase());
        Portolan::start_with(self.program, self.tools, &self.dir.join(format!("{:?}-{name}", self.engine)), &[&flag])
    }

    /// Returns true when `portolan verify` finds nothing.
    fn is_sound(&self, server: &Portolan) -> Result<bool> {
        let output = Command::new(self.program).args(["verify", "--data-dir"]).arg(server.data()).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code().is_some_and(|code| code < 2), "verify ended with {}: {text}", output.status);
        ensure!(output.status.success() || text.contains("error: "), "verify says nothing of why: {text}");
        Ok(output.status.success())
    }

    fn at_rest(&self, flips: usize, random: &mut Random) -> Result<()> {
        let (mut server, mut tally) = (self.start("rest")?, StoreTally::default());
        let sample = Sample::write(&server.workspace("root"), &sample::SMALL)?;
        server.stop()?;
        let closed = keep(&server, "closed")?;
        server.restart()?;
        sample.touch(&server.workspace("root"))?;
        server.kill()?;
        let killed = keep(&server, "killed")?;
        for number in 0..flips {
            let from = if number % 2 == 0 { &closed } else { &killed };
            put_back(&server, from)?;
            let flip = Flip::somewhere(&store(&server), random)?;
            flip.apply()?;
            tally.flips += 1;
            let case = || format!("flip {number}, of {}, {flip}", from.display());
            let is_sound = self.is_sound(&server).with_context(case)?;
            if !is_sound {
                tally.found += 1;
                // Copy of the store before `verify`, as a server would find it.
                put_back(&server, from)?;
                flip.apply()?;
            }
            let looked = self.serve(&mut server, &sample, &mut tally).with_context(case)?;
            ensure!(!is_sound || looked.is_some(), "{}: it does not start, although no damage was found", case());
            let hidden = looked.map_or(0, |looked| looked.hidden);
            ensure!(!is_sound || hidden == 0, "{}: {hidden} objects are missing or as before, unsaid", case());
        }
        println!("      {tally}");
        Ok(())
    }

    /// Starts the server and reads everything; `None` if it does not start and reports the reason.
    fn serve(
        &self,
        server: &mut Portolan,
        sample: &Sample,
        tally: &mut StoreTally,
    ) -> Result<Option<SampleComparison>> {
        if let Err(why) = server.restart() {
            let ended = server.check_alive().is_err();
            ensure!(ended, "it neither starts nor ends: {why:#}");
            let why = format!("{why:#}");
            ensure!(
                why.contains("error: ") && !why.contains("panicked"),
                "it does not say why it does not start: {why}"
            );
            tally.refused += 1;
            return Ok(None);
        }
        let looked = sample.look(&server.workspace("root"))?;
        server.check_alive()?;
        tally.looked += looked;
        server.kill()?;
        Ok(Some(looked))
    }

    fn in_use(&self, stores: usize, random: &mut Random) -> Result<()> {
        let (mut server, mut tally) = (self.start("use")?, StoreTally::default());
        let sample = Sample::write(&server.workspace("root"), &sample::LARGE)?;
        server.stop()?;
        let closed = keep(&server, "closed")?;
        for number in 0..stores {
            put_back(&server, &closed)?;
            server.restart()?;
            for _ in 0..AT_ONCE {
                Flip::somewhere(&store(&server), random)?.apply()?;
            }
            tally.flips += AT_ONCE;
            let looked = sample.look(&server.workspace("root"))?;
            server.check_alive().with_context(|| format!("store {number} in use"))?;
            tally.looked += looked;
            server.kill()?;
            let is_sound = self.is_sound(&server)?;
            tally.found += usize::from(!is_sound);
            ensure!(
                !is_sound || looked.hidden == 0,
                "store {number}: {} are missing or as before, unsaid",
                looked.hidden
            );
        }
        println!("      {tally}");
        Ok(())
    }
}

fn store(server: &Portolan) -> PathBuf {
    server.data().join("store")
}

/// Saves the store of a stopped server.
fn keep(server: &Portolan, name: &str) -> Result<PathBuf> {
    let to = server.data().with_file_name(name);
    copy(&store(server), &to)?;
    Ok(to)
}

fn put_back(server: &Portolan, from: &Path) -> Result<()> {
    fs::remove_dir_all(store(server)).context("cannot remove the store before")?;
    copy(from, &store(server))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().context("cannot run cp")?;
    ensure!(status.success(), "{} could not be copied", from.display());
    Ok(())
}

/// Bit of a file.
struct Flip {
    file: PathBuf,
    byte: u64,
    bit: u8,
}

impl fmt::Display for Flip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bit {} of byte {} of {}", self.bit, self.byte, self.file.display())
    }
}

impl Flip {
    /// Chooses a written position in any file of a folder.
    fn somewhere(folder: &Path, random: &mut Random) -> Result<Self> {
        let mut files = Vec::new();
        walk(folder, &mut files)?;
        let all: u64 = files.iter().map(|(_, len)| len).sum();
        loop {
            let mut at = random.below(all);
            let (file, _) = files
                .iter()
                .find(|(_, len)| {
                    let is_here = at < *len;
                    at -= if is_here { 0 } else { *len };
                    is_here
                })
                .context("an empty store")?;
            let flip = Self { file: file.clone(), byte: at, bit: random.below(8) as u8 };
            if flip.is_written()? {
                return Ok(flip);
            }
        }
    }

    fn is_written(&self) -> Result<bool> {
        let mut near = [0; NEAR as usize];
        let read = File::open(&self.file)?.read_at(&mut near, self.byte - self.byte % NEAR)?;
        Ok(near[..read].iter().any(|byte| *byte != 0))
    }

    fn apply(&self) -> Result<()> {
        let file = File::options().read(true).write(true).open(&self.file)?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, self.byte)?;
        file.write_all_at(&[byte[0] ^ 1 << self.bit], self.byte).with_context(|| format!("cannot flip {self}"))
    }
}

/// Returns the non-empty files below a folder in a fixed order.
fn walk(folder: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, meta) = (entry.path(), entry.metadata()?);
        if meta.is_dir() {
            walk(&path, files)?;
        } else if meta.len() > 0 {
            files.push((path, meta.len()));
        }
    }
    Ok(())
}
