//! Survey of a store: reads its state without writing, also while a server has it open.

use std::path::Path;

use super::{
    Engine, OpenError, StoreConfig,
    directory::{find_engine, is_older_format, open_without_writing},
    high_water_mark::{HighWaterMark, MarkedDataDir},
};
use crate::{
    engine::read,
    read::bookkeeping::{LoadError, StoreBookkeeping, check_end, load},
};

/// State of the store in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSurvey {
    /// Engine of the store.
    pub engine: Engine,
    /// True if another process has it open. Only the mark was read then.
    pub is_in_use: bool,
    /// Format and revision of the store. `None` if the store is in use, or if the engine cannot read them without
    /// writing, as for an older format.
    pub state: Option<(u32, u64)>,
    /// Revision in the high-water mark.
    pub mark: Option<u64>,
}

/// Surveys the store in a directory without writing. A redb store is opened, which takes time if it was not closed
/// cleanly; no server can start there meanwhile.
///
/// # Errors
/// Returns the errors of [`find_engine`]; `NewerFormat`; `Damaged` if the store could not be opened or does not fit its
/// mark; `Io`.
pub fn survey(dir: &Path) -> Result<StoreSurvey, OpenError> {
    let engine = find_engine(dir)?;
    let damaged = |what| OpenError::Damaged { dir: dir.to_owned(), what };
    let mark = HighWaterMark::read_revision(dir).map_err(damaged)?;
    let config = StoreConfig::new(engine, Some(dir.to_owned()));
    let (kv, home) = match open_without_writing(dir.to_owned(), &config) {
        Ok(opened) => opened,
        Err(OpenError::InUse(_)) => return Ok(StoreSurvey { engine, is_in_use: true, state: None, mark }),
        Err(OpenError::ReadOnly { .. }) => return Ok(StoreSurvey { engine, is_in_use: false, state: None, mark }),
        Err(older) if is_older_format(&older) => {
            return Ok(StoreSurvey { engine, is_in_use: false, state: None, mark });
        }
        Err(other) => return Err(other),
    };
    let looked = read(&*kv, |view| {
        let found = load(view)?;
        check_end(view, found.marks)?;
        Ok(found)
    });
    kv.close();
    let refused = |error: LoadError| super::StoreStartError::Load(error).in_directory(dir.to_owned());
    let StoreBookkeeping { format, identity, marks, .. } =
        looked.map_err(|error| refused(error.into()))?.map_err(refused)?;
    MarkedDataDir::compare(&home, &identity, marks.last).map_err(damaged)?;
    Ok(StoreSurvey { engine, is_in_use: false, state: Some((format, marks.last)), mark })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use portolan_types::{LogicalClusterId, ObjectKey, Record, Seams};

    use super::*;
    use crate::{
        api::{Expect, Transaction},
        engine::RedbKv,
        object_client::ObjectClient,
        open::{open, open_to_read, verify},
        read::bookkeeping::FORMAT,
    };

    /// Reads all files of a directory.
    fn files(dir: &Path) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                all.extend(files(&path))
            } else {
                drop(all.insert(path.clone(), fs::read(&path).unwrap()))
            }
        }
        all
    }

    async fn write(objects: &ObjectClient, name: &str) {
        let resource = portolan_types::GroupResource::new("", "configmaps");
        let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, name.parse().unwrap());
        let record = Some(Record::of(&serde_json::json!({"data": name})));
        objects.store().commit(Transaction::one(key, Expect::Anything, record)).await.unwrap();
    }

    #[tokio::test]
    async fn a_store_is_looked_at_without_a_byte_being_written() {
        for engine in [Engine::Redb, Engine::Sled] {
            let dir = tempfile::tempdir().unwrap();
            let config = || StoreConfig::new(engine, Some(dir.path().to_owned()));
            let objects = ObjectClient::new(open(config(), Seams::system()).unwrap());
            write(&objects, "a").await;
            let running = survey(dir.path()).unwrap();
            assert_eq!((running.engine, running.is_in_use, running.state), (engine, true, None));
            let last = objects.store().current().get();
            objects.store().close().await;
            drop(objects);
            let before = files(dir.path());
            let state = (engine == Engine::Redb).then_some((FORMAT, last));
            let expected = StoreSurvey { engine, is_in_use: false, state, mark: Some(last) };
            assert_eq!(survey(dir.path()).unwrap(), expected);
            assert_eq!(files(dir.path()), before, "{engine}");
        }
    }

    #[tokio::test]
    async fn a_store_that_was_not_closed_is_recovered_in_memory() {
        let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config = |dir: &Path| StoreConfig::new(Engine::Redb, Some(dir.to_owned()));
        let objects = ObjectClient::new(open(config(dir.path()), Seams::system()).unwrap());
        for number in 0..50 {
            write(&objects, &format!("n{number}")).await;
        }
        // The copy equals the files of a killed process.
        for (path, bytes) in files(dir.path()) {
            fs::write(copy.path().join(path.file_name().unwrap()), bytes).unwrap();
        }
        let last = objects.store().current().get();
        objects.store().close().await;
        let before = files(copy.path());
        assert_eq!(survey(copy.path()).unwrap().state, Some((FORMAT, last)));
        assert_eq!(files(copy.path()), before);
    }

    #[tokio::test]
    async fn a_read_only_open_of_another_format_reports_no_damage() {
        let dir = tempfile::tempdir().unwrap();
        let config = || StoreConfig::new(Engine::Redb, Some(dir.path().to_owned()));
        let objects = ObjectClient::new(open(config(), Seams::system()).unwrap());
        write(&objects, "a").await;
        let last = objects.store().current().get();
        objects.store().close().await;
        drop(objects);
        let file = dir.path().join("store.redb");
        RedbKv::make_older(&file);
        let before = files(dir.path());
        let expected = StoreSurvey { engine: Engine::Redb, is_in_use: false, state: None, mark: Some(last) };
        assert_eq!(survey(dir.path()).unwrap(), expected);
        let told = open_without_writing(dir.path().to_owned(), &config()).map(drop).unwrap_err();
        assert!(matches!(told, OpenError::Io { .. }) && told.to_string().contains("older format"), "{told}");
        assert_eq!(files(dir.path()), before);
        verify(config(), Seams::system()).unwrap();
        assert_eq!(survey(dir.path()).unwrap().state, Some((FORMAT, last)), "it was converted");
        RedbKv::make_newer(&file);
        let before = files(dir.path());
        // Version of the file's own layout.
        let known = 4;
        for told in [survey(dir.path()).unwrap_err(), verify(config(), Seams::system()).unwrap_err()] {
            assert!(
                matches!(told, OpenError::NewerFormat { found, known: k } if (found, k) == (known + 1, known)),
                "{told}"
            );
        }
        assert_eq!(files(dir.path()), before);
    }

    #[tokio::test]
    async fn an_older_file_that_ends_before_its_mark_is_not_converted() {
        let dir = tempfile::tempdir().unwrap();
        let config = || StoreConfig::new(Engine::Redb, Some(dir.path().to_owned()));
        let objects = ObjectClient::new(open(config(), Seams::system()).unwrap());
        write(&objects, "a").await;
        let file = dir.path().join("store.redb");
        let earlier = fs::read(&file).unwrap();
        write(&objects, "b").await;
        objects.store().close().await;
        drop(objects);
        fs::write(&file, earlier).unwrap();
        RedbKv::make_older(&file);
        let before = fs::read(&file).unwrap();
        let refused = open(config(), Seams::system()).map(drop).unwrap_err();
        assert!(
            matches!(refused, OpenError::Damaged { .. }) && refused.to_string().contains("lost writes"),
            "{refused}"
        );
        assert!(fs::read(&file).unwrap() == before, "what could tell why is still there");
        fs::remove_file(dir.path().join("store.mark")).unwrap();
        let reopened = ObjectClient::new(open(config(), Seams::system()).unwrap());
        reopened.store().close().await;
    }

    #[test]
    fn a_missing_store_has_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let told = |dir: &Path| survey(dir).unwrap_err();
        assert!(matches!(told(&dir.path().join("nowhere")), OpenError::NoFolder(_)));
        assert!(matches!(told(dir.path()), OpenError::NoStore(_)));
        fs::write(dir.path().join("store.mark"), "of one that was here").unwrap();
        assert!(matches!(told(dir.path()), OpenError::Lost(_)));
        fs::write(dir.path().join("store.redb.restoring"), "half").unwrap();
        let half = told(dir.path());
        assert!(matches!(half, OpenError::HalfRestored(_)), "{half}");
        fs::write(dir.path().join("store.redb"), "no store at all").unwrap();
        assert!(matches!(told(dir.path()), OpenError::Damaged { .. }));
        let around = dir.path().join("around");
        std::os::unix::fs::symlink("around", &around).unwrap();
        let unseen = told(&around);
        assert!(matches!(unseen, OpenError::Io { .. }) && unseen.to_string().contains("looking for"), "{unseen}");
        for refused in [
            verify(StoreConfig::new(Engine::Redb, Some(around.clone())), Seams::system()).err(),
            open_to_read(StoreConfig::new(Engine::Redb, Some(around)), &Seams::system()).err(),
        ] {
            assert!(matches!(refused, Some(OpenError::Io { .. })), "{refused:?}");
        }
    }
}
