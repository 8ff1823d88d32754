//! The keys that all servers on one etcd share: what one of them has signed, the others accept.
//!
//! They lie in the store, in the system's own logical cluster, which no request reaches. The first server on an empty store makes them;
//! into one that was restored it brings them. The others take them into their data directories. A server that has a store of its own which
//! was restored from such a one takes them out of it.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use anyhow::{Context as _, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_apiserver::{
    ApiServerConfig,
    pki::{Pki, write_secret},
};
use portolan_store::{DynStore, Expect, Objects, RangeRequest, RangeScope, StoreError, Transaction};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record};
use serde_json::json;

/// What is shared, in the data directory. Each server has its own certificates, signed by the one authority.
const SHARED: [&str; 4] = ["pki/ca.crt", "pki/ca.key", "pki/service-accounts.key", "pki/continue.key"];
/// What was signed by an authority that is replaced.
const SIGNED: [&str; 4] = ["pki/server.crt", "pki/server.key", "pki/admin.crt", "pki/admin.key"];

/// Tells that a data directory is of a server whose objects are in etcd.
const MARK: &str = "etcd.mark";

/// Locked by the server that runs on a data directory whose objects are in etcd: others would take its address and certificates.
const LOCK: &str = "server.lock";

type Files = BTreeMap<String, Vec<u8>>;

fn key() -> ObjectKey {
    let resource = GroupResource::new("internal.portolan.dev", "keys");
    ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, resource, "server".parse().expect("it is a name"))
}

/// Refuses a data directory that holds a store of its own: its objects would not be there.
pub(crate) fn check_unused(data_dir: &Path) -> anyhow::Result<()> {
    let store = data_dir.join("store");
    if store.exists() {
        bail!("{} holds a store of its own; name another --data-dir, or move it by snapshot", data_dir.display());
    }
    Ok(())
}

/// Holds a data directory whose objects are in etcd, for as long as the file is open.
///
/// # Errors
/// When another server holds it, or it cannot be written.
pub(crate) fn claim(data_dir: &Path) -> anyhow::Result<File> {
    let path = data_dir.join(LOCK);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir);
    let opened =
        made.and_then(|()| OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path));
    let lock = opened.with_context(|| format!("{} cannot be written", path.display()))?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => bail!("{} is in use by another process", data_dir.display()),
        // Where files cannot be locked, nobody is kept out.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(lock),
    }
}

/// Whether a server holds a data directory with [`claim`].
pub(crate) fn is_claimed(data_dir: &Path) -> bool {
    let lock = File::open(data_dir.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Says in a data directory that what belongs to it is in etcd.
pub(crate) fn mark(data_dir: &Path) -> anyhow::Result<()> {
    let mark = data_dir.join(MARK);
    let text = "The objects of this server are in etcd (--store etcd).\n";
    fs::write(&mark, text).with_context(|| format!("{} cannot be written", mark.display()))
}

/// Refuses a data directory whose objects are in etcd: a store of its own would be an empty one.
pub(crate) fn refuse_marked(data_dir: &Path) -> anyhow::Result<()> {
    let mark = data_dir.join(MARK);
    if mark.exists() {
        bail!(
            "the objects of {} are in etcd: --store etcd; to have others here in a store of its own, remove {}",
            data_dir.display(),
            mark.display()
        );
    }
    Ok(())
}

/// Takes the keys that servers on one etcd shared out of a store that this server has for itself, into a data directory that has none:
/// what they have signed stays good. From then on they are where any such server has them.
pub(crate) async fn settle(store: &DynStore, config: &ApiServerConfig) -> anyhow::Result<()> {
    let Some(dir) = config.data_dir.as_deref() else { return Ok(()) };
    let has_own = are_there(dir);
    match stored(store).await {
        Ok(None) => return Ok(()),
        Ok(Some(_)) if has_own => {}
        Ok(Some(shared)) => take(dir, &read(dir)?, &shared)?,
        Err(error) if has_own => tracing::warn!(%error, "keys that are in the store, and not needed, cannot be read"),
        Err(error) => return Err(error),
    }
    let removed = store.commit(Transaction::one(key(), Expect::Anything, None)).await;
    if let Err(error) = removed {
        tracing::warn!(%error, "keys that are in the data directory now stay in the store, until the next start");
    }
    Ok(())
}

/// Whether an earlier start has left all of them in the data directory.
pub(crate) fn are_there(data_dir: &Path) -> bool {
    SHARED.iter().all(|name| data_dir.join(name).is_file())
}

/// Takes the keys of the store into the data directory, or those of the data directory into a store that has none.
pub(crate) async fn share(store: &DynStore, config: &ApiServerConfig) -> anyhow::Result<()> {
    let Some(dir) = config.data_dir.as_deref() else { return Ok(()) };
    let before = read(dir)?;
    if let Some(shared) = stored(store).await? {
        return take(dir, &before, &shared);
    }
    if has_objects(store).await? {
        // The first server on an empty store, which writes the keys before all else, may have been faster.
        if let Some(shared) = stored(store).await? {
            return take(dir, &before, &shared);
        }
        refuse_incomplete(dir, &before)?;
    }
    Pki::open(config)?;
    let object = json!({"metadata": {"name": "server"}, "files": encode(&read(dir)?)});
    let first = Transaction::one(key(), Expect::Absent, Some(Record::of(&object)));
    match store.commit(first).await {
        Ok(_) => Ok(()),
        // Another server was first, or the answer is lost: what is stored now counts.
        Err(StoreError::AlreadyExists { .. } | StoreError::Unknown) => {
            let shared = stored(store).await?.context("they were stored and are gone")?;
            take(dir, &before, &shared)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether there is anything in a store.
async fn has_objects(store: &DynStore) -> Result<bool, StoreError> {
    let one = RangeRequest { limit: Some(1), ..RangeRequest::all(RangeScope::All).past_damage() };
    Ok(store.range(one).await?.last.is_some())
}

/// What is in the store was signed with keys that it does not have, as those of a snapshot are: whoever made others now would void all
/// kubeconfigs and tokens, and shut out the servers that have them.
fn refuse_incomplete(dir: &Path, found: &Files) -> anyhow::Result<()> {
    let missing: Vec<_> = SHARED.into_iter().filter(|name| !found.contains_key(*name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "the store was restored from a snapshot without keys, and {} lacks {}; fix: put the folder pki there of the data directory that was \
         saved, or first start a server that has it; where it is lost, docs/operating.md tells how to make another",
        dir.display(),
        missing.join(", "),
    )
}

fn encode(files: &Files) -> BTreeMap<&str, String> {
    files.iter().map(|(name, bytes)| (name.as_str(), STANDARD.encode(bytes))).collect()
}

async fn stored(store: &DynStore) -> anyhow::Result<Option<Files>> {
    let Some((object, _)) = Objects::new(store.clone()).get_value(&key()).await? else { return Ok(None) };
    let file = |name: &str| {
        let text = object["files"][name].as_str().with_context(|| format!("{name} is not among them"))?;
        Ok((name.to_owned(), STANDARD.decode(text).with_context(|| format!("{name} is damaged"))?))
    };
    SHARED.into_iter().map(file).collect::<anyhow::Result<_>>().map(Some)
}

fn read(dir: &Path) -> anyhow::Result<Files> {
    let mut files = Files::new();
    for name in SHARED {
        match fs::read(dir.join(name)) {
            Ok(bytes) => drop(files.insert(name.to_owned(), bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| dir.join(name).display().to_string()),
        }
    }
    Ok(files)
}

/// Writes the shared keys. `before` is what the directory had before this start.
fn take(dir: &Path, before: &Files, shared: &Files) -> anyhow::Result<()> {
    if before.iter().any(|(name, bytes)| shared.get(name) != Some(bytes)) {
        bail!("{} has keys of another installation than the store; name an empty --data-dir", dir.display());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir.join("pki"))?;
    if read(dir)? != *shared {
        for name in SIGNED {
            match fs::remove_file(dir.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                Ok(()) | Err(_) => {}
            }
        }
    }
    for (name, bytes) in shared {
        write_secret(&dir.join(name), bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_types::Seams;

    #[tokio::test]
    async fn servers_on_one_store_have_one_authority_and_no_other_is_taken_for_it() {
        let (store, folder) = (portolan_store::memory(), tempfile::tempdir().unwrap());
        let config = |name: &str| ApiServerConfig::in_directory(folder.path().join(name), Seams::system());
        let (first, second, other) = (config("first"), config("second"), config("other"));
        share(&store, &first).await.unwrap();
        assert!(are_there(&folder.path().join("first")) && !are_there(&folder.path().join("second")));
        share(&store, &second).await.unwrap();
        share(&store, &first).await.unwrap();
        let [first, second] = [&first, &second].map(|config| Pki::open(config).unwrap());
        assert_eq!((&first.ca, &first.service_accounts), (&second.ca, &second.service_accounts));
        assert_eq!(first.continue_key, second.continue_key);
        assert_ne!(first.server.key, second.server.key, "each has a certificate of its own");
        Pki::open(&other).unwrap();
        let refused = share(&store, &other).await.unwrap_err().to_string();
        assert!(refused.contains("another installation"), "{refused}");
    }

    #[tokio::test]
    async fn no_server_makes_other_keys_for_what_was_restored() {
        let (store, folder) = (portolan_store::memory(), tempfile::tempdir().unwrap());
        let config = |name: &str| ApiServerConfig::in_directory(folder.path().join(name), Seams::system());
        let restored = ObjectKey { name: "restored".parse().unwrap(), ..key() };
        let object = Record::of(&json!({"metadata": {"name": "restored"}}));
        store.commit(Transaction::one(restored, Expect::Absent, Some(object))).await.unwrap();
        let [empty, half, whole] = ["empty", "half", "whole"].map(config);
        Pki::open(&half).unwrap();
        fs::remove_file(folder.path().join("half/pki/service-accounts.key")).unwrap();
        for (case, config, missing) in
            [("empty", &empty, "lacks pki/ca.crt, pki/ca.key, "), ("half", &half, "lacks pki/service-accounts.key;")]
        {
            let refused = share(&store, config).await.unwrap_err().to_string();
            assert!(refused.contains("without keys") && refused.contains(missing), "{case}: {refused}");
            assert!(!are_there(&folder.path().join(case)), "{case}: none are made");
        }
        let before = Pki::open(&whole).unwrap();
        share(&store, &whole).await.unwrap();
        share(&store, &empty).await.unwrap();
        let taken = Pki::open(&empty).unwrap();
        assert_eq!((taken.ca, taken.service_accounts), (before.ca, before.service_accounts));
    }

    #[tokio::test]
    async fn a_server_with_a_store_of_its_own_goes_on_with_the_keys_that_are_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let config = |name: &str| ApiServerConfig::in_directory(folder.path().join(name), Seams::system());
        let [before, restored, own] = ["before", "restored", "own"].map(config);
        let authority = |config: &ApiServerConfig| Pki::open(config).map(|pki| (pki.ca, pki.service_accounts)).unwrap();
        let store = portolan_store::memory();
        settle(&store, &restored).await.unwrap();
        assert!(!are_there(&folder.path().join("restored")), "there is nothing in it");
        share(&store, &before).await.unwrap();
        settle(&store, &restored).await.unwrap();
        assert!(authority(&restored) == authority(&before));
        assert!(stored(&store).await.unwrap().is_none(), "they are in the data directory alone");

        share(&store, &before).await.unwrap();
        let of_own = authority(&own);
        settle(&store, &own).await.unwrap();
        assert!(authority(&own) == of_own, "who has some keeps them");
        assert!(stored(&store).await.unwrap().is_none());
    }

    #[test]
    fn a_directory_with_a_store_of_its_own_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        check_unused(folder.path()).unwrap();
        refuse_marked(folder.path()).unwrap();
        mark(folder.path()).unwrap();
        let refused = refuse_marked(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("--store etcd") && refused.contains("etcd.mark"), "{refused}");
        fs::create_dir(folder.path().join("store")).unwrap();
        assert!(check_unused(folder.path()).is_err());
    }
}
