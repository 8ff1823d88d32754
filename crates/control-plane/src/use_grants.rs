//! Cache of grants to use physical clusters: the RBAC verb `use` per logical cluster, for the scheduler.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use portolan_apiserver::{
    ApiServer,
    authz::{UseGrants, identity_of},
    sync::{Follower, follow},
};
use portolan_scheduler::{Scheduler, UseRights};
use portolan_store::{ChangeKind, DynStore, Event, RangeRequest, RangeScope, WatchScope};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ResourceVersion, Status, placement};
use tokio::sync::Notify;

const RBAC: &str = "rbac.authorization.k8s.io";
/// First and longest backoff after a failure of the store.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Cache of the grants in every logical cluster with registered physical clusters. Until the grants of a logical
/// cluster are known, no workspace may use its physical clusters, and the scheduler decides nothing about them.
#[derive(Clone)]
pub(crate) struct UseGrantCache(Arc<CachedGrants>);

struct CachedGrants {
    api: Arc<ApiServer>,
    store: DynStore,
    homes: RwLock<HashMap<LogicalClusterId, UseGrants>>,
    /// Logical clusters whose grants are to be read again.
    stale: Mutex<BTreeSet<LogicalClusterId>>,
    woken: Notify,
}

/// Follower of one resource that affects grants.
struct GrantFollower {
    rights: UseGrantCache,
    resource: GroupResource,
}

fn physical_clusters() -> GroupResource {
    GroupResource::new(placement::GROUP, "physicalclusters")
}

impl UseRights for UseGrantCache {
    fn may_use(&self, cluster: LogicalClusterId, home: LogicalClusterId, name: &str) -> bool {
        let Some(known) = self.0.api.directory().by_id(cluster) else { return false };
        let homes = self.0.homes.read();
        homes.get(&home).is_some_and(|grants| grants.allow(&identity_of(known.id, &known.path), name))
    }

    fn are_known(&self, home: LogicalClusterId) -> bool {
        self.0.homes.read().contains_key(&home)
    }
}

impl UseGrantCache {
    /// Makes an empty cache.
    pub(crate) fn new(api: Arc<ApiServer>, store: DynStore) -> Self {
        let (homes, stale, woken) = (RwLock::default(), Mutex::default(), Notify::new());
        Self(Arc::new(CachedGrants { api, store, homes, stale, woken }))
    }

    /// Reads the grants of all homes once. Retries until the homes are known; a home that cannot be read stays unknown.
    pub(crate) async fn load(&self) {
        let mut pause = PAUSES.0;
        while let Err(error) = self.find_homes().await {
            tracing::warn!(%error, "physical clusters cannot be listed");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        let failed = self.read_marked(&|_| {}).await;
        self.mark(failed);
    }

    /// Keeps the grants up to date and requeues affected placements. Ends when dropped.
    pub(crate) async fn run(&self, scheduler: &Scheduler) {
        let follows = |resource: GroupResource| {
            let scope = WatchScope::Resource(resource.clone(), None);
            follow(self.0.store.clone(), scope, Arc::new(GrantFollower { rights: self.clone(), resource }))
        };
        let reading = async {
            loop {
                self.0.woken.notified().await;
                self.read_stale(|home| scheduler.rights_changed(home)).await;
            }
        };
        tokio::join!(
            follows(physical_clusters()),
            follows(GroupResource::new(RBAC, "clusterroles")),
            follows(GroupResource::new(RBAC, "clusterrolebindings")),
            reading,
        );
    }

    /// Marks every home as stale, cached or not.
    async fn find_homes(&self) -> Result<ResourceVersion, Status> {
        let known: Vec<LogicalClusterId> = self.0.homes.read().keys().copied().collect();
        let mut request = RangeRequest::slices(RangeScope::AllClusters(physical_clusters())).skip_damaged();
        let mut homes: BTreeSet<LogicalClusterId> = known.into_iter().collect();
        loop {
            let page = self.0.store.range(request.clone()).await.map_err(Status::internal)?;
            homes.extend(page.objects.iter().map(|stored| stored.key.cluster));
            homes.extend(page.damaged.iter().map(|found| found.key.cluster));
            let Some(next) = request.next(&page) else {
                self.mark(homes);
                return Ok(page.revision);
            };
            request = next;
        }
    }

    fn mark(&self, homes: impl IntoIterator<Item = LogicalClusterId>) {
        self.0.stale.lock().extend(homes);
        self.0.woken.notify_one();
    }

    /// Reads stale homes until none is left. A home that cannot be read does not delay the others.
    async fn read_stale(&self, changed: impl Fn(LogicalClusterId)) {
        let mut pause = PAUSES.0;
        loop {
            let failed = self.read_marked(&changed).await;
            if failed.is_empty() {
                return;
            }
            self.0.stale.lock().extend(failed);
            // Homes marked meanwhile are read at once.
            if tokio::time::timeout(pause, self.0.woken.notified()).await.is_err() {
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }

    /// Reads stale homes once, and calls `changed` for each with different grants. Returns those that failed.
    async fn read_marked(&self, changed: &impl Fn(LogicalClusterId)) -> BTreeSet<LogicalClusterId> {
        let homes = std::mem::take(&mut *self.0.stale.lock());
        let mut failed = BTreeSet::new();
        for home in homes {
            match self.0.api.use_grants(home).await {
                Ok(grants) => {
                    let before = self.0.homes.write().insert(home, grants.clone());
                    if before.as_ref() != Some(&grants) {
                        changed(home);
                    }
                }
                Err(error) => {
                    tracing::warn!(cluster = %home, %error, "the grants of physical clusters cannot be read");
                    failed.insert(home);
                }
            }
        }
        failed
    }
}

impl Follower for GrantFollower {
    fn catch_up(&self) -> BoxFuture<'_, Result<ResourceVersion, Status>> {
        Box::pin(async move {
            if self.resource == physical_clusters() {
                return self.rights.find_homes().await;
            }
            let at = self.rights.0.store.current();
            let known: Vec<LogicalClusterId> = self.rights.0.homes.read().keys().copied().collect();
            self.rights.mark(known);
            Ok(at)
        })
    }

    fn take(&self, event: &Event) {
        let home = event.key.cluster;
        let is_known = self.rights.0.homes.read().contains_key(&home);
        let matters = match (self.resource == physical_clusters(), is_known) {
            (true, false) => event.change != ChangeKind::Deleted,
            (false, true) => true,
            (true, true) | (false, false) => false,
        };
        if matters {
            self.rights.mark([home]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::Request;
    use http_body_util::{BodyExt as _, Full};
    use portolan_apiserver::{ApiServerConfig, User};
    use portolan_scheduler::{BuiltinKinds, ClusterTree, SchedulerParts};
    use portolan_store::{Expect, Transaction};
    use portolan_types::{LogicalClusterPath, ObjectKey, Record, Seams};
    use serde_json::{Value, json};
    use tower::ServiceExt as _;

    struct NoTree;

    impl ClusterTree for NoTree {
        fn lineage(&self, _: LogicalClusterId) -> Vec<(LogicalClusterId, LogicalClusterPath)> {
            Vec::new()
        }

        fn subtree(&self, cluster: LogicalClusterId) -> Vec<LogicalClusterId> {
            vec![cluster]
        }
    }

    fn parts(store: &DynStore, rights: &UseGrantCache) -> SchedulerParts {
        SchedulerParts {
            store: store.clone(),
            seams: Seams::system(),
            tree: Arc::new(NoTree),
            rights: Arc::new(rights.clone()),
            kinds: Arc::new(BuiltinKinds),
            gate: None,
            failover: portolan_scheduler::FailoverTiming::default(),
        }
    }

    async fn send(api: &Arc<ApiServer>, method: &str, path: &str, object: Value) -> Value {
        let admin = User { name: "admin".into(), groups: vec!["system:masters".into()], ..User::default() };
        let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(format!("/clusters/{path}")).header("content-type", media);
        let request = request.body(Full::new(Bytes::from(object.to_string()))).unwrap();
        let answer = api.service_as(admin).oneshot(request).await.unwrap();
        let code = answer.status();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(code.is_success(), "{method} {path}: {}", String::from_utf8_lossy(&bytes));
        serde_json::from_slice(&bytes).unwrap()
    }

    async fn workspace(api: &Arc<ApiServer>, parent: &str, name: &str) -> LogicalClusterId {
        let path = format!("{parent}/apis/tenancy.kcp.io/v1alpha1/workspaces");
        let made = send(api, "POST", &path, json!({"metadata": {"name": name}})).await;
        made["spec"]["cluster"].as_str().unwrap().parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn rights_follow_the_bindings_where_a_physical_cluster_is_registered() {
        let store = portolan_store::memory();
        let api = ApiServer::new(store.clone(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
        let acme = workspace(&api, "root", "acme").await;
        let (shop, lab) = (workspace(&api, "root:acme", "shop").await, workspace(&api, "root:acme", "lab").await);
        let rights = UseGrantCache::new(api.clone(), store.clone());
        rights.load().await;
        assert!(!rights.may_use(shop, acme, "east"), "where nothing is registered nothing may be used");
        let parts = parts(&store, &rights);
        let (running, scheduler) = (rights.clone(), Scheduler::new(parts));
        let task = tokio::spawn(async move { running.run(&scheduler).await });
        let settle = || tokio::time::sleep(Duration::from_secs(1));

        let physical = json!({"metadata": {"name": "east"}, "spec": {"connection": {"simulated": {}}}});
        send(&api, "POST", "root:acme/apis/portolan.dev/v1alpha1/physicalclusters", physical).await;
        settle().await;
        assert!(rights.may_use(shop, acme, "east") && rights.may_use(lab, acme, "east"), "from the start all may");

        let bindings = "root:acme/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        let shared = format!("{bindings}/portolan:physicalcluster-users");
        let only_shop = json!({"subjects": [
            {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:clusters:root:acme:shop"},
        ]});
        send(&api, "PATCH", &shared, only_shop).await;
        settle().await;
        assert!(rights.may_use(shop, acme, "east") && !rights.may_use(lab, acme, "east"));

        let again = UseGrantCache::new(api.clone(), store.clone());
        again.load().await;
        assert!(again.may_use(shop, acme, "east") && !again.may_use(lab, acme, "east"), "also after a restart");
        task.abort();
    }
    #[tokio::test(start_paused = true)]
    async fn a_home_that_cannot_be_read_keeps_no_other_one_waiting() {
        let store = portolan_store::memory();
        let api = ApiServer::new(store.clone(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
        let (first, second) = (workspace(&api, "root", "first").await, workspace(&api, "root", "second").await);
        assert!(first < second);
        for name in ["first", "second"] {
            let physical = json!({"metadata": {"name": "east"}, "spec": {"connection": {"simulated": {}}}});
            let path = format!("root:{name}/apis/portolan.dev/v1alpha1/physicalclusters");
            send(&api, "POST", &path, physical).await;
        }
        let whole = Record::of(&json!({"metadata": {"name": "broken"}}));
        let broken = Record::from_parts(whole.header.clone(), Bytes::from_static(b"not JSON"), 0);
        let key = ObjectKey::cluster_scoped(first, GroupResource::new(RBAC, "clusterroles"), "broken".parse().unwrap());
        store.commit(Transaction::one(key.clone(), Expect::Absent, broken)).await.unwrap();
        let rights = UseGrantCache::new(api.clone(), store.clone());
        tokio::time::timeout(Duration::from_secs(60), rights.load())
            .await
            .expect("one that cannot be read holds up none");
        assert!(rights.may_use(second, second, "east") && !rights.may_use(first, first, "east"));
        assert!(rights.are_known(second) && !rights.are_known(first), "nothing is concluded from what is not known");
        let parts = parts(&store, &rights);
        let (running, scheduler) = (rights.clone(), Scheduler::new(parts));
        let task = tokio::spawn(async move { running.run(&scheduler).await });
        store.commit(Transaction::one(key, Expect::Present, None)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(rights.may_use(first, first, "east"));
        task.abort();
    }
}
