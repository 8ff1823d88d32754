//! Plans: the effect of changes that are not written, and that it is what the scheduler does once they are.

use portolan_types::{
    StatusCause,
    placement::{PlacementPlanSpec, PlanChange, Taint, plan_fence},
};

use super::*;
use crate::{Plan, PlanError, PlannedChange, PlannedPlace};

const ROOT: LogicalClusterId = LogicalClusterId::ROOT;

fn physical(name: &str) -> ObjectKey {
    key(ROOT, &format!("physicalclusters.portolan.dev/{name}"))
}

fn root_policy(name: &str) -> ObjectKey {
    key(ROOT, &format!("clusterplacementpolicies.portolan.dev/{name}"))
}

fn policy_object(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "ClusterPlacementPolicy", "metadata": {"name": name}, "spec": spec})
}

fn apply_policy(name: &str, spec: Value) -> PlannedChange {
    PlannedChange::Apply { key: root_policy(name), object: policy_object(name, spec) }
}

/// `east*2+west` for copies on both.
fn places(places: &[PlannedPlace]) -> String {
    let word = |place: &PlannedPlace| match place.replicas {
        Some(n) => format!("{}*{n}", place.name),
        None => place.name.clone(),
    };
    if places.is_empty() { "none".into() } else { places.iter().map(word).collect::<Vec<_>>().join("+") }
}

/// `web east*2>west*2` moves, `=web …` is divided again, `~settings …` follows, `!db east MoveRefused` is refused.
fn rows(plan: &Plan) -> String {
    let moves = plan.moves.iter().map(|row| {
        let mark = if row.follows { "~" } else { "" };
        format!("{mark}{} {}>{}", row.key.name, places(&row.from), places(&row.to))
    });
    let splits = plan.splits.iter().map(|row| format!("={} {}>{}", row.key.name, places(&row.from), places(&row.to)));
    let refused = plan.refused.iter().map(|row| format!("!{} {} {}", row.key.name, places(&row.stays), row.reason));
    let mut all: Vec<String> = moves.chain(splits).chain(refused).collect();
    all.sort();
    all.join(", ")
}

/// A Deployment that names a ConfigMap, a set with claims, and a bare Pod, all on east.
async fn inhabited_world() -> World {
    let world = World::new(&["east", "west"]).await;
    world.create(shop("configmaps/shop/settings"), "v1", "ConfigMap", json!({})).await;
    let container = json!({"name": "c", "envFrom": [{"configMapRef": {"name": "settings"}}], "resources": {"requests": {"cpu": "1"}}});
    world.deployment("web", json!({"containers": [container]})).await;
    let spec = json!({"replicas": 1, "template": {"spec": {"containers": []}}, "volumeClaimTemplates": [{"metadata": {"name": "data"}}]});
    world.create(shop("statefulsets.apps/shop/db"), "apps/v1", "StatefulSet", json!({"spec": spec})).await;
    let pod = json!({"metadata": {"labels": {"app": "solo"}}, "spec": {"containers": [{"name": "c"}]}});
    world.create(shop("pods/shop/solo"), "v1", "Pod", pod).await;
    for object in
        ["deployments.apps/shop/web", "statefulsets.apps/shop/db", "pods/shop/solo", "configmaps/shop/settings"]
    {
        world.placed(&shop(object), "east").await;
    }
    world.settle().await;
    world
}

#[tokio::test(start_paused = true)]
async fn the_effect_of_each_change() {
    let world = inhabited_world().await;
    let taint = |effect: &str| Taint { key: "maintenance".into(), value: String::new(), effect: effect.into() };
    let on_east = |effect: &str| PlannedChange::Taint { key: physical("east"), taint: taint(effect), remove: false };
    let pin = |object: &str, to: &str| PlannedChange::Pin { key: shop(object), clusters: vec![to.into()] };
    let apps = json!([{"apiGroup": "apps", "kinds": ["Deployment", "StatefulSet"]}]);
    let on_west = json!({"resources": apps, "clusters": {"names": ["west"]}});
    let divided = json!({"resources": apps, "clusters": {"names": ["east", "west"]}, "replicas": {"mode": "Divide"}});
    let nowhere = json!({"resources": apps, "count": 0});
    let all_leave = "!db east MoveRefused, solo east>west, web east*2>west*2, ~settings east>west";
    for (case, home, change, expected) in [
        ("a drain", ROOT, PlannedChange::Drain { key: physical("east"), force: false }, all_leave),
        ("a taint that moves", ROOT, on_east("NoExecute"), all_leave),
        ("a taint that keeps off", ROOT, on_east("NoSchedule"), ""),
        ("a cordon", ROOT, PlannedChange::Cordon { key: physical("east"), unschedulable: true }, ""),
        ("a deletion", ROOT, PlannedChange::Delete { key: physical("east") }, all_leave),
        ("the drain of another one", ROOT, PlannedChange::Drain { key: physical("west"), force: false }, ""),
        ("a pin", SHOP, pin("deployments.apps/shop/web", "west"), "web east*2>west*2, ~settings east>west"),
        ("a pin of what has volumes", SHOP, pin("statefulsets.apps/shop/db", "west"), "!db east MoveRefused"),
        ("a pin of the namespace", SHOP, pin("namespaces/shop", "west"), all_leave),
        ("a policy", ROOT, apply_policy("p", on_west), "!db east MoveRefused, web east*2>west*2, ~settings east>west"),
        ("a division", ROOT, apply_policy("p", divided), "web east*2>east*1+west*1, ~settings east>east+west"),
        ("no copies", ROOT, apply_policy("p", nowhere), "db east*1>none, web east*2>none, ~settings east>none"),
    ] {
        let plan = world.scheduler.plan(home, &[change]).await.unwrap();
        assert_eq!(rows(&plan), expected, "{case}: {plan:#?}");
        let (counts, lines) = (plan.counts(), rows(&plan));
        let all = counts.moves + counts.followers + counts.splits + counts.refused;
        assert_eq!(all as usize, lines.split(", ").filter(|line| !line.is_empty()).count(), "{case}");
        assert!(plan.summary().ends_with(&format!("; plan {}", plan.hash)), "{case}: {}", plan.summary());
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_also_moves_objects_that_tolerate_every_taint() {
    let world = inhabited_world().await;
    let apps = json!([{"apiGroup": "apps", "kinds": ["Deployment"]}]);
    let spec = json!({"resources": apps, "tolerations": [{"operator": "Exists"}]});
    world.policy(ROOT, "tolerant", spec).await;
    world.settle().await;
    let drain = [PlannedChange::Drain { key: physical("east"), force: false }];
    let plan = world.scheduler.plan(ROOT, &drain).await.unwrap();
    assert_eq!(rows(&plan), "!db east MoveRefused, solo east>west, web east*2>west*2, ~settings east>west");
    assert!(plan.moves.iter().filter(|row| !row.follows).all(|row| row.reason == "by a drain"), "{plan:#?}");
    let timed = world.scheduler.ctx.metrics.plan_seconds.get_sample_count();
    assert_eq!(timed, 1, "a plan counts once");
    let spec = json!({"spec": {"physicalClusters": ["east"]}});
    let key = key(ROOT, "drains.portolan.dev/d");
    world.create(key, "portolan.dev/v1alpha1", "Drain", spec).await;
    world.until("it moves", &shop("deployments.apps/shop/web"), |web| words(web).contains("west")).await;
}

#[tokio::test(start_paused = true)]
async fn a_forced_drain_moves_the_planned_objects() {
    let world = inhabited_world().await;
    let spec = json!({"changes": [{"drain": ["east"], "whenBlocked": "Force"}]});
    let spec: PlacementPlanSpec = serde_json::from_value(spec).unwrap();
    let changes = world.scheduler.planned_changes(ROOT, &spec).await.unwrap().unwrap();
    let plan = world.scheduler.plan(ROOT, &changes).await.unwrap();
    assert_eq!(rows(&plan), "db east*1>west*1, solo east>west, web east*2>west*2, ~settings east>west");
    let spec = json!({"spec": {"physicalClusters": ["east"], "whenBlocked": "Force", "expectPlan": plan.hash}});
    world.create(key(ROOT, "drains.portolan.dev/d"), "portolan.dev/v1alpha1", "Drain", spec).await;
    world.until("it moves", &shop("deployments.apps/shop/web"), |web| words(web).contains("west")).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_physical_cluster_keeps_run_once_objects() {
    let world = inhabited_world().await;
    let plan = world.scheduler.plan(ROOT, &[PlannedChange::Lose { key: physical("east") }]).await.unwrap();
    let lines = rows(&plan);
    assert!(lines.contains("web east*2>west*2, ~settings east>west"), "{lines}");
    for stays in ["db", "solo"] {
        assert!(lines.contains(&format!("!{stays} east ")), "{lines}");
        assert!(!lines.contains(&format!(", {stays} east")), "{lines}");
    }
}

#[tokio::test(start_paused = true)]
async fn capacity_and_disruption_budgets_are_those_after_the_moves() {
    let world = inhabited_world().await;
    let budget = json!({"spec": {"selector": {"matchLabels": {"app": "solo"}}}, "status": {"disruptionsAllowed": 0}});
    world.create(shop("poddisruptionbudgets.policy/shop/none"), "policy/v1", "PodDisruptionBudget", budget).await;
    world.settle().await;
    let plan =
        world.scheduler.plan(ROOT, &[PlannedChange::Drain { key: physical("east"), force: false }]).await.unwrap();
    let cpu = |amounts: &BTreeMap<String, portolan_types::quantity::Quantity>| {
        amounts.get("cpu").map_or("0".to_owned(), ToString::to_string)
    };
    let capacity: Vec<_> =
        plan.capacity.iter().map(|row| (row.key.name.to_string(), cpu(&row.before), cpu(&row.after))).collect();
    let row = |name: &str, before: &str, after: &str| (name.to_owned(), before.to_owned(), after.to_owned());
    assert_eq!(capacity, [row("east", "2", "0"), row("west", "0", "2")]);
    let budgets: Vec<_> =
        plan.budgets.iter().map(|row| (row.key.name.to_string(), row.disrupted, row.allowed)).collect();
    assert_eq!(budgets, [("none".to_owned(), 1, 0)], "a bare Pod stops before it starts elsewhere");
}

#[tokio::test(start_paused = true)]
async fn capacity_freed_by_a_plan_goes_to_waiting_objects() {
    let world = World::new(&[]).await;
    world.physical("west", json!({"bounds": {"cpu": "2"}}), true).await;
    let pod = json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}]});
    world.deployment("b", pod.clone()).await;
    world.placed(&shop("deployments.apps/shop/b"), "west").await;
    world.deployment("a", pod).await;
    world.settle().await;
    assert_eq!(words(world.get(&shop("deployments.apps/shop/a")).await.as_ref()), "", "there is no room");
    let stop = json!({"resources": [{"apiGroup": "apps", "names": ["b"]}], "count": 0});
    let plan = world.scheduler.plan(ROOT, &[apply_policy("stop", stop)]).await.unwrap();
    assert_eq!(rows(&plan), "a none>west*2, b west*2>none", "{plan:#?}");
    let more = PlannedChange::Bounds { key: physical("west"), bounds: [("cpu".into(), "4".parse().unwrap())].into() };
    let plan = world.scheduler.plan(ROOT, &[more]).await.unwrap();
    assert_eq!(rows(&plan), "a none>west*2", "{plan:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_plan_has_the_hash_of_its_write_and_reads_one_snapshot() {
    let world = inhabited_world().await;
    let spec = json!({"resources": [{"apiGroup": "apps"}], "clusters": {"names": ["west"]}});
    let applied = world.scheduler.plan(ROOT, &[apply_policy("p", spec.clone())]).await.unwrap();
    let mut object = policy_object("p", spec);
    object["metadata"]["uid"] = "any".into();
    object["metadata"]["creationTimestamp"] = "2027-01-01T00:00:00Z".into();
    let write = PlannedChange::Write { key: root_policy("p"), object };
    let written = world.scheduler.plan(ROOT, std::slice::from_ref(&write)).await.unwrap();
    assert_eq!((rows(&applied), &applied.hash), (rows(&written), &written.hash));
    let fences = |of: &[LogicalClusterId]| of.iter().map(|of| (plan_fence(*of), None)).collect::<Vec<_>>();
    assert_eq!(applied.fences, fences(&[ROOT, SHOP, OTHER]), "those of the whole subtree");
    let own = PlannedChange::Pin { key: shop("deployments.apps/shop/web"), clusters: vec!["west".into()] };
    let own = world.scheduler.plan(SHOP, &[own]).await.unwrap();
    assert_eq!(own.fences, fences(&[ROOT, SHOP]), "an ancestor's policies matter, and those of another tenant do not");
    let before = world.store.current();
    world.scheduler.plan(ROOT, std::slice::from_ref(&write)).await.unwrap();
    assert_eq!(world.store.current(), before, "a plan writes nothing");
    world.pin(&shop("deployments.apps/shop/web"), "east").await;
    let now = world.scheduler.plan(ROOT, &[write]).await.unwrap();
    assert_ne!(now.hash, written.hash, "an object that stays is another plan");
}

#[tokio::test(start_paused = true)]
async fn a_plan_about_too_many_objects_is_refused() {
    let world = inhabited_world().await;
    let drain = [PlannedChange::Drain { key: physical("east"), force: false }];
    for (most, is_refused) in [(2, true), (3, true), (20, false)] {
        let plan = world.scheduler.plan_within(ROOT, &drain, most).await;
        assert_eq!(matches!(plan, Err(PlanError::TooManyObjects)), is_refused, "{most}");
    }
}

#[tokio::test(start_paused = true)]
async fn bad_requests_name_the_field() {
    let world = inhabited_world().await;
    let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": "web"});
    let policy = |kind: &str, namespace: &str| json!({"apiVersion": "portolan.dev/v1alpha1", "kind": kind, "metadata": {"name": "p", "namespace": namespace}, "spec": {}});
    let mut foreign = policy("ClusterPlacementPolicy", "");
    foreign["metadata"]["annotations"] = json!({"kcp.io/cluster": "root:other"});
    for (case, home, changes, field, reason) in [
        ("nothing", ROOT, json!([]), "spec.changes", "FieldValueRequired"),
        ("an empty change", ROOT, json!([{}]), "spec.changes[0]", "FieldValueRequired"),
        ("two in one", ROOT, json!([{"lose": ["east"], "drain": ["west"]}]), "spec.changes[0]", "FieldValueForbidden"),
        (
            "force without a drain",
            ROOT,
            json!([{"lose": ["east"], "whenBlocked": "Force"}]),
            "spec.changes[0].whenBlocked",
            "FieldValueForbidden",
        ),
        (
            "an unknown one",
            ROOT,
            json!([{"drain": ["east", "eats"]}]),
            "spec.changes[0].drain[1]",
            "FieldValueNotFound",
        ),
        ("one of an ancestor", SHOP, json!([{"lose": ["east"]}]), "spec.changes[0].lose[0]", "FieldValueNotFound"),
        (
            "one twice",
            ROOT,
            json!([{"lose": ["east"]}, {"cordon": {"cluster": "east"}}]),
            "spec.changes[1]",
            "FieldValueDuplicate",
        ),
        (
            "an unknown effect",
            ROOT,
            json!([{"taint": {"cluster": "east", "key": "a", "effect": "No"}}]),
            "spec.changes[0].taint.effect",
            "FieldValueNotSupported",
        ),
        (
            "a pin out of reach",
            SHOP,
            json!([{"pin": {"object": web, "clusters": ["eats"]}}]),
            "spec.changes[0].pin.clusters[0]",
            "FieldValueNotFound",
        ),
        (
            "a pin of nothing",
            SHOP,
            json!([{"pin": {"object": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": "no"}}}]),
            "spec.changes[0].pin.object.name",
            "FieldValueNotFound",
        ),
        (
            "a kind that is not placed",
            SHOP,
            json!([{"pin": {"object": {"apiVersion": "a.io/v1", "kind": "A", "name": "a"}}}]),
            "spec.changes[0].pin.object.kind",
            "FieldValueInvalid",
        ),
        (
            "a policy without its namespace",
            ROOT,
            json!([{"apply": policy("PlacementPolicy", "")}]),
            "spec.changes[0].apply.metadata.namespace",
            "FieldValueRequired",
        ),
        (
            "a namespace too many",
            ROOT,
            json!([{"apply": policy("ClusterPlacementPolicy", "shop")}]),
            "spec.changes[0].apply.metadata.namespace",
            "FieldValueInvalid",
        ),
        (
            "another kind",
            ROOT,
            json!([{"apply": policy("Drain", "")}]),
            "spec.changes[0].apply.kind",
            "FieldValueNotSupported",
        ),
        (
            "another workspace",
            ROOT,
            json!([{"apply": foreign}]),
            "spec.changes[0].apply.metadata.annotations[kcp.io/cluster]",
            "FieldValueInvalid",
        ),
        (
            "a deletion of nothing",
            ROOT,
            json!([{"delete": {"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "name": "no"}}]),
            "spec.changes[0].delete.name",
            "FieldValueNotFound",
        ),
    ] {
        let spec: PlacementPlanSpec = serde_json::from_value(json!({"changes": changes})).unwrap();
        let causes = world.scheduler.planned_changes(home, &spec).await.unwrap().expect_err(case);
        let found: Vec<_> = causes.iter().map(|StatusCause { field, reason, .. }| (&**field, &**reason)).collect();
        assert_eq!(found, [(field, reason)], "{case}: {causes:?}");
    }
    let limit = PlacementPlanSpec {
        changes: vec![PlanChange { drain: vec!["east".into()], ..PlanChange::default() }],
        limit: Some(0),
    };
    assert_eq!(world.scheduler.planned_changes(ROOT, &limit).await.unwrap().unwrap_err()[0].field, "spec.limit");
}

/// Source of random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn pick<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }

    fn policy(&mut self, clusters: &[&str]) -> Value {
        let kinds: &[&str] = self.pick(&[&["Deployment"][..], &["StatefulSet"], &["Deployment", "StatefulSet"]]);
        let selected = match self.below(4) {
            0 => json!({"names": [self.pick(clusters)]}),
            1 => json!({"exclude": [self.pick(clusters)]}),
            2 => json!({"names": clusters}),
            _ => json!({}),
        };
        let mut spec = json!({"resources": [{"apiGroup": "apps", "kinds": kinds}], "clusters": selected});
        if self.below(2) == 0 {
            spec["count"] = (self.below(3) + 1).into();
        }
        if self.below(2) == 0 {
            spec["replicas"] = json!({"mode": "Divide", "by": self.pick(&["Equal", "Weight"])});
        }
        if self.below(4) == 0 {
            spec["enforcement"] = "Constraint".into();
        }
        spec
    }

    /// Returns a change, and the key and spec of its write.
    fn change(&mut self, clusters: &[&str]) -> (PlannedChange, ObjectKey, Value) {
        let (on, is_on) = (physical(self.pick(clusters)), self.below(2) == 0);
        match self.below(3) {
            0 => {
                let (name, spec) = (self.pick(&["a", "b"]), self.policy(clusters));
                (apply_policy(name, spec.clone()), root_policy(name), spec)
            }
            1 => {
                let change = PlannedChange::Cordon { key: on.clone(), unschedulable: is_on };
                (change, on, json!({"unschedulable": is_on}))
            }
            _ => {
                let taint = Taint { key: "t".into(), value: String::new(), effect: "NoExecute".into() };
                let taints = if is_on { json!([taint]) } else { json!([]) };
                (PlannedChange::Taint { key: on.clone(), taint, remove: !is_on }, on, json!({"taints": taints}))
            }
        }
    }
}

impl World {
    /// Makes five workloads that name a ConfigMap. Returns the keys of all.
    async fn make_workloads(&self, dice: &mut Dice) -> Vec<ObjectKey> {
        let container = json!({"name": "c", "envFrom": [{"configMapRef": {"name": "settings"}}]});
        let mut keys = Vec::new();
        for n in 0..5 {
            let spec = json!({"replicas": dice.below(5) + 1, "template": {"spec": {"containers": [container]}}});
            let (resource, kind) = match dice.below(3) {
                0 => ("statefulsets", "StatefulSet"),
                _ => ("deployments", "Deployment"),
            };
            let key = shop(&format!("{resource}.apps/shop/w{n}"));
            self.create(key.clone(), "apps/v1", kind, json!({"spec": spec})).await;
            keys.push(key);
        }
        keys.push(shop("configmaps/shop/settings"));
        self.create(keys[5].clone(), "v1", "ConfigMap", json!({})).await;
        keys
    }

    /// Writes the spec of a policy, or fields of the spec of a physical cluster. A new policy is the youngest.
    async fn write_spec(&self, key: &ObjectKey, spec: Value, step: usize) {
        if self.get(key).await.is_none() {
            let mut policy = policy_object(&key.name, spec);
            policy["metadata"]["uid"] = key.name.to_string().into();
            policy["metadata"]["creationTimestamp"] = format!("2026-02-01T00:00:0{step}Z").into();
            self.objects.create(key, &policy).await.unwrap();
            return;
        }
        let is_policy = key.resource == root_policy("a").resource;
        self.change(key, |object| {
            if is_policy {
                object["spec"] = spec.clone();
            } else {
                object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
            }
        })
        .await;
    }

    /// Plays the syncers until nothing moves: copies get ready, and leaving ones are gone.
    async fn sync_all(&self, keys: &[ObjectKey]) {
        let mut last = String::new();
        for _ in 0..40 {
            self.settle().await;
            let mut state = String::new();
            for key in keys {
                let Some(object) = self.get(key).await else { continue };
                let record = PlacementRecord::of(&object).unwrap_or_default();
                if record.clusters.iter().any(|copy| copy.phase == CopyPhase::Leaving) {
                    self.confirm_gone(key).await;
                }
                for copy in record.active() {
                    if self.placement(key).await.is_some() {
                        self.ready(key, &copy.name, 100).await;
                    }
                }
                state += &format!("{key} {}\n", words(Some(&object)));
            }
            if state == last && !state.contains('-') {
                return;
            }
            last = state;
            // Grace periods of addresses pass.
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }

    /// Returns the names of the physical clusters of an object, and its shares of the replicas.
    async fn copies(&self, key: &ObjectKey) -> Vec<(String, Option<i64>)> {
        let object = self.get(key).await.unwrap_or_default();
        let record = PlacementRecord::of(&object).unwrap_or_default();
        let replicas = object.pointer("/spec/replicas").and_then(Value::as_i64);
        let copy = |copy: &portolan_types::placement::PlacedCopy| {
            (copy.name.clone(), replicas.map(|all| record.replicas_of(copy, all)))
        };
        record.active().map(copy).collect()
    }
}

/// Compares a plan with what happened to one object.
fn assert_planned(case: &str, plan: &Plan, key: &ObjectKey, copies: [&[(String, Option<i64>)]; 2]) {
    let [before, after] = copies;
    let row = plan.moves.iter().chain(&plan.splits).find(|row| row.key == *key);
    let copies = |places: &[PlannedPlace]| -> Vec<_> {
        places.iter().map(|place| (place.name.clone(), place.replicas)).collect()
    };
    let (from, to) = row.map_or((before.to_vec(), before.to_vec()), |row| (copies(&row.from), copies(&row.to)));
    assert_eq!((&*from, &*to), (before, after), "{case}, {key}: {}", rows(plan));
}

#[tokio::test(start_paused = true)]
async fn the_scheduler_follows_the_plan() {
    let clusters = ["east", "west"];
    for seed in 0..60 {
        let mut dice = Dice(seed * 7_919 + 1);
        let world = World::new(&clusters).await;
        let keys = world.make_workloads(&mut dice).await;
        world.sync_all(&keys).await;
        for step in 0..3 {
            let (change, key, spec) = dice.change(&clusters);
            let mut before = Vec::new();
            for key in &keys {
                before.push(world.copies(key).await);
            }
            let plan = world.scheduler.plan(ROOT, std::slice::from_ref(&change)).await.unwrap();
            world.write_spec(&key, spec, step).await;
            world.sync_all(&keys).await;
            for (key, before) in keys.iter().zip(&before) {
                let case = format!("seed {seed}, step {step}: {change:?}");
                assert_planned(&case, &plan, key, [before, &world.copies(key).await]);
            }
            let settled = world.scheduler.plan(ROOT, &[]).await.unwrap();
            assert_eq!(rows(&settled), "", "seed {seed}, step {step}: nothing is left to be done");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn objects_without_capacity_elsewhere_are_refused_by_plan_and_drain() {
    let world = World::new(&["east"]).await;
    let one_cpu = json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}]});
    world.deployment("web", one_cpu).await;
    let web = shop("deployments.apps/shop/web");
    world.placed(&web, "east").await;
    let divide = json!({"resources": [{"apiGroup": "apps", "kinds": ["Deployment"]}], "count": 1,
        "replicas": {"mode": "Divide", "by": "Equal"}});
    world.policy(SHOP, "divide", divide).await;
    world.physical("west", json!({"bounds": {"cpu": "1"}}), true).await;
    world.settle().await;
    let plan =
        world.scheduler.plan(ROOT, &[PlannedChange::Drain { key: physical("east"), force: false }]).await.unwrap();
    let refused: Vec<_> = plan.refused.iter().map(|row| (row.key.clone(), row.reason)).collect();
    assert_eq!((plan.moves.len(), refused), (0, vec![(web, "NoRoom")]), "{plan:#?}");
}
