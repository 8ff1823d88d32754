//! Upstream pod templates, restored from those of physical clusters.

use portolan_types::{annotations, fingerprint, object};
use serde_json::{Value, json};

use super::TEMPLATE_HASH;
use crate::transform::restore_selectors;

/// Characters of the hash in names and labels.
const SHORT: usize = 10;

/// Pod template that a controller stores downstream, in a ReplicaSet or a ControllerRevision.
pub(super) struct StoredTemplate<'a> {
    /// Object that contains the template. It has the annotations that its owner had when it was created.
    keeper: &'a Value,
    template: &'a Value,
}

impl<'a> StoredTemplate<'a> {
    pub(super) fn new(keeper: &'a Value, template: &'a Value) -> Self {
        Self { keeper, template }
    }

    /// Hash on the owner's copy when this object was created from it; otherwise the hash of the downstream template.
    pub(super) fn short_hash(&self) -> String {
        let is_hash =
            |text: &&str| text.len() >= SHORT && text.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase());
        let hash = self.handed_on().filter(is_hash).map_or_else(|| fingerprint(&self.downstream()), str::to_owned);
        hash[..SHORT].to_owned()
    }

    /// Returns the upstream template: the owner's, if it is the same one; otherwise the downstream template without the
    /// additions.
    pub(super) fn upstream(&self, owner: &Value) -> Value {
        let current = &owner["spec"]["template"];
        match self.handed_on() {
            Some(hash) if hash == fingerprint(current) => current.clone(),
            _ => self.downstream(),
        }
    }

    fn handed_on(&self) -> Option<&'a str> {
        object::annotation(self.keeper, annotations::DOWN_TEMPLATE)
    }

    fn downstream(&self) -> Value {
        let mut template = self.template.clone();
        let Some(fields) = template.as_object_mut() else { return json!({}) };
        // The directive by which a revision replaces the present template.
        fields.remove("$patch");
        let labels = object::child_mut(object::metadata_mut(&mut template), "labels");
        [TEMPLATE_HASH, annotations::DOWN_CLUSTER].iter().for_each(|key| drop(labels.remove(*key)));
        if let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) {
            spec.remove("automountServiceAccountToken");
        }
        restore_selectors(&mut template);
        template
    }
}
