//! Copies that stay when their object is deleted upstream (`portolan.dev/keep`). They lose the labels and annotations
//! that make them copies, and nothing is written to them any more.

use portolan_types::{annotations, object};
use serde_json::{Map, Value, json};

use super::{
    SyncError, Worker,
    copies::{CopyView, Step},
};
use crate::{
    client::{DownstreamClient, DownstreamError, ServedResource},
    plan::{CopyDeletion, Proof},
    transform::is_kept,
};

/// Prefix of the labels and annotations of a copy that are Portolan's.
const OURS: &str = "sync.portolan.dev/";

/// Returns true for a copy that says itself that it stays.
pub(super) fn is_marked_kept(copy: &Value) -> bool {
    object::annotation(copy, annotations::DOWN_KEEP) == Some("true")
}

/// Returns true for proofs that the object was deleted upstream, and not only its copy here.
fn is_deletion_of_object(proof: Proof) -> bool {
    match proof {
        Proof::Deleting | Proof::Tombstone | Proof::NeverSeen | Proof::Superseded => true,
        Proof::Leaving | Proof::Unplaced | Proof::Debt => false,
    }
}

/// Returns the patch that makes a copy an object like any other, in exactly the state that was read.
fn release_patch(copy: &Value) -> Value {
    let without = |field: &str| -> Map<String, Value> {
        let entries = object::metadata(copy).get(field).and_then(Value::as_object).into_iter().flatten();
        entries.filter(|(key, _)| key.starts_with(OURS)).map(|(key, _)| (key.clone(), Value::Null)).collect()
    };
    json!({"metadata": {
        "uid": object::meta_text(copy, "uid"),
        "resourceVersion": object::meta_text(copy, "resourceVersion"),
        "labels": without("labels"),
        "annotations": without("annotations"),
    }})
}

/// Makes a copy an object like any other.
///
/// # Errors
/// A conflict if it has changed since, and the other errors of a write.
pub(super) async fn release(api: &DownstreamClient, path: &str, copy: &Value) -> Result<(), DownstreamError> {
    api.merge_patch(path, &release_patch(copy)).await.map(drop)
}

impl Worker {
    /// Releases a copy in place of its deletion, if it stays; `None` if it is to be deleted.
    pub(super) async fn release_if_kept(
        &self,
        view: &CopyView<'_>,
        served: &ServedResource,
        deletion: &CopyDeletion,
    ) -> Result<Option<Step>, SyncError> {
        let Some(copy) = view.downstream.as_ref().map(|observed| &observed.object) else { return Ok(None) };
        let is_asked = is_marked_kept(copy) || view.upstream.is_some_and(|upstream| is_kept(&upstream.object));
        if !is_asked || !is_deletion_of_object(deletion.proof) {
            return Ok(None);
        }
        let path = served.path(view.place.namespace(), Some(&view.place.name));
        match release(&view.session.api, &path, copy).await {
            Ok(()) => {
                tracing::info!(cluster = %self.config.name, key = %view.key, "a copy stays that is not synced any more");
                view.session.cache.remove(view.place, &deletion.uid);
                Ok(Some(Step::Replan(self.read(view, served).await?)))
            }
            Err(error) if error.is_absent(&view.place.name) => {
                view.session.cache.remove(view.place, &deletion.uid);
                Ok(Some(Step::Replan(None)))
            }
            Err(error) if error.code() == 409 => Ok(Some(Step::Replan(self.read(view, served).await?))),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_types::placement::CopyPhase;

    use super::*;
    use crate::testing::{FakeCluster, suite::SyncStage};

    fn kept_config_map() -> Value {
        json!({"metadata": {"annotations": {"portolan.dev/keep": "true"}, "labels": {"app": "web"}}, "data": {"a": "1"}})
    }

    /// Returns the keys of the labels and annotations of the only copy.
    fn marks(cluster: &FakeCluster) -> Vec<String> {
        let copies = cluster.all("configmaps");
        let of =
            |field: &str| copies[0]["metadata"][field].as_object().map(|map| map.keys().cloned().collect::<Vec<_>>());
        [of("labels"), of("annotations")].into_iter().flatten().flatten().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_kept_copy_stays_when_its_object_is_deleted() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 1).await.unwrap();
        stage.place("configmaps", "a", kept_config_map(), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
        let key = stage.key("configmaps", "a");
        stage.upstream.delete(&key);
        stage.until("it is gone upstream", async |s| s.upstream.object(&key).is_none()).await.unwrap();
        assert_eq!(marks(&cluster), ["app"], "it is an object like any other");
        let stage = stage.restarted().await;
        tokio::time::sleep(std::time::Duration::from_secs(600)).await;
        assert_eq!(cluster.all("configmaps").len(), 1, "and stays");
        stage.handle.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_kept_copy_leaves_when_its_object_is_placed_elsewhere() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 1).await.unwrap();
        stage.place("configmaps", "a", kept_config_map(), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
        stage.place("configmaps", "a", kept_config_map(), CopyPhase::Leaving);
        stage.until("it has left", async |_| cluster.all("configmaps").is_empty()).await.unwrap();
        stage.handle.stop().await;
    }

    #[test]
    fn a_release_is_of_the_state_that_was_read() {
        let copy = json!({"metadata": {"uid": "u", "resourceVersion": "7", "labels": {"app": "a", "sync.portolan.dev/cluster": "7"},
            "annotations": {"sync.portolan.dev/keep": "true"}}});
        assert_eq!(
            release_patch(&copy),
            json!({"metadata": {"uid": "u", "resourceVersion": "7",
            "labels": {"sync.portolan.dev/cluster": null}, "annotations": {"sync.portolan.dev/keep": null}}})
        );
    }
}
