//! `portolan snapshot save`. What is broken off stays beside the file, as FILE.part, and goes on when it is run again: at the same
//! revision, as long as the store keeps that.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read as _, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::Args;
use http::StatusCode;
use http_body_util::BodyExt as _;
use portolan_store::{Begun, OpenError, SnapshotError, StoreConfig, StoreError};
use portolan_types::Seams;

use super::{describe, is_standard};

#[derive(Args)]
pub(in crate::cli) struct Save {
    /// Data directory of the server.
    #[arg(long)]
    pub(in crate::cli) data_dir: PathBuf,
    /// File to write, readable by its owner only; `-` for standard output.
    pub(in crate::cli) file: PathBuf,
}

/// Why a snapshot that was begun must begin anew.
#[derive(Debug)]
struct CannotGoOn(String);

impl Save {
    pub(in crate::cli) fn run(self) -> anyhow::Result<()> {
        let runtime = crate::cli::runtime()?;
        if is_standard(&self.file) {
            let taken = runtime.block_on(take(&self.data_dir, None, &mut io::stdout()))?;
            return taken.map_err(|CannotGoOn(why)| anyhow::anyhow!(why));
        }
        // A name that is there is that of a whole snapshot.
        let part = self.file.with_added_extension("part");
        let begun = File::open(&part).ok().and_then(|left| portolan_store::begun(BufReader::new(left)));
        let mut out = part_file(&part, begun.as_ref())?;
        let taken = runtime.block_on(async {
            let cannot = match take(&self.data_dir, begun.as_ref(), &mut out).await? {
                Ok(()) => return Ok(()),
                Err(CannotGoOn(why)) => why,
            };
            eprintln!("{} cannot be completed, it begins anew: {cannot}", part.display());
            out = part_file(&part, None)?;
            take(&self.data_dir, None, &mut out).await?.map_err(|CannotGoOn(why)| anyhow::anyhow!(why))
        });
        if let Err(error) = taken {
            return Err(keep_or_remove(&part, error));
        }
        let finished = finish(&out, &part, &self.file);
        if finished.is_err() {
            // What is not a snapshot is none to go on with; the error that made it so is told.
            let _ = fs::remove_file(&part);
        }
        eprintln!("{}: {}", self.file.display(), describe(&finished?));
        Ok(())
    }
}

/// Makes the part the file, when it is a whole snapshot.
fn finish(out: &File, part: &Path, file: &Path) -> anyhow::Result<portolan_store::Snapshot> {
    out.sync_all()?;
    let summary = portolan_store::inspect(BufReader::new(File::open(part)?))?;
    fs::rename(part, file)?;
    sync_dir_of(file)?;
    Ok(summary)
}

/// Leaves what can be gone on with, and says so.
fn keep_or_remove(part: &Path, error: anyhow::Error) -> anyhow::Error {
    let begun = File::open(part).ok().and_then(|left| portolan_store::begun(BufReader::new(left)));
    match begun {
        Some(Begun { bytes, .. }) => {
            let hint = format!("{bytes} bytes are kept in {}; the same command goes on there", part.display());
            error.context(format!("the snapshot was broken off: {hint}"))
        }
        None => {
            let _ = fs::remove_file(part);
            error
        }
    }
}

/// Takes a snapshot of the store in a data directory, or of the server that has it open, or what one lacks that was begun.
async fn take(
    data_dir: &Path,
    begun: Option<&Begun>,
    out: &mut (impl Write + Send),
) -> anyhow::Result<Result<(), CannotGoOn>> {
    let dir = data_dir.join("store");
    let Some(engine) = portolan_store::found_in(&dir) else {
        // The objects of a server on etcd are not here, but the way to it is.
        return match data_dir.join("admin.kubeconfig").exists() {
            true => download(data_dir, begun, out).await,
            false => bail!("there is no store in {}", dir.display()),
        };
    };
    let store = match portolan_store::open(StoreConfig::new(engine, Some(dir)), Seams::system()) {
        Ok(store) => store,
        Err(OpenError::InUse(_)) => return download(data_dir, begun, out).await,
        Err(error) => return Err(error.into()),
    };
    let saved = match begun {
        Some(begun) => portolan_store::go_on(&*store, begun, out).await,
        None => portolan_store::save(&*store, &Seams::system(), out).await,
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

/// Asks the server, with the credentials that it left in its data directory.
async fn download(
    data_dir: &Path,
    begun: Option<&Begun>,
    out: &mut (impl Write + Send),
) -> anyhow::Result<Result<(), CannotGoOn>> {
    let path = data_dir.join("admin.kubeconfig");
    let kubeconfig = kube::config::Kubeconfig::read_from(&path)?;
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await?;
    config.read_timeout = None;
    let client = kube::Client::try_from(config)?;
    let query = begun.map_or_else(String::new, |Begun { revision, taken, bytes, sha256 }| {
        format!("?revision={revision}&taken={taken}&bytes={bytes}&sha256={sha256}")
    });
    let request = http::Request::get(format!("/snapshot{query}")).body(kube::client::Body::empty())?;
    let response = client.send(request).await?;
    match response.status() {
        status if status.is_success() => {}
        // The revision is forgotten, or one that this store never had.
        StatusCode::GONE | StatusCode::GATEWAY_TIMEOUT if begun.is_some() => {
            let body = response.into_body().collect().await?.to_bytes();
            let status: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            return Ok(Err(CannotGoOn(status["message"].as_str().unwrap_or("the server cannot go on").to_owned())));
        }
        status => bail!("the server answered {status}"),
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame.context("the connection was cut")?.into_data() {
            out.write_all(&piece).context("the snapshot cannot be written")?;
        }
    }
    Ok(Ok(()))
}

/// A snapshot holds every Secret: what an earlier one left, or somebody else laid there, is not written into. What there is of
/// it is copied.
fn part_file(path: &Path, begun: Option<&Begun>) -> anyhow::Result<File> {
    let before = File::open(path);
    let mut made = private_file(path).with_context(|| format!("{} cannot be written", path.display()))?;
    if let (Some(Begun { bytes, .. }), Ok(before)) = (begun, before) {
        io::copy(&mut before.take(*bytes), &mut made)
            .with_context(|| format!("{} cannot be copied", path.display()))?;
    }
    Ok(made)
}

fn private_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// So that the name is there also after a loss of power.
fn sync_dir_of(file: &Path) -> io::Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use portolan_store::{DynStore, Expect, Transaction};
    use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record};
    use serde_json::json;

    use super::*;

    async fn put(store: &DynStore, name: &str) {
        let resource = GroupResource::new("", "configmaps");
        let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, name.parse().unwrap());
        let record = Record::of(&json!({"metadata": {"name": name}, "data": name.repeat(20_000)}));
        store.commit(Transaction::one(key, Expect::Anything, Some(record))).await.unwrap();
    }

    #[test]
    fn what_was_broken_off_goes_on_at_its_revision_as_long_as_that_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (data_dir, file) = (dir.path().join("data"), dir.path().join("backup"));
        let save = || Save { data_dir: data_dir.clone(), file: file.clone() }.run();
        let with_store = |change: &dyn Fn(&DynStore, &tokio::runtime::Runtime)| {
            let runtime = crate::cli::runtime().unwrap();
            let config = StoreConfig::new(portolan_store::Engine::Redb, Some(data_dir.join("store")));
            let store = portolan_store::open(config, Seams::system()).unwrap();
            change(&store, &runtime);
            runtime.block_on(store.close());
        };
        with_store(&|store, runtime| (0..20).for_each(|n| runtime.block_on(put(store, &format!("before-{n}")))));
        save().unwrap();
        let whole = fs::read(&file).unwrap();
        let first = portolan_store::inspect(&*whole).unwrap();
        with_store(&|store, runtime| runtime.block_on(put(store, "after")));
        for keep in [whole.len() / 3, whole.len() - 1, whole.len()] {
            fs::write(dir.path().join("backup.part"), &whole[..keep]).unwrap();
            save().unwrap();
            assert_eq!(fs::read(&file).unwrap(), whole, "from {keep} of {} bytes on", whole.len());
        }
        with_store(&|store, runtime| runtime.block_on(store.compact(store.current())).unwrap());
        fs::write(dir.path().join("backup.part"), &whole[..whole.len() / 2]).unwrap();
        save().unwrap();
        let anew = portolan_store::inspect(&*fs::read(&file).unwrap()).unwrap();
        assert_eq!((anew.objects, anew.revision), (first.objects + 1, first.revision + 1));
        assert!(!dir.path().join("backup.part").exists());
    }
}
