//! Reconciliation of ownership with a schema that has since made a list or object atomic.

use super::{
    set::FieldSet,
    shape::{Form, OwnershipShape},
};

/// Replaces owned fields inside of values that are atomic now by the value itself. Fields that were atomic and are not
/// any more stay as they are, as in kube-apiserver; so do unknown ones.
pub(super) fn reconcile(shape: OwnershipShape<'_>, fields: &mut FieldSet) {
    for (element, node) in fields.nodes_mut() {
        let child = match element.strip_prefix("f:") {
            Some(name) => shape.child(name),
            None => shape.element(),
        };
        match child {
            OwnershipShape::Atomic(_) => node.become_whole(),
            _ if child.form(None) == Form::Whole => {}
            _ => reconcile(child, node.below_mut()),
        }
    }
}
