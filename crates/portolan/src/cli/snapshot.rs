//! `portolan snapshot`: back a store up, make a store of a backup, look at one.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use http_body_util::BodyExt as _;
use portolan_store::{OpenError, Snapshot as Summary, StoreConfig};
use portolan_types::Seams;

use super::{etcd::EtcdFlags, output, server::ServerStore};

/// Back up the store of a server, restore it, or look at a backup.
#[derive(Args)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write all objects into a file, whether the server runs or not.
    Save(Save),
    /// Make the store of a server that has none, with any storage engine.
    Restore(Restore),
    /// Check a snapshot and tell what it holds.
    Inspect(Inspect),
}

#[derive(Args)]
struct Save {
    /// Data directory of the server.
    #[arg(long)]
    data_dir: PathBuf,
    /// File to write, readable by its owner only; `-` for standard output.
    file: PathBuf,
}

#[derive(Args)]
struct Restore {
    /// Data directory of the server to be; none for etcd.
    #[arg(long, required_unless_present = "etcd_endpoints")]
    data_dir: Option<PathBuf>,
    /// Storage engine.
    #[arg(long, value_enum, default_value_t = ServerStore::Redb)]
    store: ServerStore,
    #[command(flatten)]
    etcd: EtcdFlags,
    /// File to read; `-` for standard input.
    file: PathBuf,
}

#[derive(Args)]
struct Inspect {
    /// File to read; `-` for standard input.
    file: PathBuf,
}

impl Snapshot {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Save(save) => save.run(),
            Command::Restore(restore) => restore.run(),
            Command::Inspect(inspect) => inspect.run(),
        }
    }
}

impl Save {
    fn run(self) -> anyhow::Result<()> {
        let runtime = super::runtime()?;
        if is_standard(&self.file) {
            return runtime.block_on(take(&self.data_dir, &mut io::stdout()));
        }
        // A name that is there is that of a whole snapshot.
        let part = self.file.with_added_extension("part");
        let mut out = private_file(&part).with_context(|| format!("{} cannot be written", part.display()))?;
        let taken = runtime.block_on(take(&self.data_dir, &mut out)).and_then(|()| {
            out.sync_all()?;
            let summary = portolan_store::inspect(BufReader::new(File::open(&part)?))?;
            fs::rename(&part, &self.file)?;
            sync_dir_of(&self.file)?;
            Ok(summary)
        });
        match taken {
            Ok(summary) => eprintln!("{}: {}", self.file.display(), describe(&summary)),
            Err(error) => {
                // What is left of it is of no use; the error that made it so is told.
                let _ = fs::remove_file(&part);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Restore {
    fn run(self) -> anyhow::Result<()> {
        let (ids, seams, input) = (portolan_apiserver::directory::id_counter(), Seams::system(), input(&self.file)?);
        let Some(engine) = self.store.embedded() else {
            let etcd = self.etcd.read()?;
            let restored = portolan_store::restore_etcd(&etcd, &seams, input, Some(&ids));
            let summary = super::runtime()?.block_on(restored)?;
            eprintln!("{} in etcd: {}", etcd.prefix, describe(&summary));
            return Ok(());
        };
        let data_dir = self.data_dir.context("--data-dir is missing")?;
        let config = StoreConfig::new(engine, Some(data_dir.join("store")));
        let summary = portolan_store::restore(&config, &seams, input, Some(&ids))?;
        eprintln!("{}: {}", data_dir.display(), describe(&summary));
        eprintln!(
            "  hint: keys and certificates are not part of a snapshot, they are in the data directory's folder pki"
        );
        Ok(())
    }
}

impl Inspect {
    fn run(self) -> anyhow::Result<()> {
        let summary = portolan_store::inspect(input(&self.file)?)?;
        let Summary { revision, taken, objects, gone_clusters, bytes } = summary;
        output::print(&format!(
            "revision       {revision}\ntaken          {taken}\nobjects        {objects}\ngone clusters  {gone_clusters}\n\
             bytes          {bytes}\n"
        ))
    }
}

/// Takes a snapshot of the store in a data directory, or of the server that has it open.
async fn take(data_dir: &Path, out: &mut (impl Write + Send)) -> anyhow::Result<()> {
    let dir = data_dir.join("store");
    let Some(engine) = portolan_store::found_in(&dir) else {
        // The objects of a server on etcd are not here, but the way to it is.
        return match data_dir.join("admin.kubeconfig").exists() {
            true => download(data_dir, out).await,
            false => bail!("there is no store in {}", dir.display()),
        };
    };
    match portolan_store::open(StoreConfig::new(engine, Some(dir)), Seams::system()) {
        Ok(store) => {
            let saved = portolan_store::save(&*store, &Seams::system(), out).await;
            store.close().await;
            saved?;
        }
        Err(OpenError::InUse(_)) => download(data_dir, out).await?,
        Err(error) => return Err(error.into()),
    }
    out.flush().context("the snapshot cannot be written")
}

/// Asks the server, with the credentials that it left in its data directory.
async fn download(data_dir: &Path, out: &mut (impl Write + Send)) -> anyhow::Result<()> {
    let path = data_dir.join("admin.kubeconfig");
    let kubeconfig = kube::config::Kubeconfig::read_from(&path)?;
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await?;
    config.read_timeout = None;
    let client = kube::Client::try_from(config)?;
    let response = client.send(http::Request::get("/snapshot").body(kube::client::Body::empty())?).await?;
    if !response.status().is_success() {
        bail!("the server answered {}", response.status());
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame?.into_data() {
            out.write_all(&piece).context("the snapshot cannot be written")?;
        }
    }
    Ok(())
}

fn is_standard(file: &Path) -> bool {
    file == Path::new("-")
}

fn input(file: &Path) -> anyhow::Result<Box<dyn Read + Send>> {
    if is_standard(file) {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let opened = File::open(file).with_context(|| format!("{} cannot be read", file.display()))?;
    Ok(Box::new(BufReader::new(opened)))
}

/// A snapshot holds every Secret: what an earlier one left, or somebody else laid there, is not written into.
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

fn describe(summary: &Summary) -> String {
    format!("{} objects at revision {}, taken {}", summary.objects, summary.revision, summary.taken)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

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
        Save { data_dir: old.clone(), file: file.clone() }.run().unwrap();
        let mut seen = String::new();
        other.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "left by another", "who had it open reads nothing of the snapshot");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        Inspect { file: file.clone() }.run().unwrap();
        let restore = |data_dir: &Path| {
            let data_dir = Some(data_dir.to_owned());
            Restore { data_dir, store: ServerStore::Sled, etcd: EtcdFlags::default(), file: file.clone() }
        };
        restore(&new).run().unwrap();
        assert!(open(&new, portolan_store::Engine::Sled).current().get() > 1);
        for refused in
            [restore(&new).run(), Save { data_dir: dir.path().join("none"), file: dir.path().join("x") }.run()]
        {
            assert!(refused.unwrap_err().to_string().contains("there is"), "one is there, the other is not");
        }
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "nothing half is left: {left:?}");
    }
}
