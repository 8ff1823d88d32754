//! Fields that the API of a physical cluster has, from its OpenAPI v3.

use std::collections::HashMap;

use portolan_types::{GroupVersion, GroupVersionKind};
use serde_json::Value;

use super::{DownstreamClient, DownstreamError, ServedResource};

/// Parts of an object that are the same in every version.
const NOT_CHECKED: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];

/// Most fields that are held of the API of one physical cluster.
const MAX_FIELDS: usize = 100_000;
/// Longest name of a field or of a type, in bytes.
const MAX_NAME: usize = 512;

/// Declared fields of kinds, nested as in their schemas.
#[derive(Debug, Default)]
pub(crate) struct OpenApiFields {
    fields: usize,
    types: HashMap<String, HashMap<String, FieldShape>>,
    roots: HashMap<GroupVersionKind, String>,
}

#[derive(Debug)]
enum FieldShape {
    /// Whatever is in it.
    Any,
    Object(String),
    List(Box<FieldShape>),
    Map(Box<FieldShape>),
}

impl OpenApiFields {
    /// Reads the schemas of all versions that `served` names.
    pub(crate) async fn read(
        api: &DownstreamClient,
        served: impl Iterator<Item = ServedResource>,
    ) -> Result<Self, DownstreamError> {
        let index = api.get("/openapi/v3").await?;
        let mut versions: Vec<GroupVersion> = served.map(|served| served.kind.group_version()).collect();
        versions.sort_unstable();
        versions.dedup();
        let mut schema = Self::default();
        for version in versions {
            let path = if version.group.is_empty() { "api/v1".to_owned() } else { format!("apis/{version}") };
            let Some(url) = index["paths"][&path]["serverRelativeURL"].as_str() else { continue };
            if !url.starts_with("/openapi/v3/") {
                return Err(DownstreamError::Garbled(format!("the schema of {version} is not where schemas are")));
            }
            schema.add_document(&api.get(url).await?)?;
        }
        Ok(schema)
    }

    fn add_document(&mut self, document: &Value) -> Result<(), DownstreamError> {
        let schemas = document["components"]["schemas"].as_object();
        for (name, schema) in schemas.into_iter().flatten() {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
            for kind in kinds.into_iter().flatten() {
                let text = |key: &str| kind[key].as_str().unwrap_or_default();
                let kind = GroupVersionKind::new(text("group"), text("version"), text("kind"));
                self.fields += 1;
                if self.fields <= MAX_FIELDS {
                    self.roots.insert(kind, name.clone());
                }
            }
            let fields = schema["properties"].as_object().into_iter().flatten();
            let fields: HashMap<_, _> = fields.map(|(field, schema)| (field.clone(), shape(schema))).collect();
            self.fields += 1 + fields.len();
            if self.fields > MAX_FIELDS || fields.keys().chain([name]).any(|name| name.len() > MAX_NAME) {
                return Err(DownstreamError::Excessive(format!("an API of more than {MAX_FIELDS} fields")));
            }
            if !fields.is_empty() {
                self.types.insert(name.clone(), fields);
            }
        }
        Ok(())
    }

    /// Returns JSON pointers to the fields of `object` that the API of the physical cluster does not have. None for an
    /// unknown kind.
    pub(crate) fn missing_in(&self, kind: &GroupVersionKind, object: &Value) -> Vec<String> {
        let mut lacking = Vec::new();
        let fields = self.roots.get(kind).and_then(|root| self.types.get(root));
        if let Some(fields) = fields {
            let own = object.as_object().into_iter().flatten();
            for (field, value) in own.filter(|(field, _)| !NOT_CHECKED.contains(&field.as_str())) {
                self.walk_field(fields, field, value, "", &mut lacking);
            }
        }
        lacking
    }

    fn walk_field(
        &self,
        fields: &HashMap<String, FieldShape>,
        field: &str,
        value: &Value,
        at: &str,
        lacking: &mut Vec<String>,
    ) {
        let at = format!("{at}/{}", field.replace('~', "~0").replace('/', "~1"));
        match fields.get(field) {
            Some(shape) => self.walk(shape, value, &at, lacking),
            None => lacking.push(at),
        }
    }

    fn walk(&self, shape: &FieldShape, value: &Value, at: &str, lacking: &mut Vec<String>) {
        match (shape, value) {
            (FieldShape::Object(name), Value::Object(own)) => {
                let Some(fields) = self.types.get(name) else { return };
                own.iter().for_each(|(field, value)| self.walk_field(fields, field, value, at, lacking));
            }
            (FieldShape::List(item), Value::Array(items)) => {
                items.iter().enumerate().for_each(|(n, value)| self.walk(item, value, &format!("{at}/{n}"), lacking));
            }
            (FieldShape::Map(item), Value::Object(own)) => {
                own.iter().for_each(|(key, value)| self.walk(item, value, &format!("{at}/{key}"), lacking));
            }
            (FieldShape::Any | FieldShape::Object(_) | FieldShape::List(_) | FieldShape::Map(_), _) => {}
        }
    }
}

fn shape(schema: &Value) -> FieldShape {
    let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
    if let Some(name) = reference.and_then(|text| text.strip_prefix("#/components/schemas/")) {
        return FieldShape::Object(name.to_owned());
    }
    match (&schema["items"], &schema["additionalProperties"]) {
        (items @ Value::Object(_), _) => FieldShape::List(Box::new(shape(items))),
        (_, values @ Value::Object(_)) => FieldShape::Map(Box::new(shape(values))),
        _ => FieldShape::Any,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a shortened schema of a real API server.
    fn schema() -> OpenApiFields {
        let reference =
            |name: &str| json!({"allOf": [{"$ref": format!("#/components/schemas/{name}")}], "default": {}});
        let mut schema = OpenApiFields::default();
        schema.add_document(&json!({"components": {"schemas": {
            "Deployment": {"properties": {"apiVersion": {}, "spec": reference("Spec")},
                "x-kubernetes-group-version-kind": [{"group": "apps", "version": "v1", "kind": "Deployment"}]},
            "Spec": {"properties": {"replicas": {"type": "integer"}, "selector": {"type": "object",
                "additionalProperties": {"type": "string"}}, "containers": {"type": "array", "items": reference("Container")},
                "resources": {"type": "object", "additionalProperties": reference("Quantity")}}},
            "Container": {"properties": {"name": {"type": "string"}}},
            "Quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
        }}})).unwrap();
        schema
    }

    #[test]
    fn unsupported_fields_are_named() {
        let deployment = GroupVersionKind::new("apps", "v1", "Deployment");
        for (case, object, expected) in [
            ("all is known", json!({"spec": {"replicas": 1, "containers": [{"name": "a"}]}}), vec![]),
            ("a new field", json!({"spec": {"hostname~/x": 1}}), vec!["/spec/hostname~0~1x"]),
            (
                "in a list",
                json!({"spec": {"containers": [{"name": "a"}, {"name": "b", "restartPolicyRules": []}]}}),
                vec!["/spec/containers/1/restartPolicyRules"],
            ),
            ("any key of a map", json!({"spec": {"selector": {"any": "x"}, "resources": {"cpu": "1"}}}), vec![]),
            ("metadata and status are not looked at", json!({"metadata": {"x": 1}, "status": {"y": 2}}), vec![]),
            ("a new part", json!({"template": {}}), vec!["/template"]),
        ] {
            assert_eq!(schema().missing_in(&deployment, &object), expected, "{case}");
        }
        let unknown = GroupVersionKind::new("example.com", "v1", "Widget");
        assert!(schema().missing_in(&unknown, &json!({"spec": {"x": 1}})).is_empty(), "an unknown kind is not judged");
    }
}
