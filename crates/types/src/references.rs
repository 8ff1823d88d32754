//! Fields by which pod specs, claims, Ingresses and ServiceAccounts name other objects of their namespace.
//!
//! A path is a list of field names joined by dots; `[]` stands for every item of a list. A test walks the kind table
//! and fails on a field that looks like a reference and is neither here nor among [`NO_REFERENCES`].

use serde_json::Value;

/// Kind that a field refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Referent {
    /// A ConfigMap, by name.
    ConfigMap,
    /// A Secret, by name.
    Secret,
    /// A ServiceAccount, by name.
    ServiceAccount,
    /// A PersistentVolumeClaim, by name.
    Claim,
    /// A Service, by name.
    Service,
    /// An object, by `apiGroup`, `kind` and `name`.
    Typed,
}

/// Field that names another object of the same namespace.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceField {
    /// Path of the field.
    pub path: &'static str,
    /// Kind that it refers to.
    pub referent: Referent,
}

const fn field(path: &'static str, referent: Referent) -> ReferenceField {
    ReferenceField { path, referent }
}

/// Reference fields of a pod spec.
pub static POD_SPEC: [ReferenceField; 32] = [
    field("serviceAccountName", Referent::ServiceAccount),
    field("serviceAccount", Referent::ServiceAccount),
    field("imagePullSecrets[].name", Referent::Secret),
    field("containers[].env[].valueFrom.configMapKeyRef.name", Referent::ConfigMap),
    field("containers[].env[].valueFrom.secretKeyRef.name", Referent::Secret),
    field("containers[].envFrom[].configMapRef.name", Referent::ConfigMap),
    field("containers[].envFrom[].secretRef.name", Referent::Secret),
    field("initContainers[].env[].valueFrom.configMapKeyRef.name", Referent::ConfigMap),
    field("initContainers[].env[].valueFrom.secretKeyRef.name", Referent::Secret),
    field("initContainers[].envFrom[].configMapRef.name", Referent::ConfigMap),
    field("initContainers[].envFrom[].secretRef.name", Referent::Secret),
    field("ephemeralContainers[].env[].valueFrom.configMapKeyRef.name", Referent::ConfigMap),
    field("ephemeralContainers[].env[].valueFrom.secretKeyRef.name", Referent::Secret),
    field("ephemeralContainers[].envFrom[].configMapRef.name", Referent::ConfigMap),
    field("ephemeralContainers[].envFrom[].secretRef.name", Referent::Secret),
    field("volumes[].configMap.name", Referent::ConfigMap),
    field("volumes[].secret.secretName", Referent::Secret),
    field("volumes[].persistentVolumeClaim.claimName", Referent::Claim),
    field("volumes[].projected.sources[].configMap.name", Referent::ConfigMap),
    field("volumes[].projected.sources[].secret.name", Referent::Secret),
    field("volumes[].azureFile.secretName", Referent::Secret),
    field("volumes[].cephfs.secretRef.name", Referent::Secret),
    field("volumes[].cinder.secretRef.name", Referent::Secret),
    field("volumes[].csi.nodePublishSecretRef.name", Referent::Secret),
    field("volumes[].flexVolume.secretRef.name", Referent::Secret),
    field("volumes[].iscsi.secretRef.name", Referent::Secret),
    field("volumes[].rbd.secretRef.name", Referent::Secret),
    field("volumes[].scaleIO.secretRef.name", Referent::Secret),
    field("volumes[].storageos.secretRef.name", Referent::Secret),
    field("volumes[].ephemeral.volumeClaimTemplate.spec.dataSource", Referent::Typed),
    field("volumes[].ephemeral.volumeClaimTemplate.spec.dataSourceRef", Referent::Typed),
    // Custom kinds with a projected volume source write it so.
    field("volumes[].secret.name", Referent::Secret),
];

/// Reference fields of a PersistentVolumeClaim, or of a template of one.
pub static CLAIM: [ReferenceField; 2] =
    [field("spec.dataSource", Referent::Typed), field("spec.dataSourceRef", Referent::Typed)];

/// Reference fields of an Ingress.
pub static INGRESS: [ReferenceField; 5] = [
    field("spec.tls[].secretName", Referent::Secret),
    field("spec.defaultBackend.service.name", Referent::Service),
    field("spec.defaultBackend.resource", Referent::Typed),
    field("spec.rules[].http.paths[].backend.service.name", Referent::Service),
    field("spec.rules[].http.paths[].backend.resource", Referent::Typed),
];

/// Reference fields of a ServiceAccount.
pub static SERVICE_ACCOUNT: [ReferenceField; 2] =
    [field("imagePullSecrets[].name", Referent::Secret), field("secrets[].name", Referent::Secret)];

/// Path endings of fields that look like references and name no object that follows to a physical cluster, with the
/// reason.
pub static NO_REFERENCES: [(&str, &str); 11] = [
    ("automountServiceAccountToken", "a switch"),
    ("fieldRef", "names a field of the Pod itself"),
    ("resourceFieldRef", "names a container of the Pod itself"),
    ("fileKeyRef", "names a volume of the Pod itself"),
    ("resources.claims[]", "names an entry of resourceClaims of the Pod itself"),
    ("resourceClaims[]", "ResourceClaims are not placed: no kind of resource.k8s.io is"),
    ("resourceClaims[].resourceClaimName", "ResourceClaims are not placed"),
    ("resourceClaims[].resourceClaimTemplateName", "ResourceClaimTemplates are not placed"),
    ("cephfs.secretFile", "a path on the node"),
    ("image.reference", "an image in a registry"),
    ("serviceAccountToken", "a token of the account that the Pod runs as"),
];

impl ReferenceField {
    /// Calls `visit` with kind and name of every referenced object. A kind that is not in the table comes as the object
    /// spells it.
    pub fn visit(&self, object: &Value, visit: &mut dyn FnMut(&str, &str)) {
        visit_path(object, self.path, self.referent, visit);
    }
}

/// Calls `visit` with kind and name of every object that the field at `path` names.
pub(crate) fn visit_path(object: &Value, path: &str, referent: Referent, visit: &mut dyn FnMut(&str, &str)) {
    walk(object, path, &mut |value| {
        let (kind, name) = match referent {
            Referent::ConfigMap => ("ConfigMap", value.as_str()),
            Referent::Secret => ("Secret", value.as_str()),
            Referent::ServiceAccount => ("ServiceAccount", value.as_str()),
            Referent::Claim => ("PersistentVolumeClaim", value.as_str()),
            Referent::Service => ("Service", value.as_str()),
            Referent::Typed => match typed(value) {
                Some(named) => named,
                None => return,
            },
        };
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            visit(kind, name);
        }
    });
}

/// Returns kind and name of a typed reference to an object of the core group in the same namespace.
fn typed(reference: &Value) -> Option<(&str, Option<&str>)> {
    let text = |key: &str| reference.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let is_core = text("apiGroup").is_none() && text("namespace").is_none();
    Some((text("kind").filter(|_| is_core)?, text("name")))
}

fn walk(value: &Value, path: &str, found: &mut dyn FnMut(&Value)) {
    let (step, rest) = path.split_once('.').unwrap_or((path, ""));
    let (name, is_list) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
    let Some(child) = value.get(name) else { return };
    let mut next = |child: &Value| match rest {
        "" => found(child),
        rest => walk(child, rest, found),
    };
    if is_list { child.as_array().into_iter().flatten().for_each(next) } else { next(child) }
}
