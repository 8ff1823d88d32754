//! Signing keys that all servers on one etcd share, so that each accepts what another has signed.
//!
//! The keys are stored in the system's logical cluster, which no request reaches. The first server on an empty store
//! makes them, and puts its own into a restored store; other servers copy them into their data directories. A server
//! with an embedded store that was restored from such a store moves them out of it.

use std::{collections::BTreeMap, fs, os::unix::fs::DirBuilderExt as _, path::Path};

use anyhow::{Context as _, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_apiserver::{
    ApiServerConfig,
    pki::{Pki, write_secret},
};
use portolan_store::{DynStore, Expect, ObjectClient, RangeRequest, RangeScope, StoreError, Transaction};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record};
use serde_json::json;

/// Shared files of the data directory. Each server has its own certificates, signed by the one authority.
const SHARED: [&str; 4] = ["pki/ca.crt", "pki/ca.key", "pki/service-accounts.key", "pki/continue.key"];
/// Files that an authority has signed, which go when it is replaced.
const SIGNED: [&str; 4] = ["pki/server.crt", "pki/server.key", "pki/admin.crt", "pki/admin.key"];

type KeyFiles = BTreeMap<String, Vec<u8>>;

fn key() -> ObjectKey {
    let resource = GroupResource::new("internal.portolan.dev", "keys");
    ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, resource, "server".parse().expect("it is a name"))
}

/// Moves the keys out of an embedded store into a data directory without keys, so that earlier signatures stay valid.
pub(crate) async fn settle(store: &DynStore, config: &ApiServerConfig) -> anyhow::Result<()> {
    let Some(dir) = config.data_dir.as_deref() else { return Ok(()) };
    let has_own = are_there(dir);
    match stored(store).await {
        Ok(None) => return Ok(()),
        Ok(Some(_)) if has_own => {}
        Ok(Some(shared)) => take(dir, &read(dir)?, &shared)?,
        Err(error) if has_own => tracing::warn!(%error, "unneeded keys in the store cannot be read"),
        Err(error) => return Err(error),
    }
    let removed = store.commit(Transaction::one(key(), Expect::Anything, None)).await;
    if let Err(error) = removed {
        tracing::warn!(%error, "the keys were copied to the data directory, and stay in the store until the next start");
    }
    Ok(())
}

/// Returns true if the data directory has all shared keys.
pub(crate) fn are_there(data_dir: &Path) -> bool {
    SHARED.iter().all(|name| data_dir.join(name).is_file())
}

/// Copies the keys of the store into the data directory, or those of the data directory into a store without keys.
pub(crate) async fn share(store: &DynStore, config: &ApiServerConfig) -> anyhow::Result<()> {
    let Some(dir) = config.data_dir.as_deref() else { return Ok(()) };
    let before = read(dir)?;
    if let Some(shared) = stored(store).await? {
        return take(dir, &before, &shared);
    }
    if has_objects(store).await? {
        // The first server on an empty store, which writes the keys first, may have been faster.
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
        // Another server was first, or the answer was lost: the stored keys count.
        Err(StoreError::AlreadyExists { .. } | StoreError::Unknown) => {
            let shared = stored(store).await?.context("the stored keys are gone")?;
            take(dir, &before, &shared)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns true if the store has any object.
async fn has_objects(store: &DynStore) -> Result<bool, StoreError> {
    let one = RangeRequest { limit: Some(1), ..RangeRequest::all(RangeScope::All).skip_damaged() };
    Ok(store.range(one).await?.last.is_some())
}

/// Refuses to make new keys for a store restored from a snapshot, which has none: that would void all kubeconfigs and
/// tokens, and shut out the servers that have the keys.
fn refuse_incomplete(dir: &Path, found: &KeyFiles) -> anyhow::Result<()> {
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

fn encode(files: &KeyFiles) -> BTreeMap<&str, String> {
    files.iter().map(|(name, bytes)| (name.as_str(), STANDARD.encode(bytes))).collect()
}

async fn stored(store: &DynStore) -> anyhow::Result<Option<KeyFiles>> {
    let Some((object, _)) = ObjectClient::new(store.clone()).get_value(&key()).await? else { return Ok(None) };
    let file = |name: &str| {
        let text = object["files"][name].as_str().with_context(|| format!("{name} is not among them"))?;
        Ok((name.to_owned(), STANDARD.decode(text).with_context(|| format!("{name} is damaged"))?))
    };
    SHARED.into_iter().map(file).collect::<anyhow::Result<_>>().map(Some)
}

fn read(dir: &Path) -> anyhow::Result<KeyFiles> {
    let mut files = KeyFiles::new();
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
fn take(dir: &Path, before: &KeyFiles, shared: &KeyFiles) -> anyhow::Result<()> {
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
    async fn no_server_replaces_the_keys_of_a_restored_store() {
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
}
