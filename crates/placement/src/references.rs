//! What a pod template names, found by the shape of the tree: any map with a list `containers` is a pod spec, in whatever
//! kind it stands.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Deepest nesting that is looked at.
const MAX_DEPTH: usize = 64;

/// Names of objects in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// ConfigMaps.
    pub config_maps: BTreeSet<String>,
    /// Secrets.
    pub secrets: BTreeSet<String>,
    /// ServiceAccounts; `default` where a template names none.
    pub service_accounts: BTreeSet<String>,
    /// PersistentVolumeClaims.
    pub claims: BTreeSet<String>,
}

impl References {
    /// What the pod templates of an object name; for an Ingress its TLS Secrets, for a ServiceAccount its pull Secrets.
    pub fn of(object: &Value) -> Self {
        let mut found = Self::default();
        if let Some(spec) = object.get("spec") {
            for_each_pod_spec(spec, 0, &mut |pod| found.add_pod_spec(pod));
            for tls in array(spec, "tls") {
                insert(&mut found.secrets, tls.get("secretName"));
            }
        }
        for key in ["imagePullSecrets", "secrets"] {
            for reference in array(object, key) {
                insert(&mut found.secrets, reference.get("name"));
            }
        }
        found
    }

    /// Whether an object of a core kind is named.
    pub fn names(&self, kind: &str, name: &str) -> bool {
        match kind {
            "ConfigMap" => self.config_maps.contains(name),
            "Secret" => self.secrets.contains(name),
            "ServiceAccount" => self.service_accounts.contains(name),
            "PersistentVolumeClaim" => self.claims.contains(name),
            _ => false,
        }
    }

    fn add_pod_spec(&mut self, pod: &Map<String, Value>) {
        let account = pod.get("serviceAccountName").or_else(|| pod.get("serviceAccount")).and_then(Value::as_str);
        let account = account.filter(|name| !name.is_empty()).unwrap_or("default");
        self.service_accounts.insert(account.to_owned());
        pod.values().for_each(|child| self.add(child, 0));
        self.add_map(pod);
    }

    fn add(&mut self, value: &Value, depth: usize) {
        match value {
            _ if depth > MAX_DEPTH => {}
            Value::Array(items) => items.iter().for_each(|item| self.add(item, depth + 1)),
            Value::Object(map) => {
                self.add_map(map);
                map.values().for_each(|child| self.add(child, depth + 1));
            }
            _ => {}
        }
    }

    /// The fields of a pod spec that refer to others have the same names wherever they stand.
    fn add_map(&mut self, map: &Map<String, Value>) {
        for (key, value) in map {
            match key.as_str() {
                "configMap" | "configMapRef" | "configMapKeyRef" => insert(&mut self.config_maps, value.get("name")),
                "secretRef" | "secretKeyRef" | "nodePublishSecretRef" => insert(&mut self.secrets, value.get("name")),
                "secret" => insert(&mut self.secrets, value.get("secretName").or_else(|| value.get("name"))),
                "persistentVolumeClaim" => insert(&mut self.claims, value.get("claimName")),
                "imagePullSecrets" => {
                    let names = value.as_array().into_iter().flatten();
                    names.for_each(|reference| insert(&mut self.secrets, reference.get("name")));
                }
                _ => {}
            }
        }
    }
}

fn insert(names: &mut BTreeSet<String>, name: Option<&Value>) {
    if let Some(name) = name.and_then(Value::as_str).filter(|name| !name.is_empty()) {
        names.insert(name.to_owned());
    }
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Calls `visit` with every pod spec below `value`.
pub(crate) fn for_each_pod_spec(value: &Value, depth: usize, visit: &mut dyn FnMut(&Map<String, Value>)) {
    match value {
        _ if depth > MAX_DEPTH => {}
        Value::Object(map) if map.get("containers").is_some_and(Value::is_array) => visit(map),
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
    fn whatever_a_pod_template_names_is_found() {
        let pod = json!({
            "serviceAccountName": "robot",
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [
                {"name": "a", "configMap": {"name": "settings"}},
                {"name": "b", "secret": {"secretName": "keys"}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "d", "projected": {"sources": [{"configMap": {"name": "more"}}, {"secret": {"name": "less"}}]}},
                {"name": "e", "csi": {"driver": "x", "nodePublishSecretRef": {"name": "csi"}}},
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
            let text = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(",");
            assert_eq!(text(&found.config_maps), "env,more,settings,two");
            assert_eq!(text(&found.secrets), "csi,keys,less,one,pull,senv");
            assert_eq!(text(&found.service_accounts), "robot");
            assert_eq!(text(&found.claims), "data");
        }
    }

    #[test]
    fn an_ingress_names_its_certificates_and_an_account_its_pull_secrets() {
        let ingress = json!({"spec": {"tls": [{"hosts": ["a"], "secretName": "cert"}]}});
        assert!(References::of(&ingress).names("Secret", "cert"));
        let account = json!({"imagePullSecrets": [{"name": "pull"}]});
        assert!(References::of(&account).names("Secret", "pull"));
    }
}
