//! `portolan snapshot save`. What is broken off stays beside the file, as FILE.part, and goes on when it is run again: at the same
//! revision, as long as the store keeps that. An earlier snapshot under the name of the file is replaced once the new one is whole.

mod part;
mod remote;
#[cfg(test)]
mod tests;
mod unreadable;

use std::{
    fs::{self, File},
    io::{self, BufReader, IsTerminal as _, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::Args;
use portolan_store::{Begun, OnDamage, OpenError, Snapshot, SnapshotError, StoreConfig, StoreError};
use portolan_types::Seams;

use self::{
    part::{begun_in, finish, left_in, part_file},
    remote::{Cut, download, why_cut},
    unreadable::{Unreadable, unreadable},
};
use super::{describe, is_standard, passing::Passing};
use crate::cli::{
    admin::KUBECONFIG,
    data_dir::{engine_in, explained, store_in},
    interrupt::on_interrupt,
};

#[derive(Args)]
pub(in crate::cli) struct Save {
    /// Data directory of the server.
    #[arg(long)]
    pub(in crate::cli) data_dir: PathBuf,
    /// Leave out objects that are damaged, and name them, instead of refusing.
    #[arg(long)]
    pub(in crate::cli) skip_damaged: bool,
    /// File to write, readable by its owner only; `-` for standard output. An earlier snapshot of that name is replaced, once the new
    /// one is whole and synced; anything else is not.
    pub(in crate::cli) file: PathBuf,
}

/// Why a snapshot that was begun must begin anew.
#[derive(Debug)]
struct CannotGoOn(String);

impl Save {
    pub(in crate::cli) fn run(self) -> anyhow::Result<()> {
        let (place, summary) = match is_standard(&self.file) {
            true => {
                refuse_terminal(io::stdout().is_terminal())?;
                on_interrupt(|| "what went to standard output is no snapshot, and nothing restores it".into())?;
                ("standard output".to_owned(), self.to_stream(&mut io::stdout())?)
            }
            false => (self.file.display().to_string(), self.to_file()?),
        };
        eprintln!("{}", told(&place, &summary));
        Ok(())
    }

    /// Writes all but the end, and that when the rest is a whole snapshot, or what was left out may be.
    pub(in crate::cli) fn to_stream(&self, out: &mut (impl Write + Send)) -> anyhow::Result<Snapshot> {
        let mut passing = Passing::new(out)?;
        let taken = crate::cli::runtime()?.block_on(take(&self.data_dir, None, &mut passing));
        let taken = taken.map_err(|error| match error.is::<Cut>() {
            true => error.context("the snapshot was broken off: saved to a file it would tell why, and go on"),
            false => unreadable(&self.data_dir, error),
        });
        taken?.map_err(|CannotGoOn(why)| anyhow!(why))?;
        passing.finish(|summary| accepted(summary, self.skip_damaged))
    }

    fn to_file(&self) -> anyhow::Result<Snapshot> {
        let runtime = crate::cli::runtime()?;
        refuse_to_replace(&self.file)?;
        // A name that is there is that of a whole snapshot.
        let part = self.file.with_added_extension("part");
        let begun = left_in(&part)?;
        let mut out = part_file(&part, begun.as_ref())?;
        let named = Arc::new(AtomicBool::new(false));
        on_interrupt({
            let (part, file, named) = (part.clone(), self.file.clone(), named.clone());
            move || left_at_end(&part, &file, &named)
        })?;
        // What was left out is named in the snapshot, and looked at before it has its name.
        let taken = runtime.block_on(async {
            let cannot = match take(&self.data_dir, begun.as_ref(), &mut out).await? {
                Ok(()) => return Ok(()),
                Err(CannotGoOn(why)) => why,
            };
            eprintln!("{} cannot be completed, it begins anew: {cannot}", part.display());
            out = part_file(&part, None)?;
            take(&self.data_dir, None, &mut out).await?.map_err(|CannotGoOn(why)| anyhow!(why))
        });
        if let Err(error) = taken {
            let error = match begun_in(&part) {
                Some(kept) if error.is::<Cut>() => runtime.block_on(why_cut(&self.data_dir, &kept)).unwrap_or(error),
                _ => error,
            };
            return Err(broken_off(&part, unreadable(&self.data_dir, error)));
        }
        let finished = finish(&out, &part, &self.file, self.skip_damaged, &named);
        finished.with_context(|| format!("{} is not written", self.file.display()))
    }
}

/// What is said of a snapshot that was written.
pub(in crate::cli) fn told(place: &str, summary: &Snapshot) -> String {
    let partial = match summary.damaged.is_empty() {
        true => String::new(),
        false => format!("\nthe snapshot is partial: {}", summary.damaged),
    };
    format!("{place}: {}{partial}", describe(summary))
}

fn accepted(summary: Snapshot, skip_damaged: bool) -> anyhow::Result<Snapshot> {
    match skip_damaged || summary.damaged.is_empty() {
        true => Ok(summary),
        false => Err(SnapshotError::DamagedObjects(summary.damaged).into()),
    }
}

fn refuse_terminal(is_terminal: bool) -> anyhow::Result<()> {
    ensure!(
        !is_terminal,
        "a snapshot is binary, and standard output is a terminal: name a file, or redirect it, as in > FILE"
    );
    Ok(())
}

/// Refuses what is no snapshot. What is moved to the name of a device, a pipe or a link takes its place, and what was meant gets nothing.
fn refuse_to_replace(file: &Path) -> anyhow::Result<()> {
    let Ok(found) = fs::symlink_metadata(file) else { return Ok(()) };
    let shown = file.display();
    match found.file_type() {
        kind if kind.is_file() => {
            let is_free = found.len() == 0
                || File::open(file).is_ok_and(|file| portolan_store::is_snapshot(BufReader::new(file)));
            ensure!(
                is_free,
                "{shown} is no snapshot of Portolan, and is not replaced: name another file, or remove it"
            );
            Ok(())
        }
        kind if kind.is_symlink() => {
            bail!("{shown} is a symbolic link, which the snapshot would replace: name the file itself")
        }
        kind if kind.is_dir() => bail!("{shown} is a directory: name a file"),
        _ => bail!(
            "{shown} is no regular file, and the snapshot would replace it: to write into it, save to - and redirect that"
        ),
    }
}

/// What Ctrl-C leaves.
fn left_at_end(part: &Path, file: &Path, named: &AtomicBool) -> String {
    if named.load(Ordering::Acquire) && !part.exists() {
        return format!("{} is a whole snapshot", file.display());
    }
    keep_or_remove(part).unwrap_or_else(|| "nothing is left of the snapshot".into())
}

/// Leaves what can be gone on with, and says so; `None` when there is nothing.
fn keep_or_remove(part: &Path) -> Option<String> {
    let begun = begun_in(part);
    if begun.is_none() {
        // One that cannot be removed is not gone on with either.
        let _ = fs::remove_file(part);
    }
    let Begun { bytes, .. } = begun?;
    Some(format!("{bytes} bytes are kept in {}; the same command goes on there", part.display()))
}

/// Why there is no snapshot, and what was kept of it. Of a store that cannot be read to its end nothing is: it would end there again.
fn broken_off(part: &Path, error: anyhow::Error) -> anyhow::Error {
    if error.is::<Unreadable>() {
        let _ = fs::remove_file(part);
        return error;
    }
    match keep_or_remove(part) {
        Some(kept) => error.context(format!("the snapshot was broken off: {kept}")),
        None => error,
    }
}

/// Takes a snapshot of the store in a data directory, or of the server that has it open, or what one lacks that was begun. What is
/// damaged is left out and named at its end: a server that refused in the middle of its answer could only cut the connection.
async fn take(
    data_dir: &Path,
    begun: Option<&Begun>,
    out: &mut (impl Write + Send),
) -> anyhow::Result<Result<(), CannotGoOn>> {
    let Some(engine) = engine_in(data_dir)? else {
        // The objects of a server on etcd are not here, but the way to it is.
        return match data_dir.join(KUBECONFIG).exists() {
            true => download(data_dir, begun, out).await,
            false => {
                bail!(
                    "there is no store in {}, and no server has been started with this data directory",
                    data_dir.display()
                )
            }
        };
    };
    let config = StoreConfig::new(engine, Some(store_in(data_dir)));
    let store = match portolan_store::open_to_read(config, &Seams::system()) {
        Ok(store) => store,
        Err(OpenError::InUse(_)) => return download(data_dir, begun, out).await,
        Err(error) => return Err(explained(error)),
    };
    let saved = match begun {
        Some(begun) => portolan_store::go_on(&*store, begun, OnDamage::Skip, out).await,
        None => portolan_store::save(&*store, &Seams::system(), OnDamage::Skip, out).await,
    };
    store.close().await;
    match saved {
        Err(
            why @ (SnapshotError::Other(_)
            | SnapshotError::Store(StoreError::Compacted { .. } | StoreError::FutureRevision { .. })),
        ) if begun.is_some() => return Ok(Err(CannotGoOn(why.to_string()))),
        other => drop(other?),
    }
    out.flush().context("the snapshot cannot be written")?;
    Ok(Ok(()))
}
