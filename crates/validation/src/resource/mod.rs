//! The group resource.k8s.io.

mod capacity;
mod claims;
mod devices;
mod parts;
mod slices;
mod status;

use super::{
    Errors, FieldError, core, internal, metadata,
    rules::{
        Rules,
        Step::{Became, Is, Metadata, MetadataChange},
    },
    view::{At, IMMUTABLE, is_same},
};

pub(super) static RULES: &[(&str, Rules)] = &[
    (
        "DeviceClass",
        Rules { create: &[Metadata, Is(class)], update: &[Metadata, MetadataChange, Is(class)], subresources: &[] },
    ),
    (
        "ResourceClaim",
        Rules {
            create: &[Metadata, Is(|claim, errors| claims::spec(&claim.child("spec"), errors))],
            update: &[
                Metadata,
                MetadataChange,
                Became(|old, new, errors| same_spec("ResourceClaimSpec", old, new, errors)),
            ],
            subresources: &[("status", &[MetadataChange, Became(status::update)])],
        },
    ),
    (
        "ResourceClaimTemplate",
        Rules {
            create: &[Metadata, Is(template)],
            update: &[
                Metadata,
                Is(template),
                MetadataChange,
                Became(|old, new, errors| same_spec("ResourceClaimTemplateSpec", old, new, errors)),
            ],
            subresources: &[],
        },
    ),
    (
        "ResourceSlice",
        Rules {
            create: &[Metadata, Is(|slice, errors| slices::check(None, slice, errors))],
            update: &[MetadataChange, Became(|old, new, errors| slices::check(Some(old), new, errors))],
            subresources: &[],
        },
    ),
];

/// Most selectors of a class or request, and most configurations.
const MAX_SELECTORS: usize = 32;
const MAX_CONFIGS: usize = 32;

fn class(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    parts::each(&spec, "selectors", MAX_SELECTORS, parts::selector, errors);
    parts::each(&spec, "config", MAX_CONFIGS, parts::configuration, errors);
    if spec.has("extendedResourceName") && !core::is_extended(spec.text("extendedResourceName")) {
        let why = "must be a valid extended resource name";
        errors.invalid(spec.path("extendedResourceName"), spec.get("extendedResourceName"), why);
    }
}

fn template(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    metadata::of_claim_template(&spec.child("metadata"), errors);
    claims::spec(&spec.child("spec"), errors);
}

/// Checks that the spec of an immutable object is unchanged.
fn same_spec(kind: &str, old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if !is_same(old.get("spec"), new.get("spec")) {
        let shown = internal::printed_value(kind, new.get("spec"));
        errors.push(FieldError::invalid_shown(new.path("spec"), &shown, IMMUTABLE));
    }
}
