//! The store in the data directory.

use std::path::Path;

use portolan_store::{Engine, OpenError, Survey, survey};

use super::Finding;
use crate::{
    cli::{
        data_dir::{explained, store_in},
        server::ServerStore,
    },
    shared_keys,
};

/// What is there, and whether a server could open it.
pub(super) fn look(data_dir: &Path, chosen: Option<ServerStore>) -> Finding {
    if let Err(refusal) = shared_keys::refuse_marked(data_dir) {
        return match chosen {
            Some(_) => Finding::Bad(refusal.to_string()),
            None => Finding::Good(
                "the objects of this data directory are in etcd: --store etcd --etcd-endpoints URL looks there".into(),
            ),
        };
    }
    match survey(&store_in(data_dir)) {
        Ok(found) => told(data_dir, found, chosen),
        Err(OpenError::NoFolder(_) | OpenError::NoStore(_)) => {
            Finding::Good("there is none yet, a server makes one".into())
        }
        Err(other) => Finding::Bad(format!("{:#}", explained(other))),
    }
}

fn told(data_dir: &Path, found: Survey, chosen: Option<ServerStore>) -> Finding {
    let Survey { engine, is_in_use, state, mark } = found;
    if let Some(other) = chosen.filter(|store| store.embedded() != Some(engine)) {
        return Finding::Bad(format!(
            "{} holds a store of the {engine} engine, not of {}",
            data_dir.display(),
            other.name()
        ));
    }
    let mark = mark.map_or_else(|| "it has no mark".to_owned(), |mark| format!("its mark tells of revision {mark}"));
    match (is_in_use, state) {
        (true, _) => Finding::Good(format!("{engine}, open in a server: portolan status asks it; {mark}")),
        (false, Some((format, last))) => {
            Finding::Good(format!("{engine}, format {format}, at revision {last}, not in use; {mark}"))
        }
        (false, None) if engine == Engine::Sled => Finding::Good(format!(
            "sled, not in use; {mark}. It was not opened, which sled does not do without writing: portolan verify reads all of it"
        )),
        (false, None) => Finding::Good(format!("{engine}, not in use; {mark}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use portolan_store::{StoreConfig, open};
    use portolan_types::Seams;

    use super::*;

    fn good(data_dir: &Path, chosen: Option<ServerStore>) -> String {
        match look(data_dir, chosen) {
            Finding::Good(text) => text,
            Finding::Warning(text) | Finding::Bad(text) => panic!("{text}"),
        }
    }

    fn bad(data_dir: &Path, chosen: Option<ServerStore>) -> String {
        match look(data_dir, chosen) {
            Finding::Bad(text) => text,
            Finding::Warning(text) | Finding::Good(text) => panic!("{text}"),
        }
    }

    #[test]
    fn a_store_is_told_of_beside_its_server_and_without_one() {
        let dir = tempfile::tempdir().unwrap();
        assert!(good(dir.path(), None).contains("there is none yet"));
        let store = open(StoreConfig::new(Engine::Redb, Some(store_in(dir.path()))), Seams::system()).unwrap();
        let running = good(dir.path(), Some(ServerStore::Redb));
        assert!(
            running.contains("redb, open in a server") && running.contains("its mark tells of revision 1"),
            "{running}"
        );
        crate::cli::runtime().unwrap().block_on(store.close());
        drop(store);
        let stopped = good(dir.path(), None);
        let (format, _) = survey(&store_in(dir.path())).unwrap().state.unwrap();
        let expected = format!("redb, format {format}, at revision 1, not in use; its mark tells of revision 1");
        assert!(stopped.contains(&expected), "{stopped}");
        let other = bad(dir.path(), Some(ServerStore::Sled));
        assert!(other.contains("holds a store of the redb engine, not of sled"), "{other}");

        let mark = store_in(dir.path()).join("store.mark");
        fs::write(&mark, "no mark").unwrap();
        assert!(bad(dir.path(), None).contains("store.mark"));
        fs::remove_file(&mark).unwrap();
        assert!(good(dir.path(), None).contains("it has no mark"));
        fs::write(store_in(dir.path()).join("store.redb"), "no store at all").unwrap();
        assert!(bad(dir.path(), None).contains("damaged"));
        fs::remove_file(store_in(dir.path()).join("store.redb")).unwrap();
        fs::write(store_in(dir.path()).join("store.redb.restoring"), []).unwrap();
        assert!(bad(dir.path(), None).contains("run portolan snapshot restore again"));
    }

    #[test]
    fn where_the_objects_are_in_etcd_that_is_told() {
        let dir = tempfile::tempdir().unwrap();
        shared_keys::mark(dir.path()).unwrap();
        assert!(good(dir.path(), None).contains("--store etcd --etcd-endpoints"));
        assert!(bad(dir.path(), Some(ServerStore::Redb)).contains("are in etcd"));
    }
}
