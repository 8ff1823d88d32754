//! Volumes of an object: claims that it names, and claims that it makes.

use portolan_placement::{MoveStrategy, References, Workload, abandons_volumes};
use portolan_store::StoreError;
use portolan_types::{GroupResource, ObjectKey, annotations, object, placement::VolumeStrategy};
use serde_json::Value;

use crate::context::SchedulerContext;

/// Data behind the claims of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct VolumeData {
    /// A claim is not there yet.
    is_unknown: bool,
    /// Only one node at a time can write the data of a claim, so a second copy would have different data.
    is_own: bool,
    /// Data of that kind have to stay with the object, unless a policy gives them up.
    is_kept: bool,
    /// A claim itself refuses the move.
    is_refused: bool,
}

impl VolumeData {
    fn add(&mut self, data: Self) {
        self.is_unknown |= data.is_unknown;
        self.is_own |= data.is_own;
        self.is_kept |= data.is_kept;
        self.is_refused |= data.is_refused;
    }
}

/// Reads how the volumes of an object let it move.
///
/// # Errors
/// The errors of the store.
pub(super) async fn read_volumes(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    object: &Value,
    workload: &mut Workload,
) -> Result<(), StoreError> {
    let mut data = VolumeData::default();
    for name in References::of(object).claims() {
        let (Some(namespace), Ok(name)) = (key.namespace(), name.parse()) else { continue };
        let resource = GroupResource::new("", "persistentvolumeclaims");
        let claim = ObjectKey::namespaced(key.cluster, resource, namespace.clone(), name);
        match ctx.objects.get_value(&claim).await? {
            Some((claim, _)) => data.add(data_of(ctx, key, &claim).await?),
            None => data.add(VolumeData { is_unknown: true, ..VolumeData::default() }),
        }
    }
    if workload.keeps_volumes {
        let templates = object.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array).into_iter().flatten();
        workload.keeps_volumes = false;
        for template in templates {
            data.add(data_of(ctx, key, template).await?);
        }
    }
    if workload.moves == MoveStrategy::Surge && (data.is_own || data.is_unknown) {
        workload.moves = MoveStrategy::Restart;
    }
    workload.keeps_volumes = data.is_kept && !abandons_volumes(object);
    workload.refuses_moves = data.is_refused;
    Ok(())
}

/// Reads the data of a claim, or of a template of claims: from its annotation, then its StorageClass, then its access
/// modes. Claims that a StatefulSet makes are not shared by its pods, whatever their access.
async fn data_of(ctx: &SchedulerContext, key: &ObjectKey, claim: &Value) -> Result<VolumeData, StoreError> {
    let shared = VolumeData::default();
    let own = VolumeData { is_own: true, is_kept: true, ..shared };
    let said = object::annotation(claim, annotations::VOLUME_STRATEGY).and_then(VolumeStrategy::parse);
    if said == Some(VolumeStrategy::Refuse) {
        return Ok(VolumeData { is_refused: true, ..own });
    }
    let is_template = claim.pointer("/metadata/uid").is_none() && claim.get("kind").is_none();
    let modes = claim.pointer("/spec/accessModes").and_then(Value::as_array).into_iter().flatten();
    let is_mode_shared = |mode: &Value| matches!(mode.as_str(), Some("ReadWriteMany" | "ReadOnlyMany"));
    if (!is_template && modes.into_iter().any(is_mode_shared)) || is_class_shared(ctx, key, claim).await? {
        return Ok(shared);
    }
    Ok(VolumeData { is_kept: said != Some(VolumeStrategy::Recreate), ..own })
}

/// Returns true if the StorageClass of a claim is declared shared.
async fn is_class_shared(ctx: &SchedulerContext, key: &ObjectKey, claim: &Value) -> Result<bool, StoreError> {
    let Some(Ok(name)) = claim.pointer("/spec/storageClassName").and_then(Value::as_str).map(str::parse) else {
        return Ok(false);
    };
    let class = ObjectKey::cluster_scoped(key.cluster, GroupResource::new("storage.k8s.io", "storageclasses"), name);
    let class = ctx.objects.get_value(&class).await?;
    Ok(class.is_some_and(|(class, _)| object::label(&class, annotations::SHARED_STORAGE) == Some("true")))
}
