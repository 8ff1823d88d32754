use portolan_types::LogicalClusterId;
use serde_json::json;

use super::*;
use crate::{SyncLimits, SyncMemoryBudget};

fn cache(limits: SyncLimits) -> ReflectorCache {
    ReflectorCache::new(RegistrationMemory::new(Arc::default(), LogicalClusterId::ROOT, limits))
}

fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

fn pod(name: &str, text: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "1"}, "text": text})
}

fn put(cache: &ReflectorCache, name: &str, text: &str) {
    let pod = pod(name, text);
    cache.put(&ObjectRef::of(&pods(), &pod), pod);
}

fn list(cache: &ReflectorCache, names: &[&str]) -> Result<usize, DownstreamError> {
    let mut list = cache.arriving_list();
    list.add(names.iter().map(|name| pod(name, "")).collect())?;
    cache.replace(&pods(), list).map(|gone| gone.len())
}

#[test]
fn a_cache_takes_in_no_more_objects_and_bytes_than_its_limits() {
    let cache = cache(SyncLimits { objects: 3, bytes: 100_000 });
    let is_exceeded = || cache.excess.borrow().is_some();
    assert_eq!(list(&cache, &["a", "b"]).unwrap(), 0);
    assert_eq!(list(&cache, &["b", "c", "d"]).unwrap(), 1, "a list takes the place of the one before");
    cache.remove(&ObjectRef::of(&pods(), &pod("d", "")), "d");
    put(&cache, "e", "");
    put(&cache, "e", "changed");
    assert!(!is_exceeded(), "three are there");
    put(&cache, "f", "");
    assert!(is_exceeded() && cache.len() == 3, "a fourth is not taken in");
    assert!(list(&cache, &["a", "b", "c", "d"]).is_err());
    assert_eq!(cache.len(), 3, "nor is a list of four, and what was known stays");
    assert_eq!(
        (cache.kinds().arriving, cache.memory.bytes_arriving()),
        (0, 0),
        "a list that was given up counts no more"
    );
}

#[test]
fn bytes_count_towards_the_limits_too() {
    let cache = cache(SyncLimits { objects: 100, bytes: 100_000 });
    put(&cache, "small", "");
    put(&cache, "large", &"x".repeat(200_000));
    assert!(cache.excess.borrow().is_some() && cache.len() == 1);
}

#[test]
fn objects_that_are_held_or_arrive_are_charged_to_the_budget_of_all_physical_clusters() {
    let budget = Arc::new(SyncMemoryBudget::new(268_000));
    let limits = SyncLimits { objects: 100, bytes: 300_000 };
    let cache = || ReflectorCache::new(RegistrationMemory::new(budget.clone(), LogicalClusterId::new(7), limits));
    let (first, second) = (cache(), cache());
    put(&first, "a", &"x".repeat(60_000));
    put(&second, "a", &"x".repeat(60_000));
    assert!(first.excess.borrow().is_none(), "what is held stays");
    let excess = *second.excess.borrow();
    assert!(matches!(excess, Some(MemoryExcess::Workspace { bytes: 100_500 })), "{excess:?}");
    assert_eq!((first.len(), second.len()), (1, 0));
    let mut list = second.arriving_list();
    assert!(list.add(vec![pod("b", &"x".repeat(60_000))]).is_err(), "what arrives counts too");
    drop((list, first));
    assert_eq!(budget.used(), 0, "what has gone is returned");
    let mut list = second.arriving_list();
    list.add(vec![pod("b", &"x".repeat(60_000))]).unwrap();
    second.replace(&pods(), list).unwrap();
    assert!((60_000..70_000).contains(&budget.used()), "a list that was taken in counts once: {}", budget.used());
}
