//! Kind of an object, as far as its status depends on it. A status that a physical cluster reports is made to fit the
//! schema of a custom kind: the definition there may be another one.

use std::sync::Arc;

use portolan_kinds::{
    Kind,
    custom::{
        Schema,
        values::{self, Effort},
    },
    field::{Errors, Path},
};
use portolan_syncer::status::StatusShape;
use portolan_types::{GroupKind, ObjectKey, ScaleFields, upstream::UpstreamError};
use serde_json::Value;

use super::{StoreUpstream, failed};

/// Kind with the fields of its scale.
pub(super) struct StatusKind {
    kind: Arc<Kind>,
    group_kind: GroupKind,
    pub(super) scale: Option<ScaleFields>,
}

impl StatusKind {
    /// Reads the kind of the object at `key`; `None` if its logical cluster does not serve it any more.
    pub(super) async fn of(upstream: &StoreUpstream, key: &ObjectKey) -> Result<Option<Self>, UpstreamError> {
        let kind = upstream.plane.kind_of(key.cluster, &key.resource).await.map_err(|error| failed(&error))?;
        Ok(kind.map(|kind| {
            let scale = kind.content.as_ref().and_then(|content| content.scale());
            let scale = scale.and_then(|scale| ScaleFields::new(scale.spec.written(), scale.status.written()));
            Self { group_kind: kind.gvk.group_kind(), scale, kind }
        }))
    }

    /// Returns the shape by which the states of copies are merged.
    pub(super) fn shape(&self) -> StatusShape<'_> {
        StatusShape { kind: &self.group_kind, scale: self.scale.as_ref() }
    }

    /// Returns true if the kind has the subresource `status`.
    pub(super) fn has_status(&self) -> bool {
        self.kind.subresource("status").is_some()
    }

    /// Removes from a status what the schema of a custom kind does not declare, and the fields that are not valid: a
    /// stored object with them could not be changed any more.
    pub(super) fn fit(&self, status: &mut Value) {
        let Some(schema) = self.kind.content.as_ref().map(|content| content.schema()) else { return };
        match (schema.property("status"), status.as_object_mut()) {
            (Some(schema), _) => fit(status, schema),
            (None, Some(fields)) if !schema.preserves_unknown => fields.clear(),
            (None, _) => {}
        }
    }
}

fn fit(status: &mut Value, schema: &Schema) {
    values::prune_part(status, schema);
    let Some(fields) = status.as_object_mut() else { return };
    let effort = Effort::default();
    let path = Path::new("status");
    let is_valid = |value: &Value, schema: &Schema| {
        let mut errors = Errors::default();
        values::validate(&path, value, None, (schema, &effort), &mut errors);
        errors.is_empty()
    };
    fields.retain(|name, value| {
        let Some(schema) = schema.property(name).or(schema.entries()) else { return true };
        // Valid conditions stay, because Portolan adds its own.
        if let (Some(conditions), Some(items), "conditions") = (value.as_array_mut(), &schema.items, name.as_str()) {
            conditions.retain(|condition| is_valid(condition, items));
        }
        is_valid(value, schema)
    });
}

#[cfg(test)]
mod tests {
    use portolan_kinds::custom;
    use portolan_types::GroupResource;
    use serde_json::json;

    use super::*;

    fn kind(schema: &Value) -> StatusKind {
        let names = json!({"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"});
        let crd = json!({"metadata": {"name": "widgets.example.com"}, "status": {"acceptedNames": names},
            "spec": {"group": "example.com", "names": names, "scope": "Namespaced", "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}}}]}});
        let table = custom::compile(&crd).unwrap();
        let kind = table.stored(&GroupResource::new("example.com", "widgets")).unwrap().clone();
        StatusKind { group_kind: kind.gvk.group_kind(), scale: None, kind }
    }

    #[test]
    fn a_status_that_the_schema_does_not_declare_is_not_stored() {
        for (case, free, expected) in [("pruned", false, json!({})), ("unknown fields are kept", true, json!({"a": 1}))]
        {
            let mut status = json!({"a": 1});
            kind(&json!({"type": "object", "x-kubernetes-preserve-unknown-fields": free})).fit(&mut status);
            assert_eq!(status, expected, "{case}");
        }
    }

    #[test]
    fn a_reported_status_is_made_to_fit_the_schema() {
        let kind = kind(&json!({"type": "object", "properties": {"status": {"type": "object", "properties": {
            "phase": {"type": "string", "enum": ["Ready", "Failed"]}, "replicas": {"type": "integer"},
            "conditions": {"type": "array", "items": {"type": "object", "required": ["type"],
                "properties": {"type": {"type": "string"}}}},
            "details": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}));
        assert!(kind.has_status());
        for (case, reported, expected) in [
            ("what fits stays", json!({"phase": "Ready", "replicas": 2}), json!({"phase": "Ready", "replicas": 2})),
            ("an unknown field goes", json!({"phase": "Ready", "url": "x"}), json!({"phase": "Ready"})),
            ("a value that is not allowed goes", json!({"phase": "Odd", "replicas": 1}), json!({"replicas": 1})),
            ("a wrong type goes", json!({"replicas": "many"}), json!({})),
            (
                "a condition that lacks a field goes",
                json!({"conditions": [{"x": 1}, {"type": "Ready"}]}),
                json!({"conditions": [{"type": "Ready"}]}),
            ),
            ("free fields stay", json!({"details": {"any": [1]}}), json!({"details": {"any": [1]}})),
        ] {
            let mut status = reported;
            kind.fit(&mut status);
            assert_eq!(status, expected, "{case}");
        }
    }
}
