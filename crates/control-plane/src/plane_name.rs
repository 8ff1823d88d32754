//! Name of the control plane, which tells its copies from those of other control planes on shared physical clusters.
//!
//! It is stored in the system's logical cluster, which no request reaches. So it moves with the objects, also through
//! snapshots, and all servers on one etcd share it.
//!
//! A store with copies older than names stays without one: they are in namespaces of unnamed control planes, and are
//! found and deleted only there.

use portolan_store::{DynStore, Expect, RangeRequest, RangeScope, StoreError, Transaction};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Seams, placement::GROUP};
use serde_json::{Value, json};

fn key() -> ObjectKey {
    let resource = GroupResource::new("internal.portolan.dev", "planes");
    ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, resource, "this".parse().expect("it is a name"))
}

/// Resources of any logical cluster that indicate copies.
const OF_ANY: [(&str, &str); 2] = [(GROUP, "physicalclusters"), (GROUP, "placements")];
/// Resources of the system's logical cluster that indicate copies, even after a `PhysicalCluster` was removed by force.
const OF_SYSTEM: [&str; 2] = ["syncers", "debts"];

/// Returns the name, which is made at the first start of a store. `None` if the store had, or may have had, copies at
/// that start; then it never gets a name.
pub(crate) async fn plane_name(store: &DynStore, seams: &Seams) -> anyhow::Result<Option<String>> {
    if let Some(name) = stored(store).await? {
        return Ok(valid_name(name));
    }
    let name = if may_have_copies(store).await? { String::new() } else { seams.uid().to_string() };
    let object = json!({"metadata": {"name": "this"}, "plane": name});
    match store.commit(Transaction::one(key(), Expect::Absent, Some(Record::of(&object)))).await {
        Ok(_) => Ok(valid_name(name)),
        // Another server on the same store was faster.
        Err(StoreError::AlreadyExists { .. } | StoreError::Conflict { .. }) => {
            let name = stored(store).await?.ok_or_else(|| anyhow::anyhow!("the name of the control plane is gone"))?;
            Ok(valid_name(name))
        }
        Err(error) => Err(error.into()),
    }
}

/// Decodes the stored name; an empty one stands for none.
fn valid_name(name: String) -> Option<String> {
    Some(name).filter(|name| !name.is_empty())
}

async fn may_have_copies(store: &DynStore) -> Result<bool, StoreError> {
    let of_any = OF_ANY.map(|(group, resource)| RangeScope::AllClusters(GroupResource::new(group, resource)));
    let of_system = OF_SYSTEM.map(|resource| {
        RangeScope::Cluster(LogicalClusterId::SYSTEM, GroupResource::new("internal.portolan.dev", resource))
    });
    for scope in of_any.into_iter().chain(of_system) {
        let request = RangeRequest { limit: Some(1), ..RangeRequest::all(scope).skip_damaged() };
        let page = store.range(request).await?;
        if !page.objects.is_empty() || !page.damaged.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn stored(store: &DynStore) -> anyhow::Result<Option<String>> {
    let Some(found) = store.get(&key()).await? else { return Ok(None) };
    let object = found.record.to_value(found.revision)?;
    let name = object.get("plane").and_then(Value::as_str).map(str::to_owned);
    name.map(Some).ok_or_else(|| anyhow::anyhow!("the name of the control plane is damaged"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_keeps_its_name_and_no_other_has_it() {
        let (one, other, seams) = (portolan_store::memory(), portolan_store::memory(), Seams::system());
        let first = plane_name(&one, &seams).await.unwrap();
        assert!(first.is_some());
        assert_eq!(plane_name(&one, &seams).await.unwrap(), first);
        assert_ne!(plane_name(&other, &seams).await.unwrap(), first);
    }

    #[tokio::test]
    async fn a_store_with_copies_of_before_there_were_names_stays_without() {
        let of = |cluster, group: &str, resource: &str| {
            ObjectKey::cluster_scoped(cluster, GroupResource::new(group, resource), "one".parse().unwrap())
        };
        let (system, any, seams) = (LogicalClusterId::SYSTEM, LogicalClusterId::new(7), Seams::system());
        let placement = ObjectKey { scope: "shop".parse().ok().into(), ..of(any, GROUP, "placements") };
        for (case, key) in [
            ("a physical cluster", of(any, GROUP, "physicalclusters")),
            ("a placement", placement),
            ("the count of its syncers", of(system, "internal.portolan.dev", "syncers")),
            ("a debt", of(system, "internal.portolan.dev", "debts")),
        ] {
            let store = portolan_store::memory();
            let write = |record| store.commit(Transaction::one(key.clone(), Expect::Anything, record));
            write(Some(Record::of(&json!({"metadata": {"name": "one"}})))).await.unwrap();
            assert_eq!(plane_name(&store, &seams).await.unwrap(), None, "{case}");
            write(None).await.unwrap();
            assert_eq!(plane_name(&store, &seams).await.unwrap(), None, "{case} is gone: where copies are stays");
        }
    }

    #[tokio::test]
    async fn a_new_store_keeps_its_name_with_physical_clusters() {
        let (store, seams) = (portolan_store::memory(), Seams::system());
        let first = plane_name(&store, &seams).await.unwrap();
        let resource = GroupResource::new(GROUP, "physicalclusters");
        let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, "east".parse().unwrap());
        let object = json!({"metadata": {"name": "east"}});
        store.commit(Transaction::one(key, Expect::Absent, Some(Record::of(&object)))).await.unwrap();
        assert_eq!(plane_name(&store, &seams).await.unwrap(), first);
        assert!(first.is_some());
    }
}
