//! An index of given pods.

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, object};
use serde_json::Value;

use super::{OwnedPods, PodIndex};

/// Returns the address of a pod.
pub(crate) fn key(pod: &Value) -> ObjectKey {
    let (namespace, name) = (object::namespace(pod).parse().unwrap(), object::name(pod).parse().unwrap());
    ObjectKey::namespaced(LogicalClusterId::ROOT, GroupResource::new("", "pods"), namespace, name)
}

/// Reads the known state of the pods of `uid` when there are these.
pub(crate) fn owned<T>(pods: &[Value], uid: &str, read: impl FnOnce(&OwnedPods) -> T) -> T {
    let index = PodIndex::default();
    pods.iter().for_each(|pod| index.observe(&key(pod), pod));
    index.owned(uid, read)
}
