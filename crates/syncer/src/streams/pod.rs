//! Downstream address of an upstream Pod, and the proof that an object there is that Pod. Pure.

use portolan_types::{
    ObjectKey, Uid, annotations, object,
    placement::{CopyPhase, NamespaceMapping, PlacedCopy, PlacementRecord, ProjectionSource},
};
use serde_json::Value;

use crate::{naming::downstream_namespace, plan};

/// Pod on a physical cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DownstreamPod {
    namespace: String,
    name: String,
    known: PodProof,
}

/// Proof that a downstream pod is the upstream one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PodProof {
    /// The physical cluster made it from a copy: its uid there, and the label of its logical cluster.
    Made { uid: String, cluster: String },
    /// It is a copy itself: our identity on it.
    Copy { key: ObjectKey, uid: Uid, physical: Uid },
}

impl DownstreamPod {
    /// The entry of the physical cluster that `pod` runs on; `None` when it is on none.
    pub fn placed(pod: &Value) -> Option<PlacedCopy> {
        let clusters = PlacementRecord::of(pod)?.clusters;
        let stays = clusters.iter().find(|copy| copy.phase != CopyPhase::Leaving).or(clusters.first());
        stays.cloned()
    }

    /// `pod`, at `key` upstream, on the physical cluster `physical`; `None` when it was never there.
    pub fn of(
        pod: &Value,
        key: &ObjectKey,
        physical: &Uid,
        mapping: NamespaceMapping,
        plane: Option<&str>,
    ) -> Option<Self> {
        let namespace = downstream_namespace(mapping, plane, key.cluster, key.namespace()?).ok()?.to_string();
        let is_made = PlacementRecord::of(pod)?.on(physical)?.phase == CopyPhase::Projected;
        if !is_made {
            let known = PodProof::Copy { key: key.clone(), uid: object::uid(pod)?, physical: physical.clone() };
            return Some(Self { namespace, name: key.name.to_string(), known });
        }
        let source = ProjectionSource::on(pod, physical).filter(|source| source.namespace == namespace)?;
        let known = PodProof::Made { uid: source.uid, cluster: key.cluster.to_string() };
        Some(Self { namespace, name: source.name, known })
    }

    /// Its namespace downstream.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its name downstream.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true when `found`, which was read downstream, is this pod.
    pub(super) fn is(&self, found: &Value) -> bool {
        match &self.known {
            PodProof::Made { uid, cluster } => {
                object::meta_text(found, "uid") == uid
                    && object::label(found, annotations::DOWN_CLUSTER) == Some(cluster.as_str())
            }
            PodProof::Copy { key, uid, physical } => {
                plan::copy_identity(found, physical).is_some_and(|own| own.uid == *uid && plan::names(&own, key))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, LogicalClusterId, placement::CopyIdentity};
    use serde_json::json;

    use super::*;

    fn key() -> ObjectKey {
        let pods = GroupResource::new("", "pods");
        ObjectKey::namespaced(LogicalClusterId::new(7), pods, "shop".parse().unwrap(), "web".parse().unwrap())
    }

    fn east() -> Uid {
        "east-uid".parse().unwrap()
    }

    fn hashed() -> String {
        let mapped = downstream_namespace(NamespaceMapping::Hashed, None, key().cluster, &"shop".parse().unwrap());
        mapped.unwrap().to_string()
    }

    fn upstream(phase: CopyPhase, source: Option<ProjectionSource>) -> Value {
        let copy = PlacedCopy { name: "east".into(), uid: east(), phase, replicas: None, epoch: 1 };
        let mut pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "web-uid"}});
        PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() }.write_to(&mut pod);
        if let Some(source) = source {
            let text = json!({"east-uid": source}).to_string();
            object::set_annotation(&mut pod, annotations::SOURCE, Some(text));
        }
        pod
    }

    fn pod_in_namespace(namespace: &str) -> Option<DownstreamPod> {
        let source = ProjectionSource {
            namespace: namespace.into(),
            name: "web-1".into(),
            uid: "downstream".into(),
            is_used: false,
            shown: Default::default(),
        };
        let pod = upstream(CopyPhase::Projected, Some(source));
        DownstreamPod::of(&pod, &key(), &east(), NamespaceMapping::Hashed, None)
    }

    #[test]
    fn projected_objects_are_identified_by_downstream_uid() {
        let pod = pod_in_namespace(&hashed()).unwrap();
        assert_eq!((pod.namespace(), pod.name()), (hashed().as_str(), "web-1"));
        let (own, other) = (key().cluster.to_string(), LogicalClusterId::new(8).to_string());
        for (case, uid, cluster, expected) in [
            ("it", "downstream", Some(&own), true),
            ("another of its name", "later", Some(&own), false),
            ("one of another logical cluster", "downstream", Some(&other), false),
            ("one that is not ours", "downstream", None, false),
        ] {
            let found = json!({"metadata": {"uid": uid, "labels": {"sync.portolan.dev/cluster": cluster}}});
            assert_eq!(pod.is(&found), expected, "{case}");
        }
        assert_eq!(
            pod_in_namespace("kube-system"),
            None,
            "whatever the physical cluster said, its own pods are out of reach"
        );
    }

    #[test]
    fn a_copy_is_known_by_our_identity_on_it() {
        let pod = upstream(CopyPhase::Active, None);
        let pod = DownstreamPod::of(&pod, &key(), &east(), NamespaceMapping::Identity, None).unwrap();
        assert_eq!((pod.namespace(), pod.name()), ("shop", "web"));
        let own = CopyIdentity {
            cluster: key().cluster.to_string(),
            uid: "web-uid".parse().unwrap(),
            physical: east(),
            namespace: "shop".into(),
            name: "web".into(),
            generation: 1,
            epoch: 1,
            syncer_epoch: 1,
        };
        let found = |identity: &CopyIdentity| {
            let text = serde_json::to_string(identity).unwrap();
            json!({"metadata": {"name": "web", "annotations": {"sync.portolan.dev/identity": text}}})
        };
        for (case, identity, expected) in [
            ("its copy", own.clone(), true),
            ("of an earlier pod", CopyIdentity { uid: "before".parse().unwrap(), ..own.clone() }, false),
            (
                "of another logical cluster",
                CopyIdentity { cluster: LogicalClusterId::new(8).to_string(), ..own.clone() },
                false,
            ),
            ("for another physical cluster", CopyIdentity { physical: "west".parse().unwrap(), ..own.clone() }, false),
        ] {
            assert_eq!(pod.is(&found(&identity)), expected, "{case}");
        }
        assert!(!pod.is(&json!({"metadata": {"name": "web", "uid": "web-uid"}})), "a foreign pod of its name");
    }

    #[test]
    fn a_pod_that_is_on_no_physical_cluster_is_nowhere_downstream() {
        let pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "web-uid"}});
        assert_eq!(DownstreamPod::placed(&pod), None);
        assert_eq!(DownstreamPod::of(&pod, &key(), &east(), NamespaceMapping::Hashed, None), None);
        assert_eq!(
            DownstreamPod::placed(&upstream(CopyPhase::Leaving, None)).map(|copy| copy.name),
            Some("east".into())
        );
    }
}
