//! `portolan snapshot save`. What is broken off stays beside the file, as FILE.part, and goes on when it is run again: at the same
//! revision, as long as the store keeps that.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufReader, Read as _, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use http::{StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use portolan_store::{Begun, OnDamage, OpenError, Snapshot, SnapshotError, StoreConfig, StoreError};
use portolan_types::Seams;

use super::{describe, is_standard, passing::Passing};
use crate::cli::data_dir::{engine_in, explained, store_in};

#[derive(Args)]
pub(in crate::cli) struct Save {
    /// Data directory of the server.
    #[arg(long)]
    pub(in crate::cli) data_dir: PathBuf,
    /// Leave out objects that are damaged, and name them, instead of refusing.
    #[arg(long)]
    pub(in crate::cli) skip_damaged: bool,
    /// File to write, readable by its owner only; `-` for standard output.
    pub(in crate::cli) file: PathBuf,
}

/// Most bytes of an answer that is no snapshot.
const STATUS_BYTES: usize = 64 << 10;

/// Why a snapshot that was begun must begin anew.
#[derive(Debug)]
struct CannotGoOn(String);

impl Save {
    pub(in crate::cli) fn run(self) -> anyhow::Result<()> {
        let (place, summary) = match is_standard(&self.file) {
            true => ("standard output".to_owned(), self.to_stream(&mut io::stdout())?),
            false => (self.file.display().to_string(), self.to_file()?),
        };
        eprintln!("{}", told(&place, &summary));
        Ok(())
    }

    /// Writes all but the end, and that when the rest is a whole snapshot, or what was left out may be.
    pub(in crate::cli) fn to_stream(&self, out: &mut (impl Write + Send)) -> anyhow::Result<Snapshot> {
        let mut passing = Passing::new(out)?;
        let taken = crate::cli::runtime()?.block_on(take(&self.data_dir, None, &mut passing))?;
        taken.map_err(|CannotGoOn(why)| anyhow::anyhow!(why))?;
        passing.finish(|summary| accepted(summary, self.skip_damaged))
    }

    fn to_file(&self) -> anyhow::Result<Snapshot> {
        let runtime = crate::cli::runtime()?;
        refuse_other_than_file(&self.file)?;
        // A name that is there is that of a whole snapshot.
        let part = self.file.with_added_extension("part");
        let begun = left_in(&part)?;
        let mut out = part_file(&part, begun.as_ref())?;
        // What was left out is named in the snapshot, and looked at before it has its name.
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
        let finished = finish(&out, &part, &self.file, self.skip_damaged);
        if finished.is_err() {
            // What is not a snapshot is none to go on with; the error that made it so is told.
            let _ = fs::remove_file(&part);
        }
        finished
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

/// What is moved to the name of a device, a pipe or a link takes its place, and what was meant gets nothing.
fn refuse_other_than_file(file: &Path) -> anyhow::Result<()> {
    let Ok(found) = fs::symlink_metadata(file) else { return Ok(()) };
    let shown = file.display();
    match found.file_type() {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_symlink() => {
            bail!("{shown} is a symbolic link, which the snapshot would replace: name the file itself")
        }
        kind if kind.is_dir() => bail!("{shown} is a directory: name a file"),
        _ => bail!(
            "{shown} is no regular file, and the snapshot would replace it: to write into it, save to - and redirect that"
        ),
    }
}

/// Makes the part the file, when it is a whole snapshot, or what was left out may be.
fn finish(out: &File, part: &Path, file: &Path, skip_damaged: bool) -> anyhow::Result<Snapshot> {
    out.sync_all()?;
    let summary = accepted(portolan_store::inspect(BufReader::new(File::open(part)?))?, skip_damaged)?;
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

/// Takes a snapshot of the store in a data directory, or of the server that has it open, or what one lacks that was begun. What is
/// damaged is left out and named at its end: a server that refused in the middle of its answer could only cut the connection.
async fn take(
    data_dir: &Path,
    begun: Option<&Begun>,
    out: &mut (impl Write + Send),
) -> anyhow::Result<Result<(), CannotGoOn>> {
    let Some(engine) = engine_in(data_dir)? else {
        // The objects of a server on etcd are not here, but the way to it is.
        return match data_dir.join("admin.kubeconfig").exists() {
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
    // Who waits for it is told at once, and can run it again.
    config.default_retry = false;
    let server = config.cluster_url.clone();
    let client = kube::Client::try_from(config)?;
    let rest = begun.map_or_else(String::new, |Begun { revision, taken, bytes, sha256 }| {
        format!("&revision={revision}&taken={taken}&bytes={bytes}&sha256={sha256}")
    });
    let request = http::Request::get(format!("/snapshot?damaged=skip{rest}")).body(kube::client::Body::empty())?;
    let response = client.send(request).await.map_err(|error| no_answer(&server, &error))?;
    let code = response.status();
    if !code.is_success() {
        let why = message(response.into_body()).await;
        // The revision is forgotten, or one that this store never had.
        return match matches!(code, StatusCode::GONE | StatusCode::GATEWAY_TIMEOUT) && begun.is_some() {
            true => Ok(Err(CannotGoOn(why))),
            false => Err(refusal(&server, code, &why)),
        };
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame.context("the connection was cut")?.into_data() {
            out.write_all(&piece).context("the snapshot cannot be written")?;
        }
    }
    Ok(Ok(()))
}

/// What the server says in a Status; other words are not its own.
async fn message(body: kube::client::Body) -> String {
    let body =
        Limited::new(body, STATUS_BYTES).collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let status: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    status["message"].as_str().unwrap_or("it does not say why").to_owned()
}

/// What is told of an answer that is no snapshot.
fn refusal(server: &Uri, code: StatusCode, why: &str) -> anyhow::Error {
    let what = format!("the server at {server} answered {code}: {why}");
    match code {
        StatusCode::SERVICE_UNAVAILABLE => anyhow!(
            "{what}; its store does not answer or is being opened: its log and /readyz?verbose tell more. \
             Run this again once it is ready"
        ),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            anyhow!("{what}; it is not the server of this data directory, or that has got other keys since")
        }
        _ => anyhow!(what),
    }
}

/// What is told when no answer came. Of all causes the last one says why; those before it, that it did not work.
fn no_answer(server: &Uri, error: &kube::Error) -> anyhow::Error {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    anyhow!(
        "the server of this data directory does not answer at {server}: {cause}. Start it, or wait until it has started: what is \
         in etcd, in memory or in use is saved by the running server only"
    )
}

/// What an earlier one left to go on with.
///
/// # Errors
/// When it is not left: whoever writes it has it locked.
fn left_in(part: &Path) -> anyhow::Result<Option<Begun>> {
    let Ok(left) = File::open(part) else { return Ok(None) };
    match left.try_lock_shared() {
        Err(TryLockError::WouldBlock) => bail!("{} is being written by another snapshot save", part.display()),
        // Where files cannot be locked, nobody is kept out.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(portolan_store::begun(BufReader::new(left))),
    }
}

/// A snapshot holds every Secret: what an earlier one left, or somebody else laid there, is not written into. What there is of
/// it is copied, and stays where it is until that is done.
fn part_file(path: &Path, begun: Option<&Begun>) -> anyhow::Result<File> {
    let (Some(Begun { bytes, .. }), Ok(before)) = (begun, File::open(path)) else {
        return private_file(path).with_context(|| format!("{} cannot be written", path.display()));
    };
    let copy = path.with_added_extension("new");
    let mut made = private_file(&copy).with_context(|| format!("{} cannot be written", copy.display()))?;
    let copied = io::copy(&mut before.take(*bytes), &mut made).and_then(|_| fs::rename(&copy, path));
    if let Err(error) = copied {
        let _ = fs::remove_file(&copy);
        return Err(error).with_context(|| format!("{} cannot be copied", path.display()));
    }
    Ok(made)
}

/// A new file that its owner alone can read, locked as far as that can be.
fn private_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let _ = made.try_lock();
    Ok(made)
}

/// So that the name is there also after a loss of power.
fn sync_dir_of(file: &Path) -> io::Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, sync::Arc};

    use portolan_apiserver::{ApiServerConfig, pki::Pki, serve::serve_starting};
    use portolan_store::{DynStore, Expect, Transaction};
    use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record};
    use serde_json::json;

    use super::*;
    use crate::readiness::EtcdOpening;

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
        let save = || Save { data_dir: data_dir.clone(), skip_damaged: false, file: file.clone() }.run();
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

    #[test]
    fn one_at_a_time_writes_a_part_and_what_it_had_is_kept_until_it_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        let (data_dir, file, part) =
            (dir.path().join("data"), dir.path().join("backup"), dir.path().join("backup.part"));
        let config = StoreConfig::new(portolan_store::Engine::Redb, Some(data_dir.join("store")));
        let store = portolan_store::open(config, Seams::system()).unwrap();
        crate::cli::runtime().unwrap().block_on(async {
            put(&store, "a").await;
            store.close().await;
        });
        drop(store);
        let save = || Save { data_dir: data_dir.clone(), skip_damaged: false, file: file.clone() }.run();
        save().unwrap();
        let whole = fs::read(&file).unwrap();
        fs::write(&part, &whole[..whole.len() / 2]).unwrap();

        let other = File::open(&part).unwrap();
        other.try_lock().unwrap();
        let refused = save().unwrap_err().to_string();
        assert!(refused.contains("backup.part is being written by another snapshot save"), "{refused}");
        drop(other);

        // A copy that cannot be made takes nothing away.
        let begun = left_in(&part).unwrap().unwrap();
        fs::create_dir(dir.path().join("backup.part.new")).unwrap();
        assert!(part_file(&part, Some(&begun)).is_err());
        assert_eq!(fs::read(&part).unwrap(), whole[..whole.len() / 2]);
        fs::remove_dir(dir.path().join("backup.part.new")).unwrap();
        let made = part_file(&part, Some(&begun)).unwrap();
        assert_eq!(made.metadata().unwrap().len(), begun.bytes);
        assert!(left_in(&part).is_err(), "who writes it has it locked");
        drop(made);
        save().unwrap();
        assert_eq!(fs::read(&file).unwrap(), whole);
    }

    #[test]
    fn only_a_regular_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let [data_dir, target, link, dangling, socket, folder] =
            ["data", "target", "link", "dangling", "socket", "folder"].map(|name| dir.path().join(name));
        let config = StoreConfig::new(portolan_store::Engine::Redb, Some(data_dir.join("store")));
        drop(portolan_store::open(config, Seams::system()).unwrap());
        fs::write(&target, "somebody's").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        std::os::unix::fs::symlink(dir.path().join("nowhere"), &dangling).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        fs::create_dir(&folder).unwrap();
        let kind = |file: &Path| fs::symlink_metadata(file).unwrap().file_type();
        for (file, words) in [
            (&link, "is a symbolic link"),
            (&dangling, "is a symbolic link"),
            (&socket, "is no regular file"),
            (&folder, "is a directory"),
        ] {
            let before = kind(file);
            let save = Save { data_dir: data_dir.clone(), skip_damaged: false, file: file.clone() };
            let refused = save.run().unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
            assert_eq!(kind(file), before, "{refused}");
            assert!(!file.with_added_extension("part").exists(), "{refused}");
        }
        assert_eq!(fs::read(&target).unwrap(), b"somebody's");
        Save { data_dir, skip_damaged: false, file: target.clone() }.run().unwrap();
        assert!(portolan_store::inspect(File::open(&target).unwrap()).is_ok(), "a file that is there is replaced");
    }

    /// The data directory of a server whose store is elsewhere, as its start left it.
    fn of_a_server_at(address: SocketAddr, dir: &Path) -> ApiServerConfig {
        let config = ApiServerConfig::in_directory(dir.join("data"), Seams::system());
        let config = ApiServerConfig { bind_address: address, ..config };
        Pki::open(&config).unwrap();
        config
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn why_no_server_gives_a_snapshot_is_told_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let save = || {
            let (data_dir, file) = (dir.path().join("data"), dir.path().join("backup"));
            let saved = tokio::task::spawn_blocking(|| Save { data_dir, skip_damaged: false, file }.run());
            async { saved.await.unwrap().unwrap_err().to_string() }
        };
        let nowhere = save().await;
        assert!(nowhere.contains("no server has been started with this data directory"), "{nowhere}");

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = of_a_server_at(address, dir.path());
        let done = tokio_util::sync::CancellationToken::new();
        let serving = serve_starting(&listener, &config, Arc::new(EtcdOpening), done.clone());
        let asking = async {
            let waiting = save().await;
            done.cancel();
            waiting
        };
        let (served, waiting) = tokio::join!(serving, asking);
        served.unwrap();
        for words in [&address.to_string(), "503", "the store in etcd is being opened", "/readyz?verbose"] {
            assert!(waiting.contains(words), "{words}: {waiting}");
        }

        drop(listener);
        let stopped = save().await;
        for words in [&address.to_string(), "Connection refused", "Start it"] {
            assert!(stopped.contains(words), "{words}: {stopped}");
        }
        assert!(!stopped.contains("ServiceError"), "{stopped}");
        assert!(!dir.path().join("backup.part").exists());
    }
}
