//! Which fields the API of a physical cluster has, from its OpenAPI v3.

use std::collections::HashMap;

use portolan_types::{GroupVersion, GroupVersionKind};
use serde_json::Value;

use super::{Api, DownstreamError, Served};

/// Parts of an object that are the same in every version.
const NOT_CHECKED: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];

/// Most fields that are held of the API of one physical cluster.
const MAX_FIELDS: usize = 100_000;
/// Longest name of a field or of a type, in bytes.
const MAX_NAME: usize = 512;

/// The fields of kinds, as far down as they are declared.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    fields: usize,
    types: HashMap<String, HashMap<String, Shape>>,
    roots: HashMap<GroupVersionKind, String>,
}

#[derive(Debug)]
enum Shape {
    /// Whatever is in it.
    Any,
    Object(String),
    List(Box<Shape>),
    Map(Box<Shape>),
}

impl Schema {
    /// Reads the schemas of all versions that `served` names.
    pub(crate) async fn read(api: &Api, served: impl Iterator<Item = Served>) -> Result<Self, DownstreamError> {
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
            schema.take_in(&api.get(url).await?)?;
        }
        Ok(schema)
    }

    fn take_in(&mut self, document: &Value) -> Result<(), DownstreamError> {
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

    /// JSON pointers of what `object` says and the API of the physical cluster has no field for. None for a kind that is not
    /// known: it is not judged.
    pub(crate) fn lacking(&self, kind: &GroupVersionKind, object: &Value) -> Vec<String> {
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
        fields: &HashMap<String, Shape>,
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

    fn walk(&self, shape: &Shape, value: &Value, at: &str, lacking: &mut Vec<String>) {
        match (shape, value) {
            (Shape::Object(name), Value::Object(own)) => {
                let Some(fields) = self.types.get(name) else { return };
                own.iter().for_each(|(field, value)| self.walk_field(fields, field, value, at, lacking));
            }
            (Shape::List(item), Value::Array(items)) => {
                items.iter().enumerate().for_each(|(n, value)| self.walk(item, value, &format!("{at}/{n}"), lacking));
            }
            (Shape::Map(item), Value::Object(own)) => {
                own.iter().for_each(|(key, value)| self.walk(item, value, &format!("{at}/{key}"), lacking));
            }
            (Shape::Any | Shape::Object(_) | Shape::List(_) | Shape::Map(_), _) => {}
        }
    }
}

fn shape(schema: &Value) -> Shape {
    let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
    if let Some(name) = reference.and_then(|text| text.strip_prefix("#/components/schemas/")) {
        return Shape::Object(name.to_owned());
    }
    match (&schema["items"], &schema["additionalProperties"]) {
        (items @ Value::Object(_), _) => Shape::List(Box::new(shape(items))),
        (_, values @ Value::Object(_)) => Shape::Map(Box::new(shape(values))),
        _ => Shape::Any,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As a real API server writes it, cut down.
    fn schema() -> Schema {
        let reference =
            |name: &str| json!({"allOf": [{"$ref": format!("#/components/schemas/{name}")}], "default": {}});
        let mut schema = Schema::default();
        schema.take_in(&json!({"components": {"schemas": {
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
    fn what_the_api_has_no_field_for_is_named() {
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
            assert_eq!(schema().lacking(&deployment, &object), expected, "{case}");
        }
        let unknown = GroupVersionKind::new("example.com", "v1", "Widget");
        assert!(schema().lacking(&unknown, &json!({"spec": {"x": 1}})).is_empty(), "an unknown kind is not judged");
    }
}
