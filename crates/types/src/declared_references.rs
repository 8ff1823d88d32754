//! References that a CustomResourceDefinition declares by the annotation `portolan.dev/references`: a JSON map from the
//! path of a field to the kind of the object that it names, such as `{"spec.tls[].secretName": "Secret"}`.

use serde_json::Value;

use crate::references::{Referent, visit_path};

/// Most fields that one definition declares.
pub const MAX_FIELDS: usize = 64;
/// Longest path, in bytes.
const MAX_PATH: usize = 256;
/// Most names that the fields of one object give.
const MAX_NAMES: usize = 1_000;
/// Kinds that can be named.
const KINDS: [(&str, Referent); 5] = [
    ("ConfigMap", Referent::ConfigMap),
    ("Secret", Referent::Secret),
    ("ServiceAccount", Referent::ServiceAccount),
    ("PersistentVolumeClaim", Referent::Claim),
    ("Service", Referent::Service),
];

/// Fields by which custom resources name other objects of their namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredReferences(Vec<(Box<str>, Referent)>);

impl DeclaredReferences {
    /// Parses the text of the annotation.
    ///
    /// # Errors
    /// A sentence about the first error: the text is not a JSON map, has more than 64 fields, or a field is not a path
    /// or names no kind that can follow.
    pub fn parse(text: &str) -> Result<Self, String> {
        let map: serde_json::Map<String, Value> = serde_json::from_str(text)
            .map_err(|error| format!("it is not a JSON map from field paths to kinds: {error}"))?;
        if map.len() > MAX_FIELDS {
            return Err(format!("it has {} fields, and may have {MAX_FIELDS}", map.len()));
        }
        let field = |(path, kind): (String, Value)| {
            check_path(&path)?;
            let known = KINDS.iter().find(|(name, _)| kind.as_str() == Some(*name));
            let Some((_, referent)) = known else {
                let names: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
                return Err(format!("{path}: {kind} is none of the kinds that follow: {}", names.join(", ")));
            };
            Ok((path.into_boxed_str(), *referent))
        };
        map.into_iter().map(field).collect::<Result<_, _>>().map(Self)
    }

    /// Calls `visit` with kind and name of the objects that `object` names, up to 1000.
    pub fn visit(&self, object: &Value, visit: &mut dyn FnMut(&str, &str)) {
        let mut left = MAX_NAMES;
        for (path, referent) in &self.0 {
            visit_path(object, path, *referent, &mut |kind, name| {
                if left > 0 {
                    left -= 1;
                    visit(kind, name);
                }
            });
        }
    }

    /// Returns true if no field is declared.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Checks a path: names of fields joined by dots, with `[]` behind the name of a list.
fn check_path(path: &str) -> Result<(), String> {
    let is_name = |name: &str| !name.is_empty() && !name.contains(['[', ']', '\0']);
    let is_step = |step: &str| is_name(step.strip_suffix("[]").unwrap_or(step));
    if path.len() <= MAX_PATH && path.split('.').all(is_step) {
        Ok(())
    } else {
        Err(format!("{path:?} is no path of a field, such as spec.tls[].secretName, of at most {MAX_PATH} bytes"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn declared_fields_name_objects() {
        let declared = DeclaredReferences::parse(
            r#"{"spec.tls[].secretName": "Secret", "spec.settings.configMap": "ConfigMap", "spec.items[]": "ConfigMap"}"#,
        )
        .unwrap();
        let object = json!({"spec": {"tls": [{"secretName": "a"}, {"secretName": ""}, {"x": 1}, {"secretName": "b"}],
            "settings": {"configMap": "web"}, "items": ["c", 7]}});
        let mut found = Vec::new();
        declared.visit(&object, &mut |kind, name| found.push(format!("{kind}/{name}")));
        found.sort();
        assert_eq!(found, ["ConfigMap/c", "ConfigMap/web", "Secret/a", "Secret/b"]);
        declared.visit(&json!({"spec": "none"}), &mut |kind, name| panic!("{kind}/{name}"));
    }

    #[test]
    fn an_empty_declaration_is_refused_with_the_reason() {
        let many: serde_json::Map<String, Value> = (0..65).map(|n| (format!("f{n}"), json!("Secret"))).collect();
        for (text, part) in [
            ("spec.x: Secret", "not a JSON map"),
            ("[]", "not a JSON map"),
            (r#"{"spec.x": "Widget"}"#, "none of the kinds that follow"),
            (r#"{"spec.x": 1}"#, "none of the kinds that follow"),
            (r#"{"spec..x": "Secret"}"#, "is no path"),
            (r#"{"spec.x[0]": "Secret"}"#, "is no path"),
            (r#"{"": "Secret"}"#, "is no path"),
            (&*Value::Object(many).to_string(), "may have 64"),
        ] {
            let error = DeclaredReferences::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(DeclaredReferences::parse("{}").unwrap().is_empty());
    }

    #[test]
    fn an_object_names_a_bounded_number_of_others() {
        let declared = DeclaredReferences::parse(r#"{"spec.items[]": "Secret"}"#).unwrap();
        let names: Vec<String> = (0..5_000).map(|n| format!("s{n}")).collect();
        let mut count = 0;
        declared.visit(&json!({"spec": {"items": names}}), &mut |_, _| count += 1);
        assert_eq!(count, MAX_NAMES);
    }
}
