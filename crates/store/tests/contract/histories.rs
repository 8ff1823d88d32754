//! Random histories, compared with the model state by state and event by event.

use std::time::Duration;

use portolan_store::{CompactionOutcome, HistoryBounds, RangeRequest, RangeScope, StoreError, WatchScope};
use portolan_types::ResourceVersion;
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, TestRunner},
};

use crate::{
    model::{ModelWrite, StoreModel, history, in_scope, seen},
    scene::{ContractScene, EngineSubject, cluster, events_until, pod, pods, roles, text},
};

/// Random histories, the same in each run; fewer if each write costs a sync.
fn histories(subject: EngineSubject) -> Vec<Vec<Vec<ModelWrite>>> {
    let count = match subject {
        EngineSubject::MEMORY => 24,
        EngineSubject::Embedded(_) => 5,
        EngineSubject::Etcd => 2,
    };
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(Default::default()),
    );
    (0..count).map(|_| history().new_tree(&mut runner).unwrap().current()).collect()
}

fn range_scopes() -> Vec<RangeScope> {
    let namespace = |n: &str| RangeScope::Namespace(cluster(1), pods(), n.parse().unwrap());
    vec![
        RangeScope::All,
        RangeScope::AllClusters(pods()),
        RangeScope::AllClusters(roles()),
        RangeScope::Cluster(cluster(1), pods()),
        RangeScope::Cluster(cluster(2), roles()),
        namespace("n0"),
        namespace("n1"),
        RangeScope::Everything(cluster(1)),
    ]
}

fn watch_scopes() -> Vec<WatchScope> {
    vec![
        WatchScope::Resource(pods(), None),
        WatchScope::Resource(pods(), Some(cluster(1))),
        WatchScope::Resource(roles(), Some(cluster(2))),
        WatchScope::PlacedOn("east".into()),
        WatchScope::All,
    ]
}

fn rv(number: u64) -> ResourceVersion {
    ResourceVersion::new(number).unwrap()
}

async fn check_states(scene: &ContractScene, model: &StoreModel, from: u64) {
    for at in model.revisions(from) {
        let (boundary, state) = model.at(at);
        for scope in range_scopes() {
            let expected = in_scope(state, &scope);
            for limit in [None, Some(1 + at as usize % 3)] {
                let pages = read_in_pages(scene, &scope, at, limit).await;
                assert!(pages.iter().all(|page| page.0 == rv(boundary)), "{scope:?} at {at}");
                let mut objects: Vec<_> = pages.into_iter().flat_map(|page| page.1).collect();
                if matches!(scope, RangeScope::All | RangeScope::Everything(_)) {
                    objects.sort_by(|a, b| a.0.cmp(&b.0));
                }
                assert_eq!(objects, expected, "{scope:?} at {at}, limit {limit:?}");
            }
        }
    }
}

type HistoryPage = (ResourceVersion, Vec<(portolan_types::ObjectKey, crate::model::ModelObject)>);

async fn read_in_pages(scene: &ContractScene, scope: &RangeScope, at: u64, limit: Option<usize>) -> Vec<HistoryPage> {
    let mut request = RangeRequest { at: Some(rv(at)), limit, ..RangeRequest::all(scope.clone()) };
    let mut pages = Vec::new();
    loop {
        let page = scene.store.range(request.clone()).await.unwrap();
        request.after = page.objects.last().map(|object| object.key.clone());
        pages.push((page.revision, seen(&page.objects)));
        if !page.more {
            return pages;
        }
    }
}

async fn check_indexes(scene: &ContractScene, model: &StoreModel) {
    let (_, state) = model.latest();
    let owned = |n, uid: &str| RangeScope::OwnedBy(cluster(n), uid.into());
    let placed = |uid: &str| RangeScope::PlacedOn(uid.into());
    for scope in [owned(1, "o1"), owned(2, "o2"), placed("east"), placed("west"), placed("nowhere")] {
        let mut objects = seen(&scene.list(scope.clone()).await);
        objects.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(objects, in_scope(state, &scope), "{scope:?}");
    }
}

async fn check_watches(scene: &ContractScene, model: &StoreModel, from: u64) {
    let last = model.latest().0;
    for scope in watch_scopes() {
        // etcd serves a watch of the past after a tenth of a second: only every sixth is tested there.
        let step = if scene.subject() == EngineSubject::Etcd { 6 } else { 1 };
        for after in model.revisions(from).into_iter().step_by(step) {
            let mut stream = scene.watch(scope.clone(), Some(rv(after))).await;
            let events = events_until(&mut *stream, rv(last)).await;
            assert_eq!(events, model.events_after(&scope, after), "{scope:?} after {after}");
        }
    }
}

pub(crate) async fn every_state_and_every_watch_equals_the_model(scene: ContractScene) {
    for (n, history) in histories(scene.subject()).into_iter().enumerate() {
        let scene = if n % 2 == 0 { ContractScene::new(scene.subject()) } else { scene.with_tiny_ring() };
        let first = scene.store.current();
        let mut model = StoreModel::new(first);
        let mut live = Vec::new();
        for scope in watch_scopes() {
            live.push((scope.clone(), scene.watch(scope, None).await));
        }
        for steps in history {
            model.commit(&scene, steps).await;
        }
        let last = rv(model.latest().0);
        for (scope, mut stream) in live {
            let events = events_until(&mut *stream, last).await;
            assert_eq!(events, model.events_after(&scope, first.get()), "live {scope:?}");
        }
        check_states(&scene, &model, first.get()).await;
        check_indexes(&scene, &model).await;
        check_watches(&scene, &model, first.get()).await;
    }
}

pub(crate) async fn compaction_keeps_states_above_its_floor(scene: ContractScene) {
    for history in histories(scene.subject()).into_iter().take(5) {
        let scene = ContractScene::new(scene.subject());
        let mut model = StoreModel::new(scene.store.current());
        for steps in history {
            model.commit(&scene, steps).await;
        }
        let (first, last) = (scene.store.oldest().get(), model.latest().0);
        for upto in [first, first + (last - first) / 2, last] {
            scene.store.compact(rv(upto)).await.unwrap();
            let floor = scene.store.oldest().get();
            let expected = model.boundaries.iter().map(|(boundary, _)| *boundary).filter(|b| *b <= upto).max().unwrap();
            assert!(floor >= expected.max(first) && floor <= upto.max(first), "{floor}");
            if scene.subject() != EngineSubject::Etcd {
                assert_eq!(floor, expected.max(first));
            }
            if floor > first {
                let old =
                    RangeRequest { at: Some(rv(floor - 1)), ..RangeRequest::all(RangeScope::AllClusters(pods())) };
                assert!(matches!(scene.store.range(old).await, Err(StoreError::Compacted { .. })));
                let watch = scene.store.watch(WatchScope::Resource(pods(), None), Some(rv(floor - 1))).await;
                assert!(matches!(watch.err(), Some(StoreError::Compacted { oldest, .. }) if oldest.get() == floor));
            }
            check_states(&scene, &model, floor).await;
            check_indexes(&scene, &model).await;
            check_watches(&scene, &model, floor).await;
        }
        // If all tests share one etcd, deletions of another store's test may be written now.
        let beyond = if scene.subject() == EngineSubject::Etcd { 1_000_000 } else { 1 };
        let too_far = scene.store.compact(rv(last + beyond)).await;
        assert!(matches!(too_far, Err(StoreError::FutureRevision { .. })));
    }
}

pub(crate) async fn the_last_so_many_revisions_are_kept(scene: ContractScene) {
    let bounds = |revisions| HistoryBounds { time: Duration::MAX, revisions, bytes: u64::MAX };
    let mut written = vec![scene.store.current()];
    for n in 0..40 {
        written.push(scene.put(&pod(1, "busy"), &n.to_string()).await);
    }
    // If all tests share one etcd, writes of other tests count too, so at least this much is compacted.
    assert!(scene.store.back(0) >= written[40] && scene.store.back(u64::MAX) <= written[0]);
    assert_eq!(bounds(1000).enforce(&*scene.store, None).await.unwrap(), CompactionOutcome::NotDue);
    assert_eq!(scene.store.watch(WatchScope::Resource(pods(), None), Some(written[0])).await.err().map(drop), None);
    assert_eq!(bounds(20).enforce(&*scene.store, None).await.unwrap(), CompactionOutcome::Done);
    assert_eq!(
        bounds(20).enforce(&*scene.store, None).await.unwrap(),
        CompactionOutcome::NotDue,
        "a few fewer are left than may be"
    );
    let oldest = scene.store.oldest();
    assert!(oldest >= written[25], "{oldest} is before {}", written[25]);
    let at = |revision| RangeRequest { at: Some(revision), ..RangeRequest::all(RangeScope::AllClusters(pods())) };
    assert!(matches!(scene.store.range(at(written[24])).await, Err(StoreError::Compacted { .. })));
    for (n, revision) in written.iter().enumerate().filter(|(_, revision)| **revision >= oldest) {
        let page = scene.store.range(at(*revision)).await.unwrap();
        assert_eq!(text(&page.objects[0].record), (n - 1).to_string());
    }
    assert_eq!(bounds(1000).enforce(&*scene.store, Some(written[38])).await.unwrap(), CompactionOutcome::Done);
    assert!(scene.store.oldest() >= written[38], "what is old goes, also of few");
}
