//! Volumes.

use portolan_types::object;
use serde_json::Value;

use super::{
    column::{AGE, CLUSTERS, Column, NAME, Row, UNSET, flag, number, text},
    format, network,
};

/// The annotation that named the class before there was a field for it. Where it is set it still decides.
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

const VOLUME_MODE: Column =
    text("VolumeMode", "File system or block device.", |row| row.given_or("/spec/volumeMode", UNSET).into()).wide();
const ATTRIBUTES_CLASS: Column = text("VolumeAttributesClass", "Name of the VolumeAttributesClass.", |row| {
    row.given_or("/spec/volumeAttributesClassName", UNSET).into()
});
const STORAGE_CLASS_NAME: Column = text("StorageClass", "Name of the StorageClass.", |row| {
    object::annotation(row.object, OLD_CLASS).unwrap_or(row.text("/spec/storageClassName")).into()
});
const PHASE: Column = text("Status", "Phase of the volume.", |row| {
    if row.is_deleting() { "Terminating".into() } else { row.text("/status/phase").into() }
});

pub(super) const PERSISTENT_VOLUME: &[Column] = &[
    NAME,
    text("Capacity", "Size of the volume.", |row| format::amount(row.at("/spec/capacity/storage"), "0").into()),
    text("Access Modes", "Access modes of the volume.", |row| access_modes(row, "/spec/accessModes").into()),
    text("Reclaim Policy", "Policy for the volume after its claim is deleted.", |row| {
        row.text("/spec/persistentVolumeReclaimPolicy").into()
    }),
    PHASE,
    text("Claim", "Claim that the volume is bound to.", |row| match row.at("/spec/claimRef") {
        None => "".into(),
        Some(_) => format!("{}/{}", row.text("/spec/claimRef/namespace"), row.text("/spec/claimRef/name")).into(),
    }),
    STORAGE_CLASS_NAME,
    ATTRIBUTES_CLASS,
    text("Reason", "Reason that the volume failed.", |row| row.text("/status/reason").into()),
    AGE,
    VOLUME_MODE,
];

pub(super) const PERSISTENT_VOLUME_CLAIM: &[Column] = &[
    NAME,
    PHASE,
    text("Volume", "Volume that the claim is bound to.", |row| row.text("/spec/volumeName").into()),
    text("Capacity", "Size of the volume.", |row| match row.text("/spec/volumeName") {
        "" => "".into(),
        _ => format::amount(row.at("/status/capacity/storage"), "0").into(),
    }),
    text("Access Modes", "Access modes of the volume.", |row| match row.text("/spec/volumeName") {
        "" => "".into(),
        _ => access_modes(row, "/status/accessModes").into(),
    }),
    STORAGE_CLASS_NAME,
    ATTRIBUTES_CLASS,
    AGE,
    VOLUME_MODE,
    CLUSTERS,
];

pub(super) const STORAGE_CLASS: &[Column] = &[
    text("Name", "Name of the class.", |row| {
        let annotations =
            ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
        network::default_name(row, &annotations).into()
    })
    .named(),
    text("Provisioner", "Provisioner of the volumes.", |row| row.text("/provisioner").into()),
    text("ReclaimPolicy", "Policy for a volume after its claim is deleted.", |row| {
        row.given_or("/reclaimPolicy", "Delete").into()
    }),
    text("VolumeBindingMode", "Time at which volumes are bound.", |row| {
        row.given_or("/volumeBindingMode", "Immediate").into()
    }),
    text("AllowVolumeExpansion", "True if volumes can be expanded.", |row| row.flag("/allowVolumeExpansion").into()),
    AGE,
];

pub(super) const VOLUME_ATTRIBUTES_CLASS: &[Column] =
    &[NAME, text("DriverName", "Name of the CSI driver.", |row| row.text("/driverName").into()), AGE];

pub(super) const VOLUME_ATTACHMENT: &[Column] = &[
    NAME,
    text("Attacher", "Driver that attaches the volume.", |row| row.text("/spec/attacher").into()).named(),
    text("PV", "Name of the volume.", |row| row.text("/spec/source/persistentVolumeName").into()),
    text("Node", "Node that it is attached to.", |row| row.text("/spec/nodeName").into()),
    flag("Attached", "True if it is attached.", |row| row.flag("/status/attached").into()),
    AGE,
];

pub(super) const CSI_NODE: &[Column] =
    &[NAME, number("Drivers", "CSI drivers on the node.", |row| row.list("/spec/drivers").len().into()), AGE];

pub(super) const CSI_DRIVER: &[Column] = &[
    NAME,
    flag("AttachRequired", "True if volumes must be attached.", |row| {
        row.at("/spec/attachRequired").and_then(Value::as_bool).unwrap_or(true).into()
    }),
    flag("PodInfoOnMount", "True if the driver gets information about the pod.", |row| {
        row.flag("/spec/podInfoOnMount").into()
    }),
    flag("StorageCapacity", "True if the driver reports free space.", |row| row.flag("/spec/storageCapacity").into()),
    text("TokenRequests", "Audiences of the tokens it is given.", |row| match row.at("/spec/tokenRequests") {
        None => UNSET.into(),
        Some(_) => format::column_of(row.list("/spec/tokenRequests"), "audience").into(),
    }),
    flag("RequiresRepublish", "True if volumes are republished periodically.", |row| {
        row.flag("/spec/requiresRepublish").into()
    }),
    text("Modes", "Kinds of volumes.", |row| format::or_none(row.texts("/spec/volumeLifecycleModes").join(",")).into()),
    AGE,
];

/// Returns the access modes in their short form and usual order.
fn access_modes(row: &Row<'_>, path: &str) -> String {
    let modes = row.texts(path);
    let known =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    known.iter().filter(|(mode, _)| modes.contains(mode)).map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}
