//! Objects that every namespace has.

use serde_json::{Value, json};

/// Name of the ServiceAccount of pods that name none.
pub const DEFAULT_ACCOUNT: &str = "default";
/// Name of the ConfigMap with the certificates that pods trust the API server by.
pub const ROOT_CA_MAP: &str = "kube-root-ca.crt";

/// Returns the default ServiceAccount of a namespace.
pub fn default_account(namespace: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": DEFAULT_ACCOUNT, "namespace": namespace}})
}

/// Returns the ConfigMap of the CA certificates `pem` in a namespace.
pub fn root_ca_map(namespace: &str, pem: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": pem},
        "metadata": {
            "name": ROOT_CA_MAP, "namespace": namespace,
            "annotations": {"kubernetes.io/description": "Holds the certificate authority of the API server of this logical cluster."},
        },
    })
}
