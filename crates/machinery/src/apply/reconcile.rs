//! What is owned of lists and objects that have come to be owned as a whole since: a definition may say so at any time.

use super::{
    set::FieldSet,
    shape::{Form, Shape},
};

/// Puts, in place of fields in what is owned as a whole now, that. What was owned as a whole and is not any more stays as it is, as
/// upstream has it, and so does what nothing is known of.
pub(super) fn reconcile(shape: Shape<'_>, fields: &mut FieldSet) {
    for (element, node) in fields.nodes_mut() {
        let child = match element.strip_prefix("f:") {
            Some(name) => shape.child(name),
            None => shape.element(),
        };
        match child {
            Shape::Atomic(_) => node.become_whole(),
            _ if child.form(None) == Form::Whole => {}
            _ => reconcile(child, node.below_mut()),
        }
    }
}
