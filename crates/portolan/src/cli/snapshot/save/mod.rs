//! `portolan snapshot save`. An interrupted snapshot stays beside the file as FILE.part. The next run resumes it at the
//! same revision, as long as the store keeps that. The file replaces an earlier snapshot once it is complete.

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
use portolan_store::{OnDamage, OpenError, PartialSnapshot, SnapshotError, SnapshotSummary, StoreConfig, StoreError};
use portolan_types::Seams;

use self::{
    part::{begun_in, finish, left_in, part_file},
    remote::{CutConnection, download, why_cut},
    unreadable::{UnreadableStore, unreadable},
};
use super::{checked_pipe::CheckedPipe, describe, is_standard};
use crate::cli::{
    admin::KUBECONFIG,
    data_dir::{engine_in, explained, store_in},
    interrupt::on_interrupt,
};

#[derive(Args)]
pub(in crate::cli) struct SaveArgs {
    /// Data directory of the server.
    #[arg(long)]
    pub(in crate::cli) data_dir: PathBuf,
    /// Leave out damaged objects, and name them, instead of refusing.
    #[arg(long)]
    pub(in crate::cli) skip_damaged: bool,
    /// File to write, readable by its owner only; `-` for standard output. It replaces an earlier snapshot of that name
    /// once it is complete and synced; it never replaces any other file.
    pub(in crate::cli) file: PathBuf,
}

/// Reason that an interrupted snapshot cannot be resumed.
#[derive(Debug)]
struct NotResumable(String);

impl SaveArgs {
    pub(in crate::cli) fn run(self) -> anyhow::Result<()> {
        let (place, summary) = if is_standard(&self.file) {
            refuse_terminal(io::stdout().is_terminal())?;
            on_interrupt(|| "what went to standard output is no snapshot, and nothing restores it".into())?;
            ("standard output".to_owned(), self.to_stream(&mut io::stdout())?)
        } else {
            (self.file.display().to_string(), self.to_file()?)
        };
        eprintln!("{}", saved_line(&place, &summary));
        Ok(())
    }

    /// Writes the snapshot, and its last byte if it is complete or may lack the objects that it lacks.
    pub(in crate::cli) fn to_stream(&self, out: &mut (impl Write + Send)) -> anyhow::Result<SnapshotSummary> {
        let mut pipe = CheckedPipe::new(out)?;
        let taken = crate::cli::runtime()?.block_on(take(&self.data_dir, None, &mut pipe));
        let taken = taken.map_err(|error| {
            if error.is::<CutConnection>() {
                error.context("the snapshot was broken off: saved to a file it would tell why, and go on")
            } else {
                unreadable(&self.data_dir, error)
            }
        });
        taken?.map_err(|NotResumable(why)| anyhow!(why))?;
        pipe.finish(|summary| accepted(summary, self.skip_damaged))
    }

    fn to_file(&self) -> anyhow::Result<SnapshotSummary> {
        let runtime = crate::cli::runtime()?;
        refuse_to_replace(&self.file)?;
        // The final name is given to complete snapshots only.
        let part = self.file.with_added_extension("part");
        let begun = left_in(&part)?;
        let mut out = part_file(&part, begun.as_ref())?;
        let named = Arc::new(AtomicBool::new(false));
        on_interrupt({
            let (part, file, named) = (part.clone(), self.file.clone(), named.clone());
            move || left_at_end(&part, &file, &named)
        })?;
        // The snapshot names the objects left out, which are checked before it gets its name.
        let taken = runtime.block_on(async {
            let cannot = match take(&self.data_dir, begun.as_ref(), &mut out).await? {
                Ok(()) => return Ok(()),
                Err(NotResumable(why)) => why,
            };
            eprintln!("{} cannot be completed, it begins anew: {cannot}", part.display());
            out = part_file(&part, None)?;
            take(&self.data_dir, None, &mut out).await?.map_err(|NotResumable(why)| anyhow!(why))
        });
        if let Err(error) = taken {
            let error = match begun_in(&part) {
                Some(kept) if error.is::<CutConnection>() => {
                    runtime.block_on(why_cut(&self.data_dir, &kept)).unwrap_or(error)
                }
                _ => error,
            };
            return Err(broken_off(&part, unreadable(&self.data_dir, error)));
        }
        let finished = finish(&out, &part, &self.file, self.skip_damaged, &named);
        finished.with_context(|| format!("{} is not written", self.file.display()))
    }
}

/// Returns the message about a written snapshot.
pub(in crate::cli) fn saved_line(place: &str, summary: &SnapshotSummary) -> String {
    let partial = if summary.damaged.is_empty() {
        String::new()
    } else {
        format!("\nthe snapshot is partial: {}", summary.damaged)
    };
    format!("{place}: {}{partial}", describe(summary))
}

fn accepted(summary: SnapshotSummary, skip_damaged: bool) -> anyhow::Result<SnapshotSummary> {
    if skip_damaged || summary.damaged.is_empty() {
        Ok(summary)
    } else {
        Err(SnapshotError::DamagedObjects(summary.damaged).into())
    }
}

fn refuse_terminal(is_terminal: bool) -> anyhow::Result<()> {
    ensure!(
        !is_terminal,
        "a snapshot is binary, and standard output is a terminal: name a file, or redirect it, as in > FILE"
    );
    Ok(())
}

/// Refuses to replace anything but a snapshot. Renaming onto a device, a pipe or a link would replace it, and its
/// target would get nothing.
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

/// Returns the message about files left by Ctrl-C.
fn left_at_end(part: &Path, file: &Path, named: &AtomicBool) -> String {
    if named.load(Ordering::Acquire) && !part.exists() {
        return format!("{} is a whole snapshot", file.display());
    }
    keep_or_remove(part).unwrap_or_else(|| "nothing is left of the snapshot".into())
}

/// Keeps a resumable part, and returns a message about it; `None` if there is nothing.
fn keep_or_remove(part: &Path) -> Option<String> {
    let begun = begun_in(part);
    if begun.is_none() {
        // A part that cannot be removed is not resumed either.
        let _ = fs::remove_file(part);
    }
    let PartialSnapshot { bytes, .. } = begun?;
    Some(format!("{bytes} bytes are kept in {}; the same command goes on there", part.display()))
}

/// Returns the error with a note about the kept part. The part of an unreadable store is not kept: it would fail there
/// again.
fn broken_off(part: &Path, error: anyhow::Error) -> anyhow::Error {
    if error.is::<UnreadableStore>() {
        let _ = fs::remove_file(part);
        return error;
    }
    match keep_or_remove(part) {
        Some(kept) => error.context(format!("the snapshot was broken off: {kept}")),
        None => error,
    }
}

/// Takes a snapshot from a closed store, or from the server that has it open, or the rest of an interrupted one.
/// Damaged objects are left out and named at the end: a server that failed in the middle could only cut the connection.
async fn take(
    data_dir: &Path,
    begun: Option<&PartialSnapshot>,
    out: &mut (impl Write + Send),
) -> anyhow::Result<Result<(), NotResumable>> {
    let Some(engine) = engine_in(data_dir)? else {
        // The data directory of a server on etcd has no objects, but its kubeconfig.
        return if data_dir.join(KUBECONFIG).exists() {
            download(data_dir, begun, out).await
        } else {
            bail!(
                "there is no store in {}, and no server has been started with this data directory",
                data_dir.display()
            )
        };
    };
    let config = StoreConfig::new(engine, Some(store_in(data_dir)));
    let store = match portolan_store::open_to_read(config, &Seams::system()) {
        Ok(store) => store,
        Err(OpenError::InUse(_)) => return download(data_dir, begun, out).await,
        Err(error) => return Err(explained(error)),
    };
    let saved = match begun {
        Some(begun) => portolan_store::resume_save(&*store, begun, OnDamage::Skip, out).await,
        None => portolan_store::save(&*store, &Seams::system(), OnDamage::Skip, out).await,
    };
    store.close().await;
    match saved {
        Err(
            why @ (SnapshotError::Other(_)
            | SnapshotError::Store(StoreError::Compacted { .. } | StoreError::FutureRevision { .. })),
        ) if begun.is_some() => return Ok(Err(NotResumable(why.to_string()))),
        other => drop(other?),
    }
    out.flush().context("the snapshot cannot be written")?;
    Ok(Ok(()))
}
