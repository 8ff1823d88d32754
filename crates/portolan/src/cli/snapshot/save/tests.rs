//! Tests of snapshots of closed stores, and of servers that provide none.

use std::{net::SocketAddr, sync::Arc};

use portolan_apiserver::{ApiServerConfig, http::serve_starting, pki::Pki};
use portolan_control_plane::EtcdOpeningCheck;
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

/// Makes a data directory with a closed store of one object.
fn closed_store(dir: &Path) -> PathBuf {
    let data_dir = dir.join("data");
    let config = StoreConfig::new(portolan_store::Engine::Redb, Some(data_dir.join("store")));
    let store = portolan_store::open(config, Seams::system()).unwrap();
    crate::cli::runtime().unwrap().block_on(async {
        put(&store, "a").await;
        store.close().await;
    });
    data_dir
}

#[test]
fn an_interrupted_snapshot_resumes_at_its_revision() {
    let dir = tempfile::tempdir().unwrap();
    let (data_dir, file) = (dir.path().join("data"), dir.path().join("backup"));
    let save = || SaveArgs { data_dir: data_dir.clone(), skip_damaged: false, file: file.clone() }.run();
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
fn one_writer_replaces_a_part_and_keeps_it_until_the_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (file, part) = (dir.path().join("backup"), dir.path().join("backup.part"));
    let data_dir = closed_store(dir.path());
    let save = || SaveArgs { data_dir: data_dir.clone(), skip_damaged: false, file: file.clone() }.run();
    save().unwrap();
    let whole = fs::read(&file).unwrap();
    fs::write(&part, &whole[..whole.len() / 2]).unwrap();

    let other = File::open(&part).unwrap();
    other.try_lock().unwrap();
    let refused = save().unwrap_err().to_string();
    assert!(refused.contains("backup.part is being written by another snapshot save"), "{refused}");
    drop(other);

    // A failed copy removes nothing.
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
        let save = SaveArgs { data_dir: data_dir.clone(), skip_damaged: false, file: file.clone() };
        let refused = save.run().unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
        assert_eq!(kind(file), before, "{refused}");
        assert!(!file.with_added_extension("part").exists(), "{refused}");
    }
    let save = || SaveArgs { data_dir: data_dir.clone(), skip_damaged: false, file: target.clone() }.run();
    let refused = save().unwrap_err().to_string();
    assert!(refused.contains("target is no snapshot of Portolan, and is not replaced"), "{refused}");
    assert_eq!(fs::read(&target).unwrap(), b"somebody's");
    fs::write(&target, []).unwrap();
    for case in ["a file that was made for it", "an earlier snapshot"] {
        save().unwrap_or_else(|error| panic!("{case}: {error:#}"));
        assert!(portolan_store::inspect(File::open(&target).unwrap()).is_ok(), "{case} is replaced");
    }
}

/// Creates the data directory of a server whose store is elsewhere.
fn of_a_server_at(address: SocketAddr, dir: &Path) -> ApiServerConfig {
    let config = ApiServerConfig::in_directory(dir.join("data"), Seams::system());
    let config = ApiServerConfig { bind_address: address, ..config };
    Pki::open(&config).unwrap();
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_snapshot_has_a_reason_and_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let save = || {
        let (data_dir, file) = (dir.path().join("data"), dir.path().join("backup"));
        let saved = tokio::task::spawn_blocking(|| SaveArgs { data_dir, skip_damaged: false, file }.run());
        async { saved.await.unwrap().unwrap_err().to_string() }
    };
    let missing = save().await;
    assert!(missing.contains("there is no directory"), "{missing}");
    std::os::unix::fs::DirBuilderExt::mode(&mut fs::DirBuilder::new(), 0o700).create(dir.path().join("data")).unwrap();
    let nowhere = save().await;
    assert!(nowhere.contains("no server has been started with this data directory"), "{nowhere}");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = of_a_server_at(address, dir.path());
    let done = tokio_util::sync::CancellationToken::new();
    let serving = serve_starting(&listener, &config, Arc::new(EtcdOpeningCheck), done.clone());
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

#[test]
fn a_snapshot_is_not_written_to_a_terminal() {
    refuse_terminal(false).unwrap();
    assert!(refuse_terminal(true).unwrap_err().to_string().contains("> FILE"));
}

#[test]
fn an_unreadable_store_yields_no_snapshot_and_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let (file, part) = (dir.path().join("backup"), dir.path().join("backup.part"));
    let data_dir = closed_store(dir.path());
    let save = || SaveArgs { data_dir: data_dir.clone(), skip_damaged: false, file: file.clone() }.run();
    save().unwrap();
    let whole = fs::read(&file).unwrap();
    let helps = |told: &str, what: &[&str]| {
        assert!(what.iter().all(|words| told.contains(words)), "{told}");
        assert!(!told.contains("goes on there") && !part.exists(), "{told}");
    };
    let failed = |why: SnapshotError| {
        fs::write(&part, &whole[..whole.len() - 1]).unwrap();
        format!("{:#}", broken_off(&part, unreadable(&data_dir, why.into())))
    };
    let page =
        || portolan_store::BackendError { context: "reading the store: the file is damaged".into(), source: None };
    for why in [SnapshotError::Backend(page()), SnapshotError::Store(StoreError::Backend(Arc::new(page())))] {
        let told = failed(why);
        assert!(told.contains("reading the store: the file is damaged"), "{told}");
        helps(&told, &["portolan verify --data-dir", "delete unread", "restore the last snapshot"]);
    }
    let full = failed(SnapshotError::Io(io::ErrorKind::StorageFull.into()));
    assert!(full.contains("the same command goes on there") && part.exists(), "what is not the store's fault: {full}");

    let path = data_dir.join("store/store.redb");
    let mut bytes = fs::read(&path).unwrap();
    bytes.iter_mut().skip(4096).for_each(|byte| *byte ^= 1);
    fs::write(&path, bytes).unwrap();
    helps(&format!("{:#}", save().unwrap_err()), &["cannot be opened", "restore the last snapshot"]);
    assert_eq!(fs::read(&file).unwrap(), whole, "the last one stays");
}
