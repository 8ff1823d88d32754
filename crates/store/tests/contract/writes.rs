//! Commits.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use portolan_store::{
    Expect, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_CONDITIONS, MAX_TRANSACTION_OBJECTS, ModifyOutcome, ObjectClient,
    RangeScope, Step, StoreError, Transaction, WatchScope,
};
use portolan_types::{ObjectKey, Record};
use serde_json::json;

use crate::scene::{ContractScene, EngineSubject, cluster, now, object, pod, pods, record, role, text};

fn kind(error: &StoreError) -> &'static str {
    match error {
        StoreError::NotFound { .. } => "NotFound",
        StoreError::AlreadyExists { .. } => "AlreadyExists",
        StoreError::Conflict { .. } => "Conflict",
        StoreError::TooLarge { .. } => "TooLarge",
        _ => "another",
    }
}

pub(crate) async fn a_write_happens_when_what_it_expects_holds(scene: ContractScene) {
    let old = scene.put(&pod(1, "old"), "0").await;
    let there = scene.put(&pod(1, "there"), "1").await;
    for (case, name, expect, writes, expected) in [
        ("creating what is there fails", "there", Expect::Absent, true, Err("AlreadyExists")),
        ("changing what is not there fails", "absent", Expect::Present, true, Err("NotFound")),
        ("changing an unknown state of nothing fails", "absent", Expect::At(old), true, Err("NotFound")),
        ("changing another state fails", "there", Expect::At(old), true, Err("Conflict")),
        ("deleting another state fails", "there", Expect::At(old), false, Err("Conflict")),
        ("deleting nothing fails", "absent", Expect::Anything, false, Err("NotFound")),
        ("deleting the nothing that is expected fails", "absent", Expect::Absent, false, Err("NotFound")),
        ("changing the state that was read succeeds", "there", Expect::At(there), true, Ok(())),
        ("changing any state succeeds", "there", Expect::Present, true, Ok(())),
        ("creating succeeds", "new", Expect::Absent, true, Ok(())),
        ("writing without looking succeeds", "newer", Expect::Anything, true, Ok(())),
        ("deleting any state succeeds", "there", Expect::Present, false, Ok(())),
    ] {
        let key = pod(1, name);
        let before = (scene.store.current(), scene.store.get(&key).await.unwrap());
        let txn = Transaction::one(key.clone(), expect, writes.then(|| record(&key, case)));
        let committed = scene.commit(txn).await;
        assert_eq!(committed.as_ref().map(|_| ()).map_err(kind), expected, "{case}");
        let after = scene.store.get(&key).await.unwrap();
        match committed {
            Ok(committed) => {
                scene.check_next(before.0, committed, 1, case);
                assert_eq!(committed.last, scene.store.current(), "{case}");
                assert_eq!(after.map(|o| (o.revision, text(&o.record))), writes.then(|| (committed.last, case.into())));
            }
            Err(_) => assert_eq!((scene.store.current(), after), before, "{case}"),
        }
    }
}

pub(crate) async fn an_object_that_has_to_live_may_be_written(scene: ContractScene) {
    let (owner, ending) = (role(1, "owner"), role(1, "ending"));
    let created = scene.put(&owner, "0").await;
    let lives = |written| Expect::Lives { created, written };
    let make = |name: &str, check: (&ObjectKey, Expect)| {
        let txn = Transaction::one(pod(1, name), Expect::Absent, Some(record(&pod(1, name), name)));
        Transaction { checks: vec![(check.0.clone(), check.1)], ..txn }
    };
    scene.commit(make("at first", (&owner, lives(created)))).await.unwrap();
    let written = scene.put(&owner, "1").await;
    scene.commit(make("unknown", (&owner, lives(created)))).await.unwrap();
    scene.commit(make("known", (&owner, lives(written)))).await.unwrap();
    let refused = async |name: &str, check: (&ObjectKey, Expect), expected: &str| {
        let before = scene.store.current();
        let refused = scene.commit(make(name, check)).await.unwrap_err();
        assert_eq!((kind(&refused), scene.store.current()), (expected, before), "{name}");
    };
    refused("absent", (&role(1, "none"), lives(written)), "NotFound").await;

    let marked =
        json!({"metadata": {"name": "ending", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a"]}});
    let since = scene.put(&ending, "0").await;
    scene.commit(Transaction::one(ending.clone(), Expect::Present, Some(Record::of(&marked)))).await.unwrap();
    refused("late", (&ending, Expect::Lives { created: since, written: since }), "Conflict").await;

    scene.delete(&owner).await;
    refused("gone", (&owner, lives(written)), "NotFound").await;
    let again = scene.put(&owner, "2").await;
    refused("another", (&owner, lives(written)), "Conflict").await;
    scene.commit(make("of the other", (&owner, Expect::Lives { created: again, written: again }))).await.unwrap();
}

pub(crate) async fn one_of_many_concurrent_creates_succeeds(scene: ContractScene) {
    let create = |n: usize| {
        let txn = Transaction::one(pod(1, "a"), Expect::Absent, Some(record(&pod(1, "a"), &n.to_string())));
        scene.commit(txn)
    };
    let answers = join_all((0..64).map(create)).await;
    let winners: Vec<usize> = (0..64).filter(|n| answers[*n].is_ok()).collect();
    assert_eq!(winners.len(), 1);
    assert!(answers.iter().filter_map(|a| a.as_ref().err()).all(|e| kind(e) == "AlreadyExists"));
    let stored = scene.store.get(&pod(1, "a")).await.unwrap().unwrap();
    assert_eq!(text(&stored.record), winners[0].to_string());
}

pub(crate) async fn each_concurrent_update_of_an_object_succeeds_once(scene: ContractScene) {
    let objects = ObjectClient::new(scene.store.clone());
    objects.create(&role(1, "counter"), &json!({"metadata": {}, "n": 0})).await.unwrap();
    let add = |objects: ObjectClient| async move {
        let (key, mut left) = (role(1, "counter"), 8);
        while left > 0 {
            let changed = objects.modify(&key, |object| {
                object["n"] = json!(object["n"].as_u64().unwrap() + 1);
                Ok(Step::Write)
            });
            match changed.await {
                Ok(_) => left -= 1,
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    let tasks = (0..8).map(|_| tokio::spawn(add(objects.clone())));
    join_all(tasks).await.into_iter().for_each(|task| task.unwrap());
    let (value, _) = objects.get_value(&role(1, "counter")).await.unwrap().unwrap();
    assert_eq!(value["n"], 64);
}

pub(crate) async fn a_transaction_happens_all_or_not_at_all(scene: ContractScene) {
    let seen = scene.put(&pod(1, "seen"), "1").await;
    let write = |name: &str| (pod(1, name), Expect::Absent, Some(record(&pod(1, name), "x")));
    let both = || {
        let ((a, expect_a, record_a), (b, expect_b, record_b)) = (write("a"), write("b"));
        Transaction::one(a, expect_a, record_a).and(b, expect_b, record_b)
    };
    let mut failing = both().and(pod(1, "seen"), Expect::Absent, None);
    assert!(scene.commit(failing.clone()).await.is_err());
    failing = both();
    failing.checks.push((pod(1, "seen"), Expect::Absent));
    assert!(scene.commit(failing).await.is_err());
    assert_eq!(scene.list(RangeScope::Cluster(cluster(1), pods())).await.len(), 1);
    let mut txn = both();
    txn.checks.push((pod(1, "seen"), Expect::At(seen)));
    let committed = scene.commit(txn).await.unwrap();
    scene.check_next(seen, committed, 2, "both");
    assert_eq!(scene.list(RangeScope::Cluster(cluster(1), pods())).await.len(), 3);
}

pub(crate) async fn checked_objects_must_be_unchanged(scene: ContractScene) {
    let checked = pod(1, "checked");
    let new = |name: &str, expect: Expect| {
        let mut txn = Transaction::one(pod(1, name), Expect::Absent, Some(record(&pod(1, name), "x")));
        txn.checks.push((checked.clone(), expect));
        scene.commit(txn)
    };
    let refused = |tried: Result<_, StoreError>| kind(&tried.unwrap_err());
    let first = scene.put(&checked, "1").await;
    assert!(new("a", Expect::At(first)).await.is_ok());
    assert_eq!(refused(new("a", Expect::At(first)).await), "AlreadyExists", "and so has what is written");
    let second = scene.put(&checked, "2").await;
    assert_eq!(refused(new("b", Expect::At(first)).await), "Conflict", "it was changed");
    assert!(new("b", Expect::At(second)).await.is_ok());
    scene.delete(&checked).await;
    assert_eq!(refused(new("c", Expect::At(second)).await), "NotFound", "it is gone");
    assert_eq!(refused(new("c", Expect::Present).await), "NotFound");
    let third = scene.put(&checked, "2").await;
    assert_eq!(refused(new("c", Expect::At(second)).await), "Conflict", "another one has come");
    assert!(new("c", Expect::At(third)).await.is_ok());
    assert_eq!(scene.list(RangeScope::Cluster(cluster(1), pods())).await.len(), 4);
}

pub(crate) async fn each_write_has_its_own_revision(scene: ContractScene) {
    let scene = Arc::new(scene);
    let before = scene.store.current().get();
    let tasks = (0..16u64).map(|task| {
        let scene = scene.clone();
        tokio::spawn(async move {
            let mut given = Vec::new();
            for n in 0..20u64 {
                let (a, b) = (pod(task, &format!("a{n}")), role(task, &format!("b{n}")));
                let (record_a, record_b) = (record(&a, "1"), record(&b, "2"));
                let txn = Transaction::one(a, Expect::Absent, Some(record_a)).and(b, Expect::Absent, Some(record_b));
                let committed = scene.commit(txn).await.unwrap();
                assert_eq!(committed.last, committed.first.plus(1));
                assert!(scene.store.current() >= committed.last, "what is answered is visible");
                given.extend([committed.first.get(), committed.last.get()]);
            }
            assert!(given.is_sorted());
            given
        })
    });
    let mut given: Vec<u64> = join_all(tasks).await.into_iter().flat_map(|task| task.unwrap()).collect();
    given.sort_unstable();
    match scene.subject() {
        EngineSubject::Embedded(_) => assert_eq!(given, (before + 1..=before + 640).collect::<Vec<_>>()),
        EngineSubject::Etcd => assert!(given.windows(2).all(|pair| pair[0] < pair[1]) && given[0] > before),
    }
}

pub(crate) async fn a_transaction_has_bounds(scene: ContractScene) {
    let many = |n: usize| {
        (0..n).fold(Transaction::default(), |txn, n| {
            let key = pod(1, &format!("p{n}"));
            let record = record(&key, "x");
            txn.and(key, Expect::Absent, Some(record))
        })
    };
    assert!(scene.commit(many(MAX_TRANSACTION_OBJECTS)).await.is_ok());
    assert_eq!(kind(&scene.commit(many(MAX_TRANSACTION_OBJECTS + 1)).await.unwrap_err()), "TooLarge");
    let large =
        |bytes: usize| Transaction::one(pod(2, "l"), Expect::Anything, Some(record(&pod(2, "l"), &"x".repeat(bytes))));
    assert_eq!(kind(&scene.commit(large(MAX_TRANSACTION_BYTES)).await.unwrap_err()), "TooLarge");
    assert!(scene.commit(large(MAX_TRANSACTION_BYTES / 4)).await.is_ok());
    let stored = scene.store.get(&pod(2, "l")).await.unwrap().unwrap();
    assert_eq!(text(&stored.record).len(), MAX_TRANSACTION_BYTES / 4);
    let twice = Transaction::one(pod(3, "a"), Expect::Anything, None).and(pod(3, "a"), Expect::Anything, None);
    assert_eq!(kind(&scene.commit(twice).await.unwrap_err()), "TooLarge");
    let checked = |writes: usize, checks: usize| {
        let checks = (0..checks).map(|n| (role(1, &format!("r{n}")), Expect::Absent)).collect();
        let renamed = |mut write: portolan_store::Write| {
            write.expect = Expect::Anything;
            write
        };
        Transaction { checks, writes: many(writes).writes.into_iter().map(renamed).collect(), ..Transaction::default() }
    };
    for writes in [1, 40, MAX_TRANSACTION_OBJECTS] {
        let checks = MAX_TRANSACTION_CONDITIONS - writes - 1;
        assert!(scene.commit(checked(writes, checks)).await.is_ok(), "{writes} writes");
        assert_eq!(kind(&scene.commit(checked(writes, checks + 1)).await.unwrap_err()), "TooLarge", "{writes} writes");
    }
    let nothing = scene.commit(Transaction::default()).await.unwrap();
    assert_eq!(nothing.last, scene.store.current());
}

pub(crate) async fn a_write_whose_caller_left_still_happens(scene: ContractScene) {
    let mut stream = scene.watch(WatchScope::Resource(pods(), None), None).await;
    drop(scene.store.commit(Transaction::one(pod(1, "a"), Expect::Absent, Some(record(&pod(1, "a"), "x")))));
    let batch = tokio::time::timeout(Duration::from_secs(20), stream.next()).await.unwrap().unwrap();
    let stored = scene.store.get(&pod(1, "a")).await.unwrap().unwrap();
    assert_eq!(stored.revision, batch.revision);
}

pub(crate) async fn helpers_retry_after_a_conflict(scene: ContractScene) {
    let objects = ObjectClient::new(scene.store.clone());
    let key = pod(1, "a");
    scene.put(&key, "0").await;
    let mut interruptions = 3;
    let modified = objects.modify(&key, |value| {
        if interruptions > 0 {
            interruptions -= 1;
            let faster = Transaction::one(key.clone(), Expect::Anything, Some(record(&key, "faster")));
            now(scene.commit(faster)).unwrap();
        }
        value["data"] = json!("mine");
        Ok::<_, StoreError>(Step::Write)
    });
    let Some(ModifyOutcome::Written(value, revision)) = modified.await.unwrap() else { panic!("it was written") };
    assert_eq!(value["metadata"]["resourceVersion"], revision.to_string());
    let stored = scene.store.get(&key).await.unwrap().unwrap();
    assert_eq!((text(&stored.record).as_str(), stored.revision), ("mine", revision));
    let step = |step: Step| objects.modify(&key, move |_| Ok::<_, StoreError>(step));
    assert!(matches!(step(Step::Keep).await, Ok(Some(ModifyOutcome::Kept(_, at))) if at == revision));
    let refused = objects.modify(&key, |_| Err(StoreError::Overloaded)).await;
    assert!(matches!(refused, Err(StoreError::Overloaded)), "what the change says is handed on");
    let deleted = step(Step::Delete).await.unwrap();
    assert!(matches!(deleted, Some(ModifyOutcome::Deleted(last, at)) if at > revision && last["data"] == "mine"));
    assert_eq!(step(Step::Keep).await.unwrap(), None);
    let (list, at) = objects.list(RangeScope::Cluster(cluster(1), pods())).await.unwrap();
    assert_eq!((list, at), (Vec::new(), scene.store.current()));
    assert!(objects.create(&key, &object(&key, "new")).await.unwrap() > at);
}

pub(crate) async fn a_closed_store_takes_no_write(scene: ContractScene) {
    let last = scene.put(&pod(1, "a"), "x").await;
    scene.store.close().await;
    let refused = scene.commit(Transaction::one(pod(1, "b"), Expect::Absent, Some(record(&pod(1, "b"), "x")))).await;
    assert!(matches!(refused, Err(StoreError::Backend(_))), "{refused:?}");
    scene.store.close().await;
    assert_eq!(scene.store.current(), last);
}
