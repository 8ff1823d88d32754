//! Writes that expect a plan, with a planner that other writers outrun.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use crate::common::{Client, MAPS, Plane, config_map};
use portolan_apiserver::{
    ApiServerConfig,
    admission::{AdmissionPlugin, AdmissionRequest},
    hooks::{AdmittedWrite, WritePlan, WritePlanner},
};
use portolan_store::{DynStore, Engine, StoreConfig, StoreError};
use portolan_types::{
    BoxFuture, LogicalClusterId, Seams, Status, object,
    placement::{is_plan_input, plan_fence},
};
use serde_json::{Value, json};

const POLICIES: &str = "/apis/portolan.dev/v1alpha1/clusterplacementpolicies";

fn policy(name: &str, expects: Option<&str>) -> Value {
    let spec = json!({"resources": [{"apiGroup": "apps", "kinds": ["Deployment"]}]});
    let mut policy = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "ClusterPlacementPolicy",
        "metadata": {"name": name}, "spec": spec});
    object::set_annotation(&mut policy, "portolan.dev/expect-plan", expects.map(str::to_owned));
    policy
}

/// Write by somebody else between a plan and its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherWrite {
    Nothing,
    Create,
    Delete,
    /// Of another tenant.
    Elsewhere,
}

/// Planner whose plan depends on the number of policies: `one` without a further one, `two` with it.
struct OutrunPlanner {
    client: OnceLock<Client>,
    store: OnceLock<DynStore>,
    other: OtherWrite,
    plans: AtomicUsize,
}

impl OutrunPlanner {
    fn new(other: OtherWrite) -> Arc<Self> {
        Arc::new(Self { client: OnceLock::new(), store: OnceLock::new(), other, plans: AtomicUsize::new(0) })
    }

    async fn outrun(&self) {
        let client = self.client.get().unwrap();
        match self.other {
            OtherWrite::Nothing => {}
            OtherWrite::Create => drop(client.post(POLICIES, policy("other", None)).await.expect(201)),
            OtherWrite::Elsewhere => {
                drop(client.at("root:other").post(POLICIES, policy("other", None)).await.expect(201));
            }
            OtherWrite::Delete => drop(client.delete(&format!("{POLICIES}/known")).await.expect(200)),
        }
    }
}

impl WritePlanner for OutrunPlanner {
    fn concerns(&self, write: &AdmittedWrite<'_>) -> bool {
        is_plan_input(&write.key.resource)
    }

    fn plan<'a>(&'a self, _: AdmittedWrite<'a>) -> BoxFuture<'a, Result<WritePlan, Status>> {
        Box::pin(async move {
            let fence = plan_fence(LogicalClusterId::ROOT);
            let read = self.store.get().unwrap().get(&fence).await.unwrap().map(|stored| stored.revision);
            let is_first = self.plans.fetch_add(1, Ordering::Relaxed) == 0;
            if is_first {
                self.outrun().await;
            }
            let hash = if is_first { "one" } else { "two" }.to_owned();
            Ok(WritePlan { summary: "the plan".into(), hash, fences: vec![(fence, read)] })
        })
    }
}

async fn plane_with(planner: &Arc<OutrunPlanner>) -> (Plane, Client) {
    let plane = Plane::with(|config| config.hooks.planner = Some(planner.clone())).await;
    let admin = plane.admin();
    let workspace = json!({"metadata": {"name": "other"}});
    admin.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", workspace).await.expect(201);
    admin.post(POLICIES, policy("known", None)).await.expect(201);
    assert!(planner.client.set(plane.admin()).is_ok() && planner.store.set(plane.store.clone()).is_ok());
    (plane, admin)
}

#[tokio::test]
async fn a_policy_that_is_created_or_deleted_after_a_plan_is_seen_by_the_commit() {
    for (other, code, plans) in [
        (OtherWrite::Nothing, 201, 1),
        (OtherWrite::Create, 409, 2),
        (OtherWrite::Delete, 409, 2),
        (OtherWrite::Elsewhere, 201, 1),
    ] {
        let planner = OutrunPlanner::new(other);
        let (_plane, admin) = plane_with(&planner).await;
        let made = admin.post(POLICIES, policy("own", Some("one"))).await.expect(code);
        assert_eq!(planner.plans.load(Ordering::Relaxed), plans, "{other:?}: {}", made.text());
        let found = admin.get(&format!("{POLICIES}/own")).await.code;
        assert_eq!(found, if code == 201 { 200 } else { 404 }, "{other:?}");
    }
}

#[tokio::test]
async fn a_damaged_fence_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let open = || portolan_store::open(StoreConfig::new(Engine::Redb, Some(folder.path().to_owned())), Seams::system());
    let plane = Plane::on(open().unwrap(), ApiServerConfig::in_memory(Seams::system())).await;
    let admin = plane.admin();
    admin.post(POLICIES, policy("one", None)).await.expect(201);
    plane.store.close().await;
    drop((admin, plane));
    assert!(portolan_store::testing::damage(folder.path(), r#"{"name":"plans"}"#).unwrap() >= 1);
    let plane = Plane::on(open().unwrap(), ApiServerConfig::in_memory(Seams::system())).await;
    assert!(
        matches!(plane.store.get(&plan_fence(LogicalClusterId::ROOT)).await, Err(StoreError::Damaged { .. })),
        "it is damaged"
    );
    let admin = plane.admin();
    admin.post(POLICIES, policy("two", None)).await.expect(201);
    admin.delete(&format!("{POLICIES}/one")).await.expect(200);
    assert!(plane.store.get(&plan_fence(LogicalClusterId::ROOT)).await.unwrap().is_some());
}

/// Admission plugin that adds an expected plan.
struct Expecting;

impl AdmissionPlugin for Expecting {
    fn mutate<'a>(
        &'a self,
        _: &'a AdmissionRequest<'a>,
        new: &'a mut Value,
        _: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        object::set_annotation(new, "portolan.dev/expect-plan", Some("one".into()));
        Box::pin(std::future::ready(Ok(())))
    }
}

#[tokio::test]
async fn a_precondition_that_admission_adds_is_not_stored() {
    let admin = Plane::with(|config| config.hooks.admission.push(Arc::new(Expecting))).await.admin();
    admin.post(MAPS, config_map("a", json!({"x": "1"}))).await.expect(201);
    admin.merge(&format!("{MAPS}/a"), json!({"data": {"x": "2"}})).await.expect(200);
    let stored = admin.get(&format!("{MAPS}/a")).await.expect(200).json();
    assert_eq!(stored["metadata"]["annotations"].get("portolan.dev/expect-plan"), None, "{stored}");
}
