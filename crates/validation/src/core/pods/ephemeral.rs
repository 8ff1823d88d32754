//! Adding ephemeral containers to a pod (the subresource `ephemeralcontainers`).

use super::{
    super::super::{Errors, internal, view::At},
    annotations,
};

pub(crate) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    annotations::update(old, new, errors);
    if annotations::is_mirror(old.get("metadata")) {
        *errors = Errors::default();
        errors.forbidden("[]", "static pods do not support ephemeral containers");
        return;
    }
    let (old, new) = (old.child("spec"), new.child("spec"));
    let path = new.path("ephemeralContainers");
    for before in old.items("ephemeralContainers") {
        let name = before.text("name");
        match new.items("ephemeralContainers").filter(|after| after.text("name") == name).last() {
            None => {
                errors.forbidden(&path, &format!("existing ephemeral containers {name:?} may not be removed\n"));
            }
            Some(after) if after.value != before.value => {
                let diff = internal::diff("EphemeralContainer", before.value, after.value);
                errors.forbidden(&path, &format!("existing ephemeral containers {name:?} may not be changed\n{diff}"));
            }
            Some(_) => {}
        }
    }
}
