//! Reads of many objects.

use portolan_store::{Expect, RangeRequest, RangeScope, SLICE_BYTES, StoreError, Transaction};
use portolan_types::LabelSelector;

use crate::scene::{ContractScene, cluster, pod, pods, record, related, role, roles};

pub(crate) async fn selectors_limits_and_counts(scene: ContractScene) {
    for n in 0..20 {
        scene.put(&pod(1, &format!("p{n:02}")), if n % 2 == 0 { "even" } else { "odd" }).await;
    }
    scene.put(&pod(2, "p00"), "even").await;
    let all = RangeRequest::all(RangeScope::Cluster(cluster(1), pods()));
    for (case, selector, limit, names, more, remaining) in [
        ("all", "", None, 20, false, None),
        ("a first page tells how many follow", "", Some(8), 8, true, Some(12)),
        ("a page that ends with the list has no more", "", Some(20), 20, false, None),
        ("a selector reads on until the page is full", "text=odd", Some(3), 3, true, None),
        ("a selector without limit", "text in (odd)", None, 10, false, None),
        ("a selector that nothing matches", "text=none", Some(5), 0, false, None),
    ] {
        let labels = LabelSelector::parse(selector).unwrap();
        let page = scene.store.range(RangeRequest { labels, limit, ..all.clone() }).await.unwrap();
        assert_eq!((page.objects.len(), page.more, page.remaining), (names, more, remaining), "{case}");
        assert_eq!(page.revision, scene.store.current(), "{case}");
    }
    let elsewhere = RangeRequest::all(RangeScope::Cluster(cluster(3), pods()));
    assert!(scene.store.range(elsewhere).await.unwrap().objects.is_empty());
    let unknown = RangeRequest::all(RangeScope::AllClusters(roles()));
    assert!(scene.store.range(unknown).await.unwrap().objects.is_empty());
    assert_eq!(scene.store.get(&role(1, "none")).await.unwrap(), None);
}

pub(crate) async fn a_large_list_is_read_whole(scene: ContractScene) {
    for batch in 0..12 {
        let txn = (0..100).fold(Transaction::default(), |txn, n| {
            let key = pod(1, &format!("p{batch:02}{n:02}"));
            let record = record(&key, "x");
            txn.and(key, Expect::Absent, Some(record))
        });
        scene.commit(txn).await.unwrap();
    }
    let all = RangeRequest::all(RangeScope::AllClusters(pods()));
    let page = scene.store.range(all.clone()).await.unwrap();
    assert!(page.objects.is_sorted_by_key(|object| object.key.clone()));
    assert_eq!(page.objects.len(), 1200);
    let page = scene.store.range(RangeRequest { limit: Some(500), ..all }).await.unwrap();
    assert_eq!((page.objects.len(), page.more), (500, true));
    let one = RangeRequest { limit: Some(100), ..RangeRequest::all(RangeScope::Cluster(cluster(1), pods())) };
    assert_eq!(scene.store.range(one).await.unwrap().remaining, Some(1100));
}

pub(crate) async fn pages_show_one_state(scene: ContractScene) {
    for n in 0..10 {
        scene.put(&pod(1, &format!("p{n}")), "old").await;
    }
    let mut request = RangeRequest { limit: Some(4), ..RangeRequest::all(RangeScope::Cluster(cluster(1), pods())) };
    let mut read = Vec::new();
    loop {
        let page = scene.store.range(request.clone()).await.unwrap();
        read.extend(page.objects.iter().map(|o| (o.key.name.to_string(), crate::scene::text(&o.record))));
        request.at = Some(page.revision);
        request.after = page.objects.last().map(|object| object.key.clone());
        if !page.more {
            break;
        }
        for n in 0..10 {
            scene.put(&pod(1, &format!("p{n}")), "new").await;
        }
        scene.delete(&pod(1, "p9")).await;
        scene.put(&pod(1, "p9x"), "new").await;
    }
    let expected: Vec<_> = (0..10).map(|n| (format!("p{n}"), "old".to_owned())).collect();
    assert_eq!(read, expected);
}

pub(crate) async fn slices_show_one_state(scene: ContractScene) {
    for (own, bytes, labels) in [(1, 1, ""), (2, SLICE_BYTES, ""), (3, SLICE_BYTES, "text=old")] {
        for batch in 0..6 {
            let txn = (0..100).fold(Transaction::default(), |txn, n| {
                let key = pod(own, &format!("p{batch}{n:02}"));
                let record = record(&key, "old");
                txn.and(key, Expect::Absent, Some(record))
            });
            scene.commit(txn).await.unwrap();
        }
        let labels = LabelSelector::parse(labels).unwrap();
        let scope = RangeScope::Cluster(cluster(own), pods());
        let mut next = Some(RangeRequest { labels, bytes: Some(bytes), ..RangeRequest::slices(scope) });
        let mut read = Vec::new();
        while let Some(request) = next {
            let page = scene.store.range(request.clone()).await.unwrap();
            assert!(bytes > 1 || page.objects.len() == 1, "a slice has one object at least, and ends behind its bytes");
            assert_eq!(page.remaining, None, "nothing is counted");
            next = request.next(&page);
            read.extend(page.objects.into_iter().map(|object| crate::scene::text(&object.record)));
            scene.put(&pod(own, "p599"), "new").await;
            scene.put(&pod(own, "p6"), "new").await;
        }
        assert_eq!((read.len(), read.iter().all(|text| text == "old")), (600, true), "bytes {bytes}");
    }
}

pub(crate) async fn indexes_follow_the_latest_state(scene: ContractScene) {
    let put = |key, owners: &[&str], placed: &[&str]| {
        let record = related(&key, owners, placed);
        scene.commit(Transaction::one(key, Expect::Anything, Some(record)))
    };
    put(pod(1, "a"), &["o"], &["east", "west"]).await.unwrap();
    put(pod(2, "a"), &["o"], &["east"]).await.unwrap();
    let names = |scope| async { scene.list(scope).await.into_iter().map(|o| o.key).collect::<Vec<_>>() };
    assert_eq!(names(RangeScope::OwnedBy(cluster(1), "o".into())).await, [pod(1, "a")]);
    assert_eq!(names(RangeScope::PlacedOn("east".into())).await, [pod(1, "a"), pod(2, "a")]);
    let before = scene.store.current();
    put(pod(1, "a"), &["p"], &["west"]).await.unwrap();
    assert_eq!(names(RangeScope::OwnedBy(cluster(1), "o".into())).await, []);
    assert_eq!(names(RangeScope::PlacedOn("east".into())).await, [pod(2, "a")]);
    assert_eq!(names(RangeScope::PlacedOn("west".into())).await, [pod(1, "a")]);
    let old = RangeRequest { at: Some(before), ..RangeRequest::all(RangeScope::PlacedOn("east".into())) };
    assert!(matches!(scene.store.range(old).await, Err(StoreError::Compacted { .. })));
    scene.delete(&pod(2, "a")).await;
    assert_eq!(names(RangeScope::PlacedOn("east".into())).await, []);
    assert_eq!(names(RangeScope::PlacedOn("eas".into())).await, []);
}

pub(crate) async fn unknown_revisions_are_refused(scene: ContractScene) {
    let current = scene.put(&pod(1, "a"), "x").await;
    let future = RangeRequest { at: Some(current.plus(1)), ..RangeRequest::all(RangeScope::AllClusters(pods())) };
    let refused = scene.store.range(future).await;
    assert!(
        matches!(refused, Err(StoreError::FutureRevision { asked, current: c }) if asked == c.plus(1) && c == current)
    );
    let scope = portolan_store::WatchScope::Resource(pods(), None);
    let refused = scene.store.watch(scope, Some(current.plus(1))).await.err();
    assert!(matches!(refused, Some(StoreError::FutureRevision { .. })));
}

pub(crate) async fn rare_objects_are_found_across_pages(scene: ContractScene) {
    for n in 0..300 {
        scene.put(&pod(1, &format!("p{n:03}")), if n % 97 == 96 { "rare" } else { "common" }).await;
    }
    let labels = LabelSelector::parse("text=rare").unwrap();
    let all = RangeRequest::all(RangeScope::Cluster(cluster(1), pods()));
    let mut request = RangeRequest { limit: Some(1), labels, ..all };
    let (mut found, mut pages) = (Vec::new(), 0);
    loop {
        let page = scene.store.range(request.clone()).await.unwrap();
        found.extend(page.objects.iter().map(|object| object.key.name.to_string()));
        (request.at, request.after) = (Some(page.revision), page.objects.last().map(|object| object.key.clone()));
        pages += 1;
        if !page.more {
            break;
        }
    }
    assert_eq!(found, ["p096", "p193", "p290"]);
    assert!(pages <= 4, "a page ends when it is full, not when much was looked at: {pages}");
}

pub(crate) async fn an_expired_continue_token_is_reported_and_can_continue_at_the_latest_revision(
    scene: ContractScene,
) {
    for n in 0..6 {
        scene.put(&pod(1, &format!("p{n}")), "old").await;
    }
    let all = RangeRequest::all(RangeScope::Cluster(cluster(1), pods()));
    let page = scene.store.range(RangeRequest { limit: Some(2), ..all.clone() }).await.unwrap();
    scene.put(&pod(1, "p4"), "new").await;
    let last = scene.delete(&pod(1, "p5")).await;
    scene.store.compact(last).await.unwrap();
    let rest = RangeRequest { at: Some(page.revision), after: Some(page.objects[1].key.clone()), ..all };
    let told = scene.store.range(rest.clone()).await;
    assert!(matches!(told, Err(StoreError::Compacted { asked, oldest }) if asked == page.revision && oldest == last));
    let rest = scene.store.range(RangeRequest { at: None, ..rest }).await.unwrap();
    let read: Vec<_> = rest.objects.iter().map(|o| (o.key.name.to_string(), crate::scene::text(&o.record))).collect();
    let expected = [("p2", "old"), ("p3", "old"), ("p4", "new")].map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!((read, rest.revision), (expected.to_vec(), last));
}
