use proptest::prelude::*;
use serde_json::json;

use super::*;

fn merge(type_name: &str, doc: Value, patch: Value) -> Result<Value, (u16, String)> {
    let table = KindTable::builtin();
    let schema = table.type_named(type_name).expect("the type is in the table");
    strategic_merge(table, schema, &doc, &patch).map_err(|status| {
        let cause = status.details().causes.first().map(|cause| cause.message.clone());
        (status.code(), cause.unwrap_or_else(|| status.message().to_owned()))
    })
}

const POD: &str = "io.k8s.api.core.v1.PodSpec";

fn names(list: &[&str]) -> Value {
    list.iter().map(|name| json!({"name": name})).collect()
}

#[test]
fn objects_and_keyed_lists_are_merged() {
    for (case, doc, patch, expected) in [
        (
            "an element is found by its merge key",
            json!({"containers": [{"name": "a", "image": "a:1", "tty": true}, {"name": "b", "image": "b:1"}]}),
            json!({"containers": [{"name": "a", "image": "a:2"}]}),
            json!({"containers": [{"name": "a", "image": "a:2", "tty": true}, {"name": "b", "image": "b:1"}]}),
        ),
        (
            "a new element stands before those that the patch does not name",
            json!({"containers": names(&["a"])}),
            json!({"containers": [{"name": "b", "env": [{"name": "X", "value": "1"}]}]}),
            json!({"containers": [{"name": "b", "env": [{"name": "X", "value": "1"}]}, {"name": "a"}]}),
        ),
        (
            "lists within elements are merged by their own keys",
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "http"}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "http", "protocol": "TCP"}]}]}),
        ),
        (
            "lists without a strategy are replaced",
            json!({"tolerations": [{"key": "a"}]}),
            json!({"tolerations": [{"key": "b"}]}),
            json!({"tolerations": [{"key": "b"}]}),
        ),
        (
            "null removes",
            json!({"nodeName": "n", "containers": names(&["a"])}),
            json!({"nodeName": null, "hostname": null}),
            json!({"containers": names(&["a"])}),
        ),
        (
            "maps are merged",
            json!({"nodeSelector": {"a": "1", "b": "2"}}),
            json!({"nodeSelector": {"a": null, "c": "3"}}),
            json!({"nodeSelector": {"b": "2", "c": "3"}}),
        ),
    ] {
        assert_eq!(merge(POD, doc, patch), Ok(expected), "{case}");
    }
}

#[test]
fn directives_are_obeyed() {
    let two = json!({"containers": names(&["a", "b"])});
    for (case, doc, patch, expected) in [
        (
            "an element is deleted",
            two.clone(),
            json!({"containers": [{"$patch": "delete", "name": "a"}]}),
            json!({"containers": names(&["b"])}),
        ),
        (
            "a list is replaced",
            two.clone(),
            json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
            json!({"containers": names(&["c"])}),
        ),
        (
            "an object is replaced",
            json!({"securityContext": {"runAsUser": 1}}),
            json!({"securityContext": {"$patch": "replace", "runAsGroup": 2}}),
            json!({"securityContext": {"runAsGroup": 2}}),
        ),
        (
            "an object is emptied",
            json!({"securityContext": {"runAsUser": 1}}),
            json!({"securityContext": {"$patch": "delete"}}),
            json!({"securityContext": {}}),
        ),
        (
            "a directive that meets nothing leaves nothing",
            json!({}),
            json!({"securityContext": {"$patch": "delete"}, "containers": [{"$patch": "delete", "name": "a"}]}),
            json!({"containers": []}),
        ),
        (
            "of a union only the named key stays",
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}),
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}),
        ),
        (
            "the order is set",
            two.clone(),
            json!({"$setElementOrder/containers": names(&["b", "a"])}),
            json!({"containers": names(&["b", "a"])}),
        ),
        (
            "a new element takes the slot of a deleted one",
            two.clone(),
            json!({"$setElementOrder/containers": names(&["c"]), "containers": [{"name": "c"}, {"$patch": "delete", "name": "a"}]}),
            json!({"containers": names(&["b", "c"])}),
        ),
        (
            "an element that is deleted and added stands before those that the patch does not name",
            json!({"containers": names(&["b", "c", "a"])}),
            json!({"containers": [{"name": "a"}, {"name": "b"}, {"$patch": "delete", "name": "a"}]}),
            json!({"containers": names(&["a", "b", "c"])}),
        ),
        (
            "the order is set for old and new elements, and unknown ones keep their place",
            json!({"containers": names(&["x", "a", "y", "b"])}),
            json!({"$setElementOrder/containers": names(&["a", "new", "b"]), "containers": [{"name": "new", "tty": true}]}),
            json!({"containers": [{"name": "x"}, {"name": "a"}, {"name": "new", "tty": true}, {"name": "y"}, {"name": "b"}]}),
        ),
    ] {
        assert_eq!(merge(POD, doc, patch), Ok(expected), "{case}");
    }
}

#[test]
fn unmatched_elements_stay_unchanged() {
    let doc = json!({"containers": [{"name": "a"}], "tolerations": [{"key": "a"}]});
    for (case, patch, expected) in [
        (
            "a new element with nulls and directives",
            json!({"containers": [{"name": "b", "image": null, "env": [{"name": "A"}, {"$patch": "replace"}]}]}),
            json!({"containers": [{"name": "b", "image": null, "env": [{"name": "A"}, {"$patch": "replace"}]}, {"name": "a"}]}),
        ),
        (
            "one whose key is null",
            json!({"containers": [{"name": null}]}),
            json!({"containers": [{"name": null}, {"name": "a"}]}),
        ),
        (
            "a list that is not merged",
            json!({"tolerations": [{"key": null}, {"$patch": "delete"}, {"$patch": 1}]}),
            json!({"tolerations": [{"key": null}, {"$patch": "delete"}, {"$patch": 1}]}),
        ),
        (
            "elements that replace others, though two are of one key",
            json!({"containers": [{"$patch": "replace"}, {"name": "c"}, {"name": "c", "tty": true}]}),
            json!({"containers": [{"name": "c"}, {"name": "c", "tty": true}]}),
        ),
        (
            "but a new list has no directives and no nulls",
            json!({"volumes": [{"name": "v", "emptyDir": null}, {"$patch": "replace"}, {"name": "w", "$patch": null}]}),
            json!({"volumes": [{"name": "v"}, {"name": "w"}]}),
        ),
        (
            "and one whose order is set keeps nulls",
            json!({"volumes": [{"name": "v", "emptyDir": null}], "$setElementOrder/volumes": names(&["v"])}),
            json!({"volumes": [{"name": "v", "emptyDir": null}]}),
        ),
    ] {
        let mut expected = expected;
        for (list, own) in doc.as_object().unwrap() {
            expected.as_object_mut().unwrap().entry(list).or_insert_with(|| own.clone());
        }
        assert_eq!(merge(POD, doc.clone(), patch), Ok(expected), "{case}");
    }
}

#[test]
fn lists_of_scalars_are_merged_as_sets() {
    const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    for (case, patch, expected) in [
        ("values are added", json!({"finalizers": ["c"]}), json!(["c", "a", "b"])),
        ("values that are there stay once", json!({"finalizers": ["b"]}), json!(["a", "b"])),
        ("values are deleted", json!({"$deleteFromPrimitiveList/finalizers": ["a", "z"]}), json!(["b"])),
        (
            "order, addition and deletion together",
            json!({"$setElementOrder/finalizers": ["c", "b"], "$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}),
            json!(["c", "b"]),
        ),
    ] {
        let got = merge(META, json!({"finalizers": ["a", "b"]}), patch);
        assert_eq!(got, Ok(json!({"finalizers": expected})), "{case}");
    }
}

#[test]
fn wrong_patches_are_refused() {
    let doc = json!({"containers": [{"name": "a"}], "securityContext": {}, "volumes": [{"name": "v"}]});
    for (patch, code, text) in [
        (json!([]), 400, "invalid JSON document"),
        (json!({"securityContext": {"$patch": "grow"}}), 500, "unknown patch type"),
        (json!({"securityContext": {"$patch": 1}}), 500, "unknown patch type: %!s(int64=1) in map: map[$patch:1]"),
        (json!({"containers": [{"name": "a", "$patch": "merge"}]}), 500, "merging lists cannot yet be specified"),
        (json!({"$deleteFromPrimitiveList": ["a"]}), 400, "invalid patch format of primitive list"),
        (json!({"$setElementOrder/containers": "a"}), 500, "expected a []interface {}, but received a string"),
        (json!({"$setElementOrder/containers": {}}), 500, "but received a map[string]interface {}"),
        (json!({"$setElementOrder/containers": 1}), 500, "but received a int64"),
        (json!({"$setElementOrder/containers": [], "containers": true}), 500, "but received a bool"),
        (
            json!({"$setElementOrder/zz": ["a"]}),
            500,
            "unable to find api field in struct PodSpec for the json field \"zz\"",
        ),
        (json!({"$setElementOrder": []}), 400, "invalid patch format of setElementOrder list"),
        (json!({"volumes": [{"name": "v", "$retainKeys": 1}]}), 400, "invalid patch format of retainKeys"),
        (json!({"volumes": [{"name": "v", "$retainKeys": ["emptyDir"]}]}), 400, "invalid patch format of retainKeys"),
        (json!({"containers": [{"image": "x"}]}), 500, "does not contain declared merge key: name"),
        (json!({"containers": [{"$patch": "delete"}]}), 500, "does not contain declared merge key: name"),
        (json!({"containers": ["a"]}), 500, "list element types are not identical: [[map[name:a]] [a]]"),
        (
            json!({"containers": [{"name": "b"}], "$setElementOrder/containers": names(&["a"])}),
            500,
            "doesn't match $setElementOrder",
        ),
        (
            json!({"containers": [{"name": "a"}, {"$patch": "replace"}], "$setElementOrder/containers": names(&["a"])}),
            500,
            "The order in patch list:\n[map[name:a] map[$patch:replace]]\n doesn't match $setElementOrder",
        ),
    ] {
        let (got, message) = merge(POD, doc.clone(), patch.clone()).unwrap_err();
        assert!(got == code && message.contains(text), "{patch}: {got} {message}");
    }
}

fn containers() -> impl Strategy<Value = Value> {
    let fields = (prop::option::of("[xy]"), prop::collection::btree_map("[EFG]", "[12]", 0..3));
    prop::collection::btree_map("[abcd]", fields, 0..4).prop_shuffle_values()
}

/// Turns maps of containers into lists in any order.
trait ShuffledContainers: Strategy {
    fn prop_shuffle_values(self) -> BoxedStrategy<Value>;
}

impl<S> ShuffledContainers for S
where
    S: Strategy<
            Value = std::collections::BTreeMap<String, (Option<String>, std::collections::BTreeMap<String, String>)>,
        > + 'static,
{
    fn prop_shuffle_values(self) -> BoxedStrategy<Value> {
        self.prop_map(|all| all.into_iter().collect::<Vec<_>>())
            .prop_shuffle()
            .prop_map(|all| {
                all.into_iter()
                    .map(|(name, (image, env))| {
                        let env: Value = env.into_iter().map(|(n, v)| json!({"name": n, "value": v})).collect();
                        let mut container = json!({"name": name, "env": env});
                        if let Some(image) = image {
                            container["image"] = image.into();
                        }
                        container
                    })
                    .collect()
            })
            .boxed()
    }
}

proptest! {
    #[test]
    fn merging_the_same_patch_again_changes_nothing(live in containers(), patch in containers()) {
        let patch = json!({"containers": patch});
        let once = merge(POD, json!({"containers": live}), patch.clone()).unwrap();
        prop_assert_eq!(merge(POD, once.clone(), patch).unwrap(), once);
    }

    #[test]
    fn an_empty_patch_changes_nothing(live in containers()) {
        let doc = json!({"containers": live});
        prop_assert_eq!(merge(POD, doc.clone(), json!({})).unwrap(), doc);
    }

    #[test]
    fn every_key_of_both_sides_is_there_once(live in containers(), patch in containers()) {
        let key = |v: &Value| v["name"].as_str().unwrap().to_owned();
        let mut wanted: Vec<_> = live.as_array().unwrap().iter().chain(patch.as_array().unwrap()).map(key).collect();
        wanted.sort();
        wanted.dedup();
        let merged = merge(POD, json!({"containers": live}), json!({"containers": patch})).unwrap();
        let mut got: Vec<_> = merged["containers"].as_array().unwrap().iter().map(key).collect();
        got.sort();
        prop_assert_eq!(got, wanted);
    }
}

#[test]
fn long_lists_are_merged_in_time() {
    const MANY: usize = 30_000;
    let finalizers = |from: usize| -> Value { (from..from + MANY).map(|n| format!("f{n}")).collect() };
    let named = |from: usize| -> Value { (from..from + MANY).map(|n| json!({"name": format!("c{n}")})).collect() };
    let deleted: Value = (0..MANY).map(|n| json!({"name": format!("c{n}"), "$patch": "delete"})).collect();
    let keep: Value = (0..MANY).map(|n| format!("k{n}")).collect();
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    for (case, kind, doc, patch, field, length) in [
        (
            "scalars",
            meta,
            json!({"finalizers": finalizers(0)}),
            json!({"finalizers": finalizers(1)}),
            "finalizers",
            MANY + 1,
        ),
        (
            "scalars that go",
            meta,
            json!({"finalizers": finalizers(0)}),
            json!({"$deleteFromPrimitiveList/finalizers": finalizers(1)}),
            "finalizers",
            1,
        ),
        (
            "scalars with an order",
            meta,
            json!({"finalizers": finalizers(0)}),
            json!({"$setElementOrder/finalizers": finalizers(1), "finalizers": finalizers(1)}),
            "finalizers",
            MANY + 1,
        ),
        ("elements", POD, json!({"containers": named(0)}), json!({"containers": named(1)}), "containers", MANY + 1),
        ("elements that go", POD, json!({"containers": named(0)}), json!({"containers": deleted}), "containers", 0),
        (
            "elements with an order",
            POD,
            json!({"containers": named(0)}),
            json!({"$setElementOrder/containers": named(1), "containers": named(1)}),
            "containers",
            MANY + 1,
        ),
        ("keys that stay", POD, json!({"containers": named(0)}), json!({"$retainKeys": keep}), "containers", 0),
    ] {
        let begun = cpu();
        let merged = merge(kind, doc, patch).unwrap();
        assert!(cpu() - begun < 6.0, "{case}: {} s", cpu() - begun);
        assert_eq!(merged.get(field).and_then(Value::as_array).map_or(0, Vec::len), length, "{case}");
    }
}

/// Returns the CPU seconds of this thread.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells it");
    let nanos: u64 = stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("it begins with the time");
    std::time::Duration::from_nanos(nanos).as_secs_f64()
}

#[test]
fn keys_that_are_null_go_from_one_element_after_the_other() {
    let doc = json!({"containers": [{"name": null, "image": "a"}, {"name": null, "image": "b"}]});
    let patch = json!({"containers": [{"name": null, "image": "c"}, {"name": null, "image": "d"}]});
    let merged = merge(POD, doc, patch);
    assert!(merged.is_err(), "an element without its key has no place: {merged:?}");
}
