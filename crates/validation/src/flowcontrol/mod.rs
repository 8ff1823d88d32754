//! The group flowcontrol.apiserver.k8s.io.

mod levels;
mod schemas;

use std::collections::HashSet;

use super::{
    Errors,
    rules::{
        Rules,
        Step::{Is, Metadata},
    },
    view::At,
};

pub(super) static RULES: &[(&str, Rules)] = &[
    (
        "FlowSchema",
        Rules {
            create: &[Metadata, Is(schemas::check), Is(conditions)],
            update: &[Metadata, Is(schemas::check), Is(conditions)],
            subresources: &[("status", &[Is(conditions)])],
        },
    ),
    (
        "PriorityLevelConfiguration",
        Rules {
            create: &[Metadata, Is(levels::check), Is(conditions)],
            update: &[Metadata, Is(levels::check), Is(conditions)],
            subresources: &[("status", &[Is(conditions)])],
        },
    ),
];

fn conditions(object: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for condition in object.child("status").items("conditions") {
        let kind = condition.text("type");
        if !taken.insert(kind) {
            errors.duplicate(condition.path("type"), &kind.into());
        }
        condition.needs("type", errors);
    }
}
