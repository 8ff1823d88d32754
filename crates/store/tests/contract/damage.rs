//! Damaged, cut and exchanged files: a store opens at its last commit, is refused with a clear error, or reports what
//! it cannot read. It never panics, and never falls behind its high-water mark; `verify` finds damage that the store
//! does not notice; on redb there is none.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use portolan_store::{Engine, OpenError, RangeRequest, RangeScope, StoreConfig, StoredObject, open, verify};
use portolan_types::{ObjectKey, Seams};

use crate::scene::{ContractScene, cluster, pod, pods};

const ON_DISK: [Engine; 2] = [Engine::Redb, Engine::Sled];
/// Time limit for the high-water mark, which is written after a pause in writes.
const MARKED: Duration = Duration::from_secs(30);

/// Copy of a store's directory, and its expected content.
struct DamagedSample {
    engine: Engine,
    dir: tempfile::TempDir,
    objects: Vec<StoredObject>,
}

/// End of the process that had the store open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessEnd {
    Closed,
    Killed,
}

impl DamagedSample {
    /// Writes small and large objects, some updated, some history compacted.
    async fn new(engine: Engine, end: ProcessEnd) -> Self {
        let scene = ContractScene::new(engine);
        for n in 0..200 {
            scene.put(&pod(1, &format!("p{n}")), &format!("{n}").repeat(50)).await;
        }
        let compacted = scene.put(&pod(1, "large"), &"x".repeat(60_000)).await;
        scene.store.compact(compacted).await.unwrap();
        for n in 0..50 {
            scene.put(&pod(1, &format!("p{n}")), "again").await;
        }
        let objects = scene.list(RangeScope::Cluster(cluster(1), pods())).await;
        if end == ProcessEnd::Closed {
            scene.store.close().await;
        } else {
            until_marked(&scene.data(), scene.store.current().get()).await;
        }
        let dir = tempfile::tempdir().unwrap();
        copy(&scene.data(), dir.path());
        Self { engine, dir, objects }
    }

    fn keys(&self) -> Vec<ObjectKey> {
        self.objects.iter().map(|object| object.key.clone()).collect()
    }

    /// Returns the files of the store, the largest first.
    fn files(&self) -> Vec<(PathBuf, usize)> {
        let mut files = Vec::new();
        walk(self.dir.path(), &mut |path| {
            let len = fs::metadata(path).unwrap().len() as usize;
            files.push((path.strip_prefix(self.dir.path()).unwrap().to_owned(), len));
        });
        files.retain(|(path, len)| *len > 0 && path != Path::new("store.mark"));
        files.sort_by_key(|(path, len)| (std::cmp::Reverse(*len), path.clone()));
        files
    }

    /// Opens a copy with one file changed, and verifies it if that shows nothing.
    async fn damaged(&self, file: &Path, damage: impl FnOnce(&mut Vec<u8>)) -> DamageOutcome {
        let (_dir, config) = self.changed(file, damage);
        let found = self.look(&config).await;
        if found != DamageOutcome::Silent || self.engine == Engine::Redb {
            return found;
        }
        match verify(config, Seams::system()) {
            Err(refusal) => DamageOutcome::Refused(refusal.to_string()),
            Ok(_) => DamageOutcome::Silent,
        }
    }

    /// Opens a copy with one file changed.
    async fn opened(&self, file: &Path, damage: impl FnOnce(&mut Vec<u8>)) -> DamageOutcome {
        let (_dir, config) = self.changed(file, damage);
        self.look(&config).await
    }

    /// Makes a copy with one file changed.
    fn changed(&self, file: &Path, damage: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, StoreConfig) {
        let dir = tempfile::tempdir().unwrap();
        copy(self.dir.path(), dir.path());
        let path = dir.path().join(file);
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let config = StoreConfig::new(self.engine, Some(dir.path().to_owned()));
        (dir, config)
    }

    async fn look(&self, config: &StoreConfig) -> DamageOutcome {
        let store = match open(config.clone(), Seams::system()) {
            Ok(store) => store,
            Err(refusal @ (OpenError::Damaged { .. } | OpenError::NewerFormat { .. } | OpenError::Io { .. })) => {
                return DamageOutcome::Refused(refusal.to_string());
            }
            Err(other) => panic!("{other}"),
        };
        let (mut errors, mut silent, mut shown) = (0, 0, Vec::new());
        for expected in &self.objects {
            match store.get(&expected.key).await {
                Ok(Some(found)) => shown.push(found),
                Ok(None) => silent += 1,
                Err(_) => errors += 1,
            }
        }
        match store.range(RangeRequest::all(RangeScope::Cluster(cluster(1), pods()))).await {
            Ok(page) => shown.extend(page.objects),
            Err(_) => errors += 1,
        }
        store.close().await;
        let wrong = shown.iter().filter(|found| !self.objects.contains(found)).count();
        // A bit in sled's log can lead to older data.
        let keys = self.keys();
        assert!(shown.iter().all(|found| keys.contains(&found.key)), "nothing is made up");
        match (silent + wrong, errors) {
            (0, 0) => DamageOutcome::Whole,
            (0, _) => DamageOutcome::Partly,
            _ => DamageOutcome::Silent,
        }
    }
}

/// Result for a damaged store.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DamageOutcome {
    /// Everything is there.
    Whole,
    /// Some reads fail with an error.
    Partly,
    /// The store was not opened, with this error, or `verify` refused it.
    Refused(String),
    /// An object is missing or older, and nothing reports it, on sled not even `verify`.
    Silent,
}

async fn until_marked(dir: &Path, last: u64) {
    let marked = || fs::read_to_string(dir.join("store.mark")).is_ok_and(|mark| mark.contains(&format!("\n{last}\n")));
    let told = async {
        while !marked() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(MARKED, told).await.expect("the store marks how far it has come");
}

fn walk(dir: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { walk(&path, visit) } else { visit(&path) }
    }
}

fn copy(from: &Path, to: &Path) {
    walk(from, &mut |path| {
        let target = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(path, target).unwrap();
    });
}

/// Deterministic sequence of numbers.
fn numbers(seed: u64) -> impl Iterator<Item = usize> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 24) as usize
    })
}

#[tokio::test]
async fn a_cut_off_file_opens_at_its_last_commit_or_is_refused() {
    for (engine, end) in
        ON_DISK.into_iter().flat_map(|engine| [(engine, ProcessEnd::Closed), (engine, ProcessEnd::Killed)])
    {
        let sample = DamagedSample::new(engine, end).await;
        for (file, len) in sample.files() {
            let whole = sample.damaged(&file, |_| {}).await;
            assert_eq!(whole, DamageOutcome::Whole, "{engine:?} {end:?}");
            let steps = (1..12).map(|part| len * part / 12).chain([1, 100, len - 1]);
            for keep in steps.chain(numbers(7).take(10).map(|n| n % len)).filter(|keep| *keep < len) {
                let found = sample.damaged(&file, |bytes| bytes.truncate(keep)).await;
                let case = format!("{engine:?} {end:?}: {} cut to {keep} of {len}", file.display());
                assert_ne!(found, DamageOutcome::Silent, "{case}");
            }
            let emptied = sample.damaged(&file, Vec::clear).await;
            assert!(emptied != DamageOutcome::Silent, "{engine:?} {end:?}: {} emptied", file.display());
            let zeroed = sample.damaged(&file, |bytes| bytes.fill(0)).await;
            assert!(zeroed != DamageOutcome::Silent, "{engine:?} {end:?}: {} zeroed", file.display());
        }
    }
}

#[tokio::test]
async fn a_flipped_bit_is_never_served_and_never_hides_an_object_from_verification() {
    for (engine, end) in
        ON_DISK.into_iter().flat_map(|engine| [(engine, ProcessEnd::Closed), (engine, ProcessEnd::Killed)])
    {
        let sample = DamagedSample::new(engine, end).await;
        let mut refused = 0;
        for (file, _) in sample.files() {
            // Engines leave much of their files empty, where a bit matters least.
            let bytes = fs::read(sample.dir.path().join(&file)).unwrap();
            let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
            for at in numbers(11).take(50).map(|n| used[n % used.len()]) {
                let found = sample.damaged(&file, |bytes| bytes[at] ^= 1 << (at % 8)).await;
                assert_ne!(
                    found,
                    DamageOutcome::Silent,
                    "{engine:?} {end:?}: a bit of byte {at} of {}",
                    file.display()
                );
                refused += usize::from(found != DamageOutcome::Whole);
            }
        }
        assert!(refused > 0, "{engine:?} {end:?}: some of the bits matter");
    }
}

#[tokio::test]
async fn a_flipped_bit_of_sled_hides_nothing_from_anybody() {
    for end in [ProcessEnd::Closed, ProcessEnd::Killed] {
        let sample = DamagedSample::new(Engine::Sled, end).await;
        let (mut refused, mut partly) = (0, 0);
        for (file, _) in sample.files() {
            let bytes = fs::read(sample.dir.path().join(&file)).unwrap();
            let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
            for at in numbers(13).take(150).map(|n| used[n % used.len()]) {
                let case = format!("{end:?}: a bit of byte {at} of {}", file.display());
                match sample.opened(&file, |bytes| bytes[at] ^= 1 << (at % 8)).await {
                    DamageOutcome::Silent => panic!("{case}"),
                    DamageOutcome::Refused(_) => refused += 1,
                    DamageOutcome::Partly => partly += 1,
                    DamageOutcome::Whole => {}
                }
            }
        }
        assert!(refused > partly, "{end:?}: {refused} refused, {partly} told when they were read");
    }
}

#[tokio::test]
async fn an_older_or_missing_file_is_refused_as_long_as_the_mark_is_there() {
    for engine in ON_DISK {
        let sample = DamagedSample::new(engine, ProcessEnd::Closed).await;
        let name = if engine == Engine::Redb { "store.redb" } else { "store.sled" };
        let config = StoreConfig::new(engine, Some(sample.dir.path().to_owned()));
        let old = tempfile::tempdir().unwrap();
        copy(sample.dir.path(), old.path());
        let store = open(config.clone(), Seams::system()).unwrap();
        let key = pod(1, "later");
        let record = crate::scene::record(&key, "x");
        let txn = portolan_store::Transaction::one(key, portolan_store::Expect::Absent, Some(record));
        store.commit(txn).await.unwrap();
        store.close().await;
        let path = sample.dir.path().join(name);
        let remove =
            || if path.is_dir() { fs::remove_dir_all(&path).unwrap() } else { fs::remove_file(&path).unwrap() };
        for (case, put_back, words) in [("an older copy", true, "it has lost writes"), ("nothing", false, "is missing")]
        {
            remove();
            if put_back {
                fs::remove_file(old.path().join("store.mark")).unwrap();
                copy(old.path(), sample.dir.path());
            }
            let refusal = open(config.clone(), Seams::system()).err().unwrap().to_string();
            assert!(refusal.contains(words) && refusal.contains("store.mark"), "{engine:?} {case}: {refusal}");
        }
        fs::remove_file(sample.dir.path().join("store.mark")).unwrap();
        assert!(open(config, Seams::system()).is_ok(), "{engine:?}: the operator may go on all the same");
    }
}
