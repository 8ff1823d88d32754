//! References of pod templates, found by the shape of the tree: any map with a list `containers` is a pod spec, in any
//! kind. The fields are those of the table in `portolan_types::references`.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{
    declared_references::DeclaredReferences,
    references::{self, ReferenceField, Referent},
};
use serde_json::Value;

/// Deepest nesting that is looked at.
const MAX_DEPTH: usize = 64;

/// Names of objects in the same namespace, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    named: BTreeMap<String, BTreeSet<String>>,
    /// Claims that another claim is filled from.
    sources: BTreeSet<String>,
}

impl References {
    /// Returns the references of the pod templates of an object, or of a claim, an Ingress or a ServiceAccount itself.
    pub fn of(object: &Value) -> Self {
        let mut found = Self::default();
        if let Some(spec) = object.get("spec") {
            for_each_pod_spec(spec, 0, &mut |pod| found.add_pod_spec(pod));
            for template in spec.get("volumeClaimTemplates").and_then(Value::as_array).into_iter().flatten() {
                found.add(template, &references::CLAIM);
            }
        }
        match object.get("kind").and_then(Value::as_str) {
            Some("Ingress") => found.add(object, &references::INGRESS),
            Some("ServiceAccount") => found.add(object, &references::SERVICE_ACCOUNT),
            // A template that is kept for a rollback.
            Some("ControllerRevision") => {
                for_each_pod_spec(&object["data"], 0, &mut |pod| found.add_pod_spec(pod));
            }
            Some("PersistentVolumeClaim") => found.add(object, &references::CLAIM),
            _ => {}
        }
        found
    }

    /// Adds the references by fields that the definition of a custom resource declares.
    #[must_use]
    pub fn declared_by(mut self, declared: &DeclaredReferences, object: &Value) -> Self {
        declared.visit(object, &mut |kind, name| self.insert(kind, name));
        self
    }

    /// Returns true when an object of a core kind is named.
    pub fn names(&self, kind: &str, name: &str) -> bool {
        self.named.get(kind).is_some_and(|names| names.contains(name))
    }

    /// Kind and name of everything that is named.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.iter().flat_map(|(kind, names)| names.iter().map(|name| (kind.as_str(), name.as_str())))
    }

    /// Names of claims that another claim is filled from. Their data are on one physical cluster.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(String::as_str)
    }

    /// Names of claims that pods mount.
    pub fn claims(&self) -> impl Iterator<Item = &str> {
        self.named.get("PersistentVolumeClaim").into_iter().flatten().map(String::as_str)
    }

    fn add_pod_spec(&mut self, pod: &Value) {
        self.add(pod, &references::POD_SPEC);
        if !Self::names_account_of(pod) {
            self.insert("ServiceAccount", "default");
        }
    }

    fn names_account_of(pod: &Value) -> bool {
        ["serviceAccountName", "serviceAccount"]
            .iter()
            .any(|field| pod.get(*field).and_then(Value::as_str).is_some_and(|name| !name.is_empty()))
    }

    /// A claim is named by type only to fill another one from it.
    fn add(&mut self, object: &Value, fields: &[ReferenceField]) {
        for field in fields {
            let is_source = |kind: &str| field.referent == Referent::Typed && kind == "PersistentVolumeClaim";
            field.visit(object, &mut |kind, name| {
                if is_source(kind) {
                    self.sources.insert(name.to_owned());
                } else {
                    self.insert(kind, name)
                }
            });
        }
    }

    fn insert(&mut self, kind: &str, name: &str) {
        self.named.entry(kind.to_owned()).or_default().insert(name.to_owned());
    }
}

/// Calls `visit` with every pod spec within `value`.
pub(crate) fn for_each_pod_spec(value: &Value, depth: usize, visit: &mut dyn FnMut(&Value)) {
    match value {
        _ if depth > MAX_DEPTH => {}
        Value::Object(map) if map.get("containers").is_some_and(Value::is_array) => visit(value),
        Value::Object(map) => map.values().for_each(|child| for_each_pod_spec(child, depth + 1, visit)),
        Value::Array(items) => items.iter().for_each(|child| for_each_pod_spec(child, depth + 1, visit)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_reference_of_a_pod_template_is_found() {
        let pod = json!({
            "serviceAccountName": "robot",
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [
                {"name": "a", "configMap": {"name": "settings"}},
                {"name": "b", "secret": {"secretName": "keys"}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "d", "projected": {"sources": [{"configMap": {"name": "more"}}, {"secret": {"name": "less"}}]}},
                {"name": "e", "csi": {"driver": "x", "nodePublishSecretRef": {"name": "csi"}}},
                {"name": "f", "azureFile": {"secretName": "file", "shareName": "x"}},
                {"name": "g", "rbd": {"monitors": ["m"], "image": "x", "secretRef": {"name": "rbd"}}},
            ],
            "containers": [{"name": "c", "image": "x", "envFrom": [{"configMapRef": {"name": "env"}}, {"secretRef": {"name": "senv"}}]}],
            "initContainers": [{"name": "i", "env": [
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "one", "key": "k"}}},
                {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "two", "key": "k"}}}]}],
        });
        for object in [
            json!({"spec": pod}),
            json!({"spec": {"template": {"spec": pod}}}),
            json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": pod}}}}}),
            json!({"spec": {"anything": [{"of": {"an": {"operator": pod}}}]}}),
        ] {
            let found = References::of(&object);
            let text = |kind: &str| {
                found.all().filter(|(of, _)| *of == kind).map(|(_, name)| name).collect::<Vec<_>>().join(",")
            };
            assert_eq!(text("ConfigMap"), "env,more,settings,two");
            assert_eq!(text("Secret"), "csi,file,keys,less,one,pull,rbd,senv");
            assert_eq!(text("ServiceAccount"), "robot");
            assert_eq!(text("PersistentVolumeClaim"), "data");
        }
    }

    #[test]
    fn a_custom_resource_names_what_its_definition_declares() {
        let declared = DeclaredReferences::parse(r#"{"spec.tls.secret": "Secret"}"#).unwrap();
        let object = json!({"spec": {"tls": {"secret": "cert"}, "other": {"secret": "hidden"}}});
        let found = References::of(&object).declared_by(&declared, &object);
        assert_eq!(found.all().collect::<Vec<_>>(), [("Secret", "cert")]);
    }

    #[test]
    fn an_ingress_names_its_certificates_and_an_account_its_pull_secrets() {
        let backend = json!({"resource": {"kind": "ConfigMap", "name": "pages"}});
        let ingress = json!({"kind": "Ingress", "spec": {"tls": [{"hosts": ["a"], "secretName": "cert"}], "defaultBackend": backend}});
        assert!(References::of(&ingress).names("Secret", "cert"));
        assert!(References::of(&ingress).names("ConfigMap", "pages"));
        let account = json!({"kind": "ServiceAccount", "imagePullSecrets": [{"name": "pull"}]});
        assert!(References::of(&account).names("Secret", "pull"));
        let clone = json!({"kind": "PersistentVolumeClaim", "spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "golden"}}});
        assert_eq!(References::of(&clone).sources().collect::<Vec<_>>(), ["golden"]);
        let set = json!({"kind": "StatefulSet", "spec": {"volumeClaimTemplates": [clone]}});
        assert_eq!(References::of(&set).sources().collect::<Vec<_>>(), ["golden"]);
    }
}
