//! Check of the store in the data directory.

use std::path::Path;

use portolan_control_plane::data_dir;
use portolan_store::{Engine, OpenError, StoreSurvey, survey};

use super::CheckFinding;
use crate::cli::{
    data_dir::{explained, store_in},
    server::ServerStore,
};

/// Examines the store, and checks that a server could open it.
pub(super) fn look(data_dir: &Path, chosen: Option<ServerStore>) -> CheckFinding {
    if let Err(refusal) = data_dir::refuse_etcd_data_dir(data_dir) {
        return match chosen {
            Some(_) => CheckFinding::Bad(refusal.to_string()),
            None => CheckFinding::Good(
                "the objects of this data directory are in etcd: --store etcd --etcd-endpoints URL looks there".into(),
            ),
        };
    }
    match survey(&store_in(data_dir)) {
        Ok(found) => store_finding(data_dir, found, chosen),
        Err(OpenError::NoFolder(_) | OpenError::NoStore(_)) => {
            CheckFinding::Good("there is none yet, a server makes one".into())
        }
        Err(other) => CheckFinding::Bad(format!("{:#}", explained(other))),
    }
}

fn store_finding(data_dir: &Path, found: StoreSurvey, chosen: Option<ServerStore>) -> CheckFinding {
    let StoreSurvey { engine, is_in_use, state, mark } = found;
    if let Some(other) = chosen.filter(|store| store.embedded() != Some(engine)) {
        return CheckFinding::Bad(format!(
            "{} holds a store of the {engine} engine, not of {}",
            data_dir.display(),
            other.name()
        ));
    }
    let mark = mark.map_or_else(|| "it has no mark".to_owned(), |mark| format!("its mark tells of revision {mark}"));
    match (is_in_use, state) {
        (true, _) => CheckFinding::Good(format!("{engine}, open in a server: portolan status asks it; {mark}")),
        (false, Some((format, last))) => {
            CheckFinding::Good(format!("{engine}, format {format}, at revision {last}, not in use; {mark}"))
        }
        (false, None) if engine == Engine::Sled => CheckFinding::Good(format!(
            "sled, not in use; {mark}. It was not opened, which sled does not do without writing: portolan verify reads all of it"
        )),
        (false, None) => CheckFinding::Good(format!("{engine}, not in use; {mark}")),
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
            CheckFinding::Good(text) => text,
            CheckFinding::Warning(text) | CheckFinding::Bad(text) => panic!("{text}"),
        }
    }

    fn bad(data_dir: &Path, chosen: Option<ServerStore>) -> String {
        match look(data_dir, chosen) {
            CheckFinding::Bad(text) => text,
            CheckFinding::Warning(text) | CheckFinding::Good(text) => panic!("{text}"),
        }
    }

    #[test]
    fn a_store_is_reported_with_and_without_its_server() {
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
    fn a_data_directory_of_a_server_on_etcd_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        data_dir::mark_etcd(dir.path()).unwrap();
        assert!(good(dir.path(), None).contains("--store etcd --etcd-endpoints"));
        assert!(bad(dir.path(), Some(ServerStore::Redb)).contains("are in etcd"));
    }
}
