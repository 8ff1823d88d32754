//! `portolan snapshot`: back up a store, restore it, or inspect a backup.

mod checked_pipe;
mod save;

use std::{
    fs::File,
    io::{self, BufReader, IsTerminal as _, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use clap::{Args, Subcommand};
use portolan_store::{Engine, SnapshotSummary as Summary, StoreConfig};
use portolan_types::Seams;

pub(super) use self::save::SaveArgs;
#[cfg(test)]
pub(super) use self::save::saved_line;
use super::{etcd::EtcdFlags, interrupt::on_interrupt, output, server::ServerStore, values, workspaces::inspect_named};

/// Note about keys, which most snapshots do not contain.
const KEYS: &str = "keys are in the data directory's folder pki, and in the snapshot where it is of a store in etcd";

/// Back up the store of a server, restore it, or inspect a backup.
#[derive(Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Subcommand)]
enum SnapshotCommand {
    /// Write all objects to a file, whether the server runs or not. If it was interrupted, run it again to resume.
    Save(SaveArgs),
    /// Restore a snapshot into a new store, with any storage engine.
    Restore(RestoreArgs),
    /// Check a snapshot and print its contents.
    Inspect(InspectArgs),
}

#[derive(Args)]
struct RestoreArgs {
    /// Data directory of the new server; none for etcd.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Storage engine.
    #[arg(long, value_parser = values::lasting_store(), default_value = "redb")]
    store: ServerStore,
    #[command(flatten)]
    etcd: EtcdFlags,
    /// File to read; `-` for standard input.
    file: PathBuf,
}

#[derive(Args)]
struct InspectArgs {
    /// File to read; `-` for standard input.
    file: PathBuf,
}

impl SnapshotArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            SnapshotCommand::Save(save) => save.run(),
            SnapshotCommand::Restore(restore) => restore.run(),
            SnapshotCommand::Inspect(inspect) => inspect.run(),
        }
    }
}

impl RestoreArgs {
    fn run(self) -> anyhow::Result<()> {
        refuse_other_files(&self.file)?;
        let (ids, seams, input) = (portolan_apiserver::directory::id_counter(), Seams::system(), input(&self.file)?);
        let Some(engine) = self.store.embedded() else {
            ensure!(self.data_dir.is_none(), "--data-dir is not for --store etcd");
            let etcd = self.etcd.read()?;
            let prefix = etcd.prefix.clone();
            on_interrupt(move || {
                format!(
                    "half of it may be under {prefix} in etcd, and no server starts on that: delete it, then restore again"
                )
            })?;
            let restored = portolan_store::restore_etcd(&etcd, &seams, input, Some(&ids));
            let summary = super::runtime()?.block_on(restored).with_context(|| unused(&self.file))?;
            eprintln!("{} in etcd: {}", etcd.prefix, describe(&summary));
            eprintln!("  hint: {KEYS}; else copy pki into the first server's data directory before its first start");
            return Ok(());
        };
        self.etcd.refuse_for(self.store)?;
        ensure!(engine != Engine::Memory, "--store memory keeps nothing: restore into redb, sled or etcd");
        let data_dir = self.data_dir.with_context(|| format!("--store {engine} needs --data-dir"))?;
        let config = StoreConfig::new(engine, Some(data_dir.join("store")));
        let place = data_dir.display().to_string();
        on_interrupt(move || format!("no server starts in {place} until the same command has been run to its end"))?;
        let summary =
            portolan_store::restore(&config, &seams, input, Some(&ids)).with_context(|| unused(&self.file))?;
        eprintln!("{}: {}", data_dir.display(), describe(&summary));
        eprintln!("  hint: {KEYS}; else copy pki into {} before the first start", data_dir.display());
        Ok(())
    }
}

impl InspectArgs {
    fn run(self) -> anyhow::Result<()> {
        let summary = inspect_named(input(&self.file)?)
            .with_context(|| format!("{} cannot be inspected", display_path(&self.file)))?;
        let Summary { revision, taken, objects, gone_clusters, bytes, damaged } = summary;
        let left_out = if damaged.is_empty() {
            String::new()
        } else {
            format!("partial        it lacks these objects: {damaged}\n")
        };
        output::print(&format!(
            "revision       {revision}\ntaken          {taken}\nobjects        {objects}\ngone clusters  {gone_clusters}\n\
             bytes          {bytes}\n{left_out}"
        ))
    }
}

/// Refuses a file that does not start like a snapshot, before anything is made from it. Standard input can be read only
/// once.
fn refuse_other_files(file: &Path) -> anyhow::Result<()> {
    let is_one = is_standard(file) || portolan_store::is_snapshot(input(file)?);
    ensure!(is_one, "{}: it is no snapshot of Portolan", unused(file));
    Ok(())
}

fn is_standard(file: &Path) -> bool {
    file == Path::new("-")
}

/// Formats a file for messages.
fn display_path(file: &Path) -> String {
    if is_standard(file) { "standard input".into() } else { file.display().to_string() }
}

fn unused(file: &Path) -> String {
    format!("{} is not restored", display_path(file))
}

fn input(file: &Path) -> anyhow::Result<Box<dyn Read + Send>> {
    if is_standard(file) {
        ensure!(
            !io::stdin().is_terminal(),
            "standard input is a terminal: name the file, or redirect it, as in < FILE"
        );
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let opened = File::open(file).with_context(|| format!("{} cannot be read", file.display()))?;
    Ok(Box::new(BufReader::new(opened)))
}

fn describe(summary: &Summary) -> String {
    format!("{} objects at revision {}, taken {}", summary.objects, summary.revision, summary.taken)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn a_store_is_saved_looked_at_and_restored_on_another_engine() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new, file) = (dir.path().join("old"), dir.path().join("new"), dir.path().join("backup"));
        let open = |dir: &Path, engine| {
            portolan_store::open(StoreConfig::new(engine, Some(dir.join("store"))), Seams::system()).unwrap()
        };
        drop(open(&old, portolan_store::Engine::Redb));
        let part = dir.path().join("backup.part");
        fs::write(&part, "left by another").unwrap();
        fs::set_permissions(&part, fs::Permissions::from_mode(0o644)).unwrap();
        let mut other = File::open(&part).unwrap();
        SaveArgs { data_dir: old.clone(), skip_damaged: false, file: file.clone() }.run().unwrap();
        let mut seen = String::new();
        other.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "left by another", "who had it open reads nothing of the snapshot");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        InspectArgs { file: file.clone() }.run().unwrap();
        let restore = |data_dir: &Path| {
            let data_dir = Some(data_dir.to_owned());
            RestoreArgs { data_dir, store: ServerStore::Sled, etcd: EtcdFlags::default(), file: file.clone() }
        };
        restore(&new).run().unwrap();
        assert!(open(&new, portolan_store::Engine::Sled).current().get() > 1);
        for refused in [
            restore(&new).run(),
            SaveArgs { data_dir: dir.path().join("none"), skip_damaged: false, file: dir.path().join("x") }.run(),
        ] {
            assert!(format!("{:#}", refused.unwrap_err()).contains("there is"), "one is there, the other is not");
        }
        for (data_dir, store, why) in [
            (Some(new.clone()), ServerStore::Etcd, "--data-dir is not for --store etcd"),
            (None, ServerStore::Etcd, "--store etcd needs --etcd-endpoints"),
            (None, ServerStore::Sled, "--store sled needs --data-dir"),
            (Some(new.clone()), ServerStore::Memory, "--store memory keeps nothing"),
            (Some(new), ServerStore::Redb, "holds a store of the sled engine: --store sled"),
        ] {
            let wrong = RestoreArgs { data_dir, store, etcd: EtcdFlags::default(), file: file.clone() };
            let refused = format!("{:#}", wrong.run().unwrap_err());
            assert!(refused.contains(why), "{refused}");
        }
        let none = InspectArgs { file: dir.path().join("old/store/store.redb") }.run();
        let none = format!("{:#}", none.unwrap_err());
        assert!(none.contains("store.redb cannot be inspected: this is no snapshot"), "{none}");
        let (data_dir, file) = (Some(dir.path().join("empty")), dir.path().join("old/store/store.redb"));
        let wrong = RestoreArgs { data_dir, store: ServerStore::Redb, etcd: EtcdFlags::default(), file }.run();
        let wrong = format!("{:#}", wrong.unwrap_err());
        assert!(wrong.contains("store.redb is not restored: it is no snapshot of Portolan"), "{wrong}");
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "nothing half is left: {left:?}");
    }
}
