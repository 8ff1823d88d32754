//! Schemas with those of all types in them, as expressions are checked by.

use serde_json::{Map, Value, json};

use super::{NoTexts, schema};
use crate::{KindTable, TypeId};

const REFERENCE: &str = "#/components/schemas/";

/// Returns the schema of a type, with the schemas of all types in it in their places. A type within itself is any
/// object.
pub fn resolved(table: &KindTable, id: TypeId) -> Value {
    Walk { table, open: Vec::new() }.of_type(id)
}

struct Walk<'t> {
    table: &'t KindTable,
    /// The types around.
    open: Vec<TypeId>,
}

impl Walk<'_> {
    fn of_type(&mut self, id: TypeId) -> Value {
        if self.open.contains(&id) {
            return json!({"type": "object"});
        }
        self.open.push(id);
        let mut schema = schema::of_type(self.table, self.table.get(id), &NoTexts);
        self.resolve(&mut schema);
        self.open.pop();
        schema
    }

    /// Puts types in the places of references to them.
    fn resolve(&mut self, schema: &mut Value) {
        if let Some(name) = referred(schema) {
            let known = self.table.type_named(name);
            *schema = known.map_or_else(|| json!({"type": "object"}), |id| self.of_type(id));
            return;
        }
        let Some(fields) = schema.as_object_mut() else { return };
        // Kubernetes' own types write it in this form.
        if fields.get("format").and_then(Value::as_str) == Some("int-or-string") {
            fields.insert("x-kubernetes-int-or-string".into(), true.into());
        }
        for name in ["items", "additionalProperties"] {
            fields.get_mut(name).into_iter().for_each(|inner| self.resolve(inner));
        }
        let properties = fields.get_mut("properties").and_then(Value::as_object_mut);
        properties.into_iter().flat_map(Map::values_mut).for_each(|property| self.resolve(property));
    }
}

/// Returns the type that a schema refers to, if it holds only the reference and at most a default.
fn referred(schema: &Value) -> Option<&str> {
    let reference = schema.get("$ref").or_else(|| schema.pointer("/allOf/0/$ref"))?;
    reference.as_str()?.strip_prefix(REFERENCE)
}

#[cfg(test)]
mod tests {
    use portolan_types::GroupVersionKind;

    use super::*;

    #[test]
    fn references_are_replaced_by_their_types() {
        let table = KindTable::builtin();
        let of = |group: &str, version: &str, kind: &str| {
            resolved(table, table.kind(&GroupVersionKind::new(group, version, kind)).unwrap().schema)
        };
        let deployment = of("apps", "v1", "Deployment");
        let at = |pointer: &str| deployment.pointer(pointer).cloned().unwrap_or_default();
        let pod = "/properties/spec/properties/template/properties/spec/properties";
        assert_eq!(at("/properties/metadata/properties/creationTimestamp/format"), "date-time");
        assert_eq!(at(&format!("{pod}/containers/items/properties/name/type")), "string");
        let surge = "/properties/spec/properties/strategy/properties/rollingUpdate/properties/maxSurge";
        assert_eq!(at(&format!("{surge}/x-kubernetes-int-or-string")), true);
        assert!(!deployment.to_string().contains("$ref"));
        let crd = of("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let schema =
            "/properties/spec/properties/versions/items/properties/schema/properties/openAPIV3Schema/properties";
        assert_eq!(crd.pointer(&format!("{schema}/not")), Some(&json!({"type": "object"})), "one within itself");
    }
}
