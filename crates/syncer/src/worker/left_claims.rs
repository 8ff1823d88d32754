//! Claims that an earlier StatefulSet has left and nothing upstream accounts for: a new one of its name would mount
//! their data.

use portolan_types::{GroupResource, ObjectKey, object, placement::ProjectionSource, upstream::UpstreamObject};
use serde_json::Value;

use super::{SyncError, Worker, copies::CopyView};
use crate::{project, rules::SyncRefusal};

/// Most claims that are named.
const MAX_NAMED: usize = 5;

/// Returns true if a StatefulSet gives this name to a claim: `<template>-<set>-<ordinal>`.
fn is_claim_of(set: &Value, name: &str) -> bool {
    let templates = set.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    templates.into_iter().flatten().any(|template| {
        let prefix = format!("{}-{}-", object::name(template), object::name(set));
        name.strip_prefix(&prefix).is_some_and(|ordinal| ordinal.parse::<u32>().is_ok())
    })
}

impl Worker {
    /// Returns true while claims of a StatefulSet's names are still to be deleted: those that were out of reach when
    /// they should have been.
    pub(super) async fn has_owed_claims(
        &self,
        view: &CopyView<'_>,
        upstream: &UpstreamObject,
    ) -> Result<bool, SyncError> {
        let debts = self.upstream.debts(&self.config.uid).await?;
        Ok(debts.iter().filter(|debt| &*debt.key.resource.resource == "persistentvolumeclaims").any(|debt| {
            self.debt_ref(debt).is_ok_and(|place| {
                place.namespace == view.place.namespace && is_claim_of(&upstream.object, &place.name)
            })
        }))
    }

    /// Refuses a StatefulSet that would take on claims which nothing upstream accounts for.
    pub(super) async fn refuse_left_claims(
        &self,
        view: &CopyView<'_>,
        upstream: &UpstreamObject,
    ) -> Result<Option<SyncRefusal>, SyncError> {
        let Some(namespace) = view.key.namespace() else { return Ok(None) };
        let resource = GroupResource::new("", "persistentvolumeclaims");
        if view.session.served(&resource).is_some() && !view.session.cache.is_synced(&resource) {
            return Err(SyncError::NotSynced(resource.to_string()));
        }
        let mut left = Vec::new();
        for claim in view.session.cache.all(&resource, view.place.namespace()) {
            let name = object::name(&claim.object);
            if !is_claim_of(&upstream.object, name) || !project::is_made_downstream(&claim.object, &self.config.uid) {
                continue;
            }
            let Ok(parsed) = name.parse() else { continue };
            let key = ObjectKey::namespaced(view.key.cluster, resource.clone(), namespace.clone(), parsed);
            let shown = self.read_placed(&key).await?;
            let source = shown.and_then(|shown| ProjectionSource::on(&shown.object, &self.config.uid));
            if source.is_none_or(|source| source.uid != claim.uid()) {
                left.push(name.to_owned());
            }
        }
        left.sort_unstable();
        Ok((!left.is_empty()).then(|| {
            let named = left[..left.len().min(MAX_NAMED)].join(", ");
            SyncRefusal::conflict(format!(
                "an earlier StatefulSet has left {} claims there that nothing here accounts for ({named}): with their data it would \
                 start where that one ended; delete them on the physical cluster, or give this one another name",
                left.len()
            ))
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_types::{annotations, placement::CopyPhase, upstream::CopyState};
    use serde_json::json;

    use crate::testing::{FakeCluster, suite::SyncStage};

    #[tokio::test(start_paused = true)]
    async fn a_stateful_set_does_not_take_on_claims_that_nothing_accounts_for() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        stage.place("configmaps", "a", json!({"metadata": {}, "data": {"a": "1"}}), CopyPhase::Active);
        stage.until("the namespace is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
        let labels = json!({(annotations::DOWN_CLUSTER): stage.key("pods", "a").cluster.to_string()});
        let claim = |name: &str| json!({"metadata": {"name": name, "namespace": stage.namespace(), "labels": labels}, "spec": {}});
        let left = cluster.put("persistentvolumeclaims", claim("data-db-0"));
        cluster.put("persistentvolumeclaims", claim("data-other-0"));
        // The server refuses objects that were not created from an object placed there.
        stage.upstream.refuse_projections_of("persistentvolumeclaims");
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        let template =
            json!({"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "db", "image": "i"}]}});
        let set = json!({"metadata": {}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "db"}}, "template": template,
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}});
        let key = stage.place("statefulsets", "db", set, CopyPhase::Active);
        let told = async |s: &SyncStage| {
            matches!(s.upstream.last_report(&key), Some(CopyState::Failed { reason, message, .. })
            if reason == "Conflict" && message.contains("1 claims") && message.contains("data-db-0"))
        };
        stage.until("it is reported", told).await.unwrap();
        assert_eq!(cluster.all("statefulsets").len(), 0);
        cluster.remove("persistentvolumeclaims", &left);
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert_eq!(cluster.all("statefulsets").len(), 1, "once they are gone, it is made");
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn only_claims_of_its_own_names_that_are_still_to_be_deleted_hold_up_a_stateful_set() {
        use portolan_types::{
            GroupVersionKind,
            placement::ProjectionSource,
            upstream::{Debt, Upstream as _},
        };

        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        let template =
            json!({"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "db", "image": "i"}]}});
        let set = json!({"metadata": {}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "db"}}, "template": template,
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}});
        let upstream = crate::testing::SharedUpstream(stage.upstream.clone());
        let physical = "physical-9".parse().unwrap();
        let owe = async |name: &str| {
            let source = ProjectionSource {
                namespace: stage.namespace(),
                name: name.into(),
                uid: "down".into(),
                is_used: false,
                shown: Default::default(),
            };
            let debt = Debt {
                key: stage.key("persistentvolumeclaims", name),
                source: Some(source),
                kind: GroupVersionKind::new("", "v1", "PersistentVolumeClaim"),
                uid: "up".parse().unwrap(),
                epoch: 0,
                is_orphan: false,
            };
            upstream.record_debt(&physical, debt).await.unwrap();
        };
        owe("data-web-0").await;
        stage.place("statefulsets", "db", set.clone(), CopyPhase::Active);
        stage.until("another's claims do not", async |_| cluster.all("statefulsets").len() == 1).await.unwrap();
        owe("data-owing-0").await;
        stage.place("statefulsets", "owing", set, CopyPhase::Active);
        tokio::time::sleep(std::time::Duration::from_secs(10)).await;
        assert_eq!(cluster.all("statefulsets").len(), 1, "its own do");
        stage.handle.stop().await;
    }
}
