//! Tests of compiled definitions.

use super::*;

fn compiled() -> CompiledDefinitions {
    let metrics = crate::metrics::Metrics::new(prometheus::Registry::new()).expressions();
    CompiledDefinitions::new(IntCounter::new("compilations", "How often.").unwrap(), Arc::new(metrics), false)
}

fn crd(schema: Value) -> Value {
    let names =
        serde_json::json!({"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"});
    serde_json::json!({
        "metadata": {"name": "widgets.example.dev"},
        "status": {"acceptedNames": names},
        "spec": {
            "group": "example.dev", "scope": "Namespaced", "names": names,
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// Returns the results of eight concurrent callers.
fn wanted_by_eight(compiled: &CompiledDefinitions, crd: &Value) -> Vec<Option<Arc<KindTable>>> {
    let turn = Arc::new(CompilationLock::default());
    let held = turn.lock();
    compiled.compiling.lock().insert(custom::fingerprint(crd), turn.clone());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| compiled.table(crd))).collect();
        // Held by the map, this function, and each waiter.
        while Arc::strong_count(&turn) < 10 {
            std::thread::yield_now();
        }
        drop(held);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn concurrent_compilations_run_once() {
    let spec = serde_json::json!({"type": "object"});
    let served = crd(serde_json::json!({"type": "object", "properties": {"spec": spec}}));
    let mut unserved = served.clone();
    let versions = unserved["spec"]["versions"].as_array_mut().unwrap();
    versions.push(versions[0].clone());
    for (case, crd, is_served) in [("a definition", served, true), ("one with a version twice", unserved, false)] {
        let compiled = compiled();
        let tables = wanted_by_eight(&compiled, &crd);
        let address = |table: &Option<Arc<KindTable>>| table.as_ref().map(Arc::as_ptr);
        assert_eq!(tables[0].is_some(), is_served, "{case}");
        assert!(tables.iter().all(|table| address(table) == address(&tables[0])), "{case}");
        assert_eq!((compiled.compilations.get(), compiled.compiling.lock().len()), (1, 0), "{case}");
    }
}

#[test]
fn a_turn_ends_with_a_panic_and_ends_no_other() {
    let (compiled, fingerprint) = (compiled(), custom::fingerprint(&crd(serde_json::json!({"type": "object"}))));
    let begin = || compiled.compiling.lock().entry(fingerprint).or_default().clone();
    let turn = begin();
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ends = CompilationGuard { compiling: &compiled.compiling, fingerprint, turn: &turn };
        let _compiles = turn.lock();
        panic!("while it compiles");
    }));
    assert!(panics.is_err() && turn.try_lock().is_some() && compiled.compiling.lock().is_empty());
    let later = begin();
    drop(CompilationGuard { compiling: &compiled.compiling, fingerprint, turn: &turn });
    assert!(Arc::ptr_eq(&later, &begin()), "who waited for the first leaves the second");
}

#[test]
fn unused_definitions_are_dropped() {
    let shared = SharedByKey::new();
    let kept = shared.put(0, Arc::new(0));
    (1..10 * MIN_SWEPT).for_each(|n| drop(shared.put(n, Arc::new(n))));
    assert!(shared.0.lock().all.len() <= MIN_SWEPT + 1);
    assert!(Arc::ptr_eq(&kept, &shared.put(0, Arc::new(7))) && shared.get(&1).is_none());
}
