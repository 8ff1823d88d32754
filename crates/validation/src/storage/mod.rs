//! The group storage.k8s.io.

mod classes;
mod csi;

use super::rules::{
    Rules,
    Step::{Became, Is, Metadata, MetadataChange},
};

pub(super) static RULES: &[(&str, Rules)] = &[
    (
        "StorageClass",
        Rules {
            create: &[Metadata, Is(classes::storage)],
            update: &[Metadata, Is(classes::storage), MetadataChange, Became(classes::storage_update)],
            subresources: &[],
        },
    ),
    (
        "VolumeAttributesClass",
        Rules {
            create: &[Metadata, Is(classes::attributes)],
            update: &[MetadataChange, Became(classes::attributes_update), Metadata, Is(classes::attributes)],
            subresources: &[],
        },
    ),
    (
        "VolumeAttachment",
        Rules {
            create: &[Metadata, Is(csi::attachment)],
            update: &[Metadata, Is(csi::attachment), Became(csi::attachment_update)],
            subresources: &[("status", &[Metadata, Is(csi::attachment), Became(csi::attachment_update)])],
        },
    ),
    (
        "CSINode",
        Rules {
            create: &[Metadata, Is(csi::node)],
            update: &[Metadata, Is(csi::node), Became(csi::node_update)],
            subresources: &[],
        },
    ),
    (
        "CSIDriver",
        Rules {
            create: &[Metadata, Is(csi::driver)],
            update: &[MetadataChange, Is(csi::driver), Became(csi::driver_update)],
            subresources: &[],
        },
    ),
    (
        "CSIStorageCapacity",
        Rules {
            create: &[Metadata, Is(csi::capacity)],
            update: &[Metadata, Is(csi::capacity), MetadataChange, Became(csi::capacity_update)],
            subresources: &[],
        },
    ),
];
