//! The group `storage.k8s.io`.

use super::{
    Errors, names,
    rules::{
        Rules,
        Step::{Became, Is, Metadata, MetadataChange},
    },
    view::At,
};

pub(super) static RULES: &[(&str, Rules)] = &[(
    "StorageClass",
    Rules {
        create: &[Metadata, Is(class)],
        update: &[MetadataChange, Metadata, Is(class), Became(class_update)],
        subresources: &[],
    },
)];

fn class(object: &At<'_>, errors: &mut Errors) {
    if object.needs("provisioner", errors) {
        let name = object.text("provisioner");
        let details = names::qualified_name(&name.to_lowercase());
        details.iter().for_each(|detail| errors.invalid("provisioner", &name.into(), detail));
    }
    for (key, entry) in object.entries("parameters") {
        if key.is_empty() {
            errors.invalid(&entry.path, &key.into(), "field can not be empty.");
        }
    }
    object.one_of("reclaimPolicy", &["Delete", "Retain"], errors);
    object.one_of("volumeBindingMode", &["Immediate", "WaitForFirstConsumer"], errors);
}

fn class_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    for name in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        new.immutable(old, name, errors);
    }
}
