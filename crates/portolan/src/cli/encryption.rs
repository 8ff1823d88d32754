//! `portolan encryption`: rewrites a store with the present keys, and verifies that nothing is stored plain.

use std::{
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand};
use portolan_apiserver::config::read_encryption_config;
use portolan_store::{
    EncryptionReport, Keyring, ResealedStore, StoreConfig, examine_encryption, inspect_each, interrupted_rewrite,
    open_etcd, open_to_read, rewrite_embedded,
};
use portolan_types::Seams;

use super::{
    COULD_NOT_LOOK, FAILED,
    data_dir::{engine_in, explained, store_in},
    etcd::EtcdFlags,
    interrupt::on_interrupt,
    output,
    server::ServerStore,
};

/// Encryption of objects at rest.
#[derive(Args)]
pub(crate) struct EncryptionArgs {
    #[command(subcommand)]
    command: EncryptionCommand,
}

#[derive(Subcommand)]
enum EncryptionCommand {
    /// Store every object as the configuration says, with the first key of its rule: after a key was added, before one
    /// is removed, and to encrypt what was stored before there were keys. The history is removed with it, so clients
    /// list again. An embedded store must not be in use; it is replaced by a new file.
    Rewrite(EncryptedStoreArgs),
    /// Look for objects that the configuration encrypts and that are stored plain, or that no key opens: among the
    /// latest ones, in the history and in snapshots.
    ///
    /// Exit code 0: there are none. 1: there are some. 2: the check was not possible.
    Verify(VerifyEncryptionArgs),
}

#[derive(Args)]
struct EncryptedStoreArgs {
    /// File with the EncryptionConfiguration of the server.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: PathBuf,
    /// Data directory of the server, which must not run.
    #[arg(long, required_unless_present = "etcd_endpoints", conflicts_with = "etcd_endpoints")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    etcd: EtcdFlags,
}

#[derive(Args)]
struct VerifyEncryptionArgs {
    /// File with the EncryptionConfiguration of the server.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: PathBuf,
    /// Data directory of the server, which must not run.
    #[arg(long, conflicts_with = "etcd_endpoints")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    etcd: EtcdFlags,
    /// Snapshot to examine; may be repeated.
    #[arg(long = "snapshot", value_name = "FILE")]
    snapshots: Vec<PathBuf>,
}

/// Error of a store with plain or unreadable objects.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct PlainObjects(String);

/// Returns the exit code for an error.
pub(super) fn code(error: &anyhow::Error) -> u8 {
    if error.is::<PlainObjects>() { FAILED } else { COULD_NOT_LOOK }
}

impl EncryptionArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            EncryptionCommand::Rewrite(args) => args.rewrite(),
            EncryptionCommand::Verify(args) => args.verify(),
        }
    }
}

/// Returns the configuration of the embedded store in a data directory.
fn embedded(data_dir: &Path) -> anyhow::Result<StoreConfig> {
    match engine_in(data_dir)? {
        Some(engine) => Ok(StoreConfig::new(engine, Some(store_in(data_dir)))),
        None => bail!("there is no store in {}", data_dir.display()),
    }
}

impl EncryptedStoreArgs {
    fn rewrite(self) -> anyhow::Result<()> {
        let keyring = read_encryption_config(&self.encryption_provider_config)?;
        let seams = Seams::system();
        let Some(data_dir) = self.data_dir else {
            let etcd = self.etcd.read()?;
            let written = super::runtime()?.block_on(async {
                let (store, _) =
                    open_etcd(&etcd, &StoreConfig::new(portolan_store::Engine::Memory, None), &seams).await?;
                let written = ResealedStore::new(store.clone(), keyring, seams.clone()).rewrite_in_place().await;
                store.close().await;
                anyhow::Ok(written?)
            })?;
            return output::line(&format!(
                "{written} objects were rewritten, and the history was removed; etcdctl defrag removes their bytes from the disks"
            ));
        };
        self.etcd.refuse_for(ServerStore::Redb)?;
        let config = embedded(&data_dir)?;
        on_interrupt(|| "nothing was changed".to_owned())?;
        let ids = portolan_apiserver::directory::id_counter();
        let summary = super::runtime()?.block_on(rewrite_embedded(config, keyring, &seams, Some(&ids)))?;
        output::line(&format!("{} objects were rewritten into a new store without history", summary.objects))
    }
}

impl VerifyEncryptionArgs {
    fn verify(self) -> anyhow::Result<()> {
        let keyring = read_encryption_config(&self.encryption_provider_config)?;
        let is_etcd = self.etcd.is_given();
        ensure!(
            self.data_dir.is_some() || is_etcd || !self.snapshots.is_empty(),
            "name a --data-dir, --etcd-endpoints or a --snapshot"
        );
        let mut bad = Vec::new();
        if self.data_dir.is_some() || is_etcd {
            let report = super::runtime()?.block_on(self.examine_store(&keyring))?;
            report_on("the store", &report, &mut bad)?;
            let leftover = self.data_dir.as_deref().and_then(|dir| interrupted_rewrite(&store_in(dir)));
            bad.extend(leftover.map(|path| {
                let path = path.display();
                format!(
                    "{path} is left from an interrupted rewrite and may hold plain objects: rewrite the store again"
                )
            }));
        }
        for path in &self.snapshots {
            let mut report = EncryptionReport::default();
            let file = File::open(path).with_context(|| path.display().to_string())?;
            inspect_each(BufReader::new(file), &mut |key, record| report.examine(&keyring, key, record))
                .with_context(|| path.display().to_string())?;
            report_on(&path.display().to_string(), &report, &mut bad)?;
        }
        if bad.is_empty() { Ok(()) } else { Err(PlainObjects(bad.join("\n")).into()) }
    }

    async fn examine_store(&self, keyring: &Keyring) -> anyhow::Result<EncryptionReport> {
        let seams = Seams::system();
        let store = match &self.data_dir {
            Some(data_dir) => open_to_read(embedded(data_dir)?, &seams).map_err(explained)?,
            None => {
                let config = StoreConfig::new(portolan_store::Engine::Memory, None);
                open_etcd(&self.etcd.read()?, &config, &seams).await?.0
            }
        };
        let report = examine_encryption(&*store, keyring).await;
        store.close().await;
        Ok(report?)
    }
}

/// Prints a report, and adds its faults to `bad`.
fn report_on(place: &str, report: &EncryptionReport, bad: &mut Vec<String>) -> anyhow::Result<()> {
    let EncryptionReport { current, older, plain, unreadable } = report;
    output::line(&format!(
        "{place}: {current} objects encrypted with the first key, {older} with an older one, {} plain, {} unreadable",
        plain.count, unreadable.count
    ))?;
    for (what, list) in [("not encrypted", plain), ("encrypted, and no key opens them", unreadable)] {
        if !list.is_empty() {
            bad.push(format!("{place}: {} objects are {what}:\n  {}", list.count, list.first.join("\n  ")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use portolan_store::{Engine, Expect, Transaction, open};
    use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record};
    use serde_json::json;

    use super::*;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn key(resource: &str) -> ObjectKey {
        let resource = GroupResource::new("", resource);
        ObjectKey::namespaced(LogicalClusterId::ROOT, resource, "shop".parse().unwrap(), "a".parse().unwrap())
    }

    /// Returns true if a file below a directory has the bytes.
    fn holds(dir: &Path, bytes: &[u8]) -> bool {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).any(|path| match path.is_dir() {
            is_dir if is_dir => holds(&path, bytes),
            _ => fs::read(&path).unwrap().windows(bytes.len()).any(|window| window == bytes),
        })
    }

    fn config(dir: &Path, providers: &str) -> PathBuf {
        let path = dir.join("encryption.yaml");
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n\
             resources: [{{resources: [secrets], providers: [{providers}]}}]\n"
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn verify(data_dir: &Path, file: &Path, snapshots: &[PathBuf]) -> Result<(), (u8, String)> {
        let args = VerifyEncryptionArgs {
            encryption_provider_config: file.to_owned(),
            data_dir: Some(data_dir.to_owned()),
            etcd: EtcdFlags::default(),
            snapshots: snapshots.to_vec(),
        };
        args.verify().map_err(|error| (code(&error), format!("{error:#}")))
    }

    fn rewrite(data_dir: &Path, file: &Path) -> anyhow::Result<()> {
        let args = EncryptedStoreArgs {
            encryption_provider_config: file.to_owned(),
            data_dir: Some(data_dir.to_owned()),
            etcd: EtcdFlags::default(),
        };
        args.rewrite()
    }

    #[test]
    fn a_rewritten_store_has_no_plain_byte_left() {
        for engine in [Engine::Redb, Engine::Sled] {
            let folder = tempfile::tempdir().unwrap();
            let data_dir = folder.path().join("data");
            fs::create_dir(&data_dir).unwrap();
            let (one, two) = (format!("{{name: one, secret: {KEY}}}"), format!("{{name: two, secret: {KEY}}}"));
            let fresh = config(folder.path(), &format!("{{aesgcm: {{keys: [{one}]}}}}, {{identity: {{}}}}"));
            let store = open(StoreConfig::new(engine, Some(data_dir.join("store"))), Seams::system()).unwrap();
            let runtime = crate::cli::runtime().unwrap();
            runtime.block_on(async {
                for value in ["hunter2hunter2", "hunter3hunter3"] {
                    for resource in ["secrets", "configmaps"] {
                        let value = if resource == "secrets" { value } else { "public" };
                        let object = Record::of(&json!({"metadata": {"name": "a", "uid": resource}, "data": value}));
                        store.commit(Transaction::one(key(resource), Expect::Anything, Some(object))).await.unwrap();
                    }
                }
                store.close().await;
            });
            drop((store, runtime));
            assert!(holds(&data_dir, b"hunter3hunter3"), "{engine}: it is stored plain");
            let (code, text) = verify(&data_dir, &fresh, &[]).unwrap_err();
            assert!(code == FAILED && text.contains("in the history") && text.contains("shop/a"), "{engine}: {text}");
            rewrite(&data_dir, &fresh).unwrap();
            verify(&data_dir, &fresh, &[]).unwrap();
            let leftover = data_dir.join("store.rewritten");
            fs::create_dir(&leftover).unwrap();
            let (code, text) = verify(&data_dir, &fresh, &[]).unwrap_err();
            assert!(code == FAILED && text.contains("store.rewritten is left"), "{engine}: {text}");
            rewrite(&data_dir, &fresh).unwrap();
            assert!(!leftover.exists(), "{engine}: the next rewrite removes it");
            for bytes in [&b"hunter2hunter2"[..], b"hunter3hunter3"] {
                assert!(!holds(&data_dir, bytes), "{engine}: no byte is left");
            }
            assert!(holds(&data_dir, b"public"), "{engine}: other resources stay plain");
            let rotated =
                config(folder.path(), &format!("{{secretbox: {{keys: [{two}]}}}}, {{aesgcm: {{keys: [{one}]}}}}"));
            rewrite(&data_dir, &rotated).unwrap();
            let without_old = config(folder.path(), &format!("{{secretbox: {{keys: [{two}]}}}}"));
            verify(&data_dir, &without_old, &[]).unwrap();
            let lost = config(folder.path(), &format!("{{aesgcm: {{keys: [{one}]}}}}"));
            let (code, text) = verify(&data_dir, &lost, &[]).unwrap_err();
            assert!(code == FAILED && text.contains("no key opens"), "{engine}: {text}");
            assert!(
                rewrite(&data_dir, &lost).unwrap_err().to_string().contains("damaged"),
                "{engine}: and it is refused"
            );
            verify(&data_dir, &config(folder.path(), &format!("{{secretbox: {{keys: [{two}]}}}}")), &[]).unwrap();
        }
    }

    #[test]
    fn checks_that_are_not_possible_have_a_code_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = config(folder.path(), "{identity: {}}");
        assert_eq!(verify(folder.path(), &file, &[]).unwrap_err().0, COULD_NOT_LOOK);
        assert_eq!(verify(folder.path(), &folder.path().join("missing"), &[]).unwrap_err().0, COULD_NOT_LOOK);
    }
}
