//! Tests of frames.

use super::*;

fn cache() -> FrameCache {
    FrameCache::new(IntCounter::new("encoded", "Frames that were made.").unwrap())
}

#[test]
fn forms_have_ids_while_they_are_watched() {
    let cache = cache();
    let watch = |table: usize, shown: &str| WatchedForm::new(&cache.forms, (table, shown.to_owned()));
    let (one, same, redefined) = (watch(1, "a"), watch(1, "a"), watch(2, "a"));
    assert_eq!(one.number, same.number);
    assert_ne!(one.number, redefined.number);
    drop(one);
    assert_eq!(watch(1, "a").number, same.number, "one is left");
    let was = same.number;
    drop((same, redefined));
    assert!(cache.forms.lock().known.is_empty());
    assert_ne!(watch(1, "a").number, was, "its frames may still be kept");
}

fn key(n: u64) -> FrameKey {
    FrameKey { revision: ResourceVersion::new(n).unwrap(), seen: WatchedEvent::Added, form: 0, second: None }
}

#[test]
fn the_cache_keeps_the_latest_frames_within_its_bound() {
    let cache = cache();
    let frame = Bytes::from(vec![0; 1024 * 1024]);
    let ask = |n: u64| cache.shared(key(n), || Ok(frame.clone())).unwrap();
    (1..=20).for_each(|n| drop(ask(n)));
    assert_eq!(cache.encoded.get(), 20);
    assert!((MAX_KEPT - 2 * frame.len()..=MAX_KEPT).contains(&cache.bytes()));
    (0..20).for_each(|_| drop(ask(20)));
    assert_eq!(cache.encoded.get(), 20, "the latest one is kept");
    ask(1);
    assert_eq!(cache.encoded.get(), 21, "the first one is not");
    (100..200_000).for_each(|n| drop(cache.shared(key(n), || Err(Status::internal("no")))));
    assert!(cache.bytes() <= MAX_KEPT && cache.kept.lock().frames.len() <= MAX_KEPT / OVERHEAD);
}

#[test]
fn concurrent_watchers_share_one_encoded_frame() {
    let (cache, start) = (cache(), std::sync::Barrier::new(100));
    let frames: Vec<Vec<Bytes>> = std::thread::scope(|scope| {
        let watch = || {
            start.wait();
            let make = |n: u64| move || Ok(Bytes::from(n.to_string().repeat(10_000)));
            (1..=20).map(|n| cache.shared(key(n), make(n)).unwrap()).collect()
        };
        let watchers: Vec<_> = (0..100).map(|_| scope.spawn(watch)).collect();
        watchers.into_iter().map(|watcher| watcher.join().unwrap()).collect()
    });
    assert_eq!(cache.encoded.get(), 20);
    let place = |frame: &Bytes| frame.as_ptr();
    assert!(frames.iter().all(|own| own.iter().map(place).eq(frames[0].iter().map(place))));
}
