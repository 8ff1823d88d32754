//! Identity of exports: the hash of a secret, which is created by default. An export's endpoint slice is created with
//! it.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use portolan_kinds::Kind;
use portolan_store::Event;
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, NamespaceName, ObjectKey, Scope,
    annotations::KCP_PATH, apis, object,
};
use serde_json::{Value, json};

use crate::{
    plane::{Plane, PlaneChange, PlaneError, PlaneObject},
    remaining_content::set_conditions,
    runtime::{Controller, WorkOutcome},
};

use super::{ExportDirectory, fails, holds, kind_of};

/// Namespace of the secrets of identities that are created by default; kcp's name.
const NAMESPACE: &str = "kcp-system";
/// Annotation of an export that wants no endpoint slice.
const SKIP_SLICE: &str = "apiexports.apis.kcp.io/skip-endpointslice";
/// Key of the identity in its secret.
const KEY: &str = "key";
/// Bytes of a generated identity.
const KEY_BYTES: usize = 32;
/// Interval at which a broken identity is read again: its secret may have any name.
const RECHECK: Duration = Duration::from_secs(10);

/// Controller of exports.
pub struct ExportController {
    plane: Arc<Plane>,
    directory: Arc<dyn ExportDirectory>,
    exports: &'static Kind,
    slices: &'static Kind,
    secrets: &'static Kind,
    namespaces: &'static Kind,
}

impl ExportController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>, directory: Arc<dyn ExportDirectory>) -> Self {
        let core = |name| plane.table().kind(&GroupVersionKind::new("", "v1", name)).expect("the table has core/v1");
        let (secrets, namespaces) = (core("Secret"), core("Namespace"));
        let (exports, slices) =
            (kind_of(&plane, "v1alpha2", "APIExport"), kind_of(&plane, "v1alpha1", "APIExportEndpointSlice"));
        Self { plane, directory, exports, slices, secrets, namespaces }
    }

    /// Creates the secret of an identity unless it exists.
    async fn ensure_secret(&self, cluster: LogicalClusterId, name: &str) -> Result<(), PlaneError> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        self.plane.create(self.namespaces, cluster, namespace).await?;
        let mut key = [0; KEY_BYTES];
        self.plane.seams().entropy.fill(&mut key);
        // Text, so that it can be copied to another secret by hand.
        let text = BASE64_STANDARD.encode(BASE64_STANDARD.encode(key));
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {KEY: text},
            "metadata": {"name": name, "namespace": NAMESPACE},
        });
        self.plane.create_within(self.secrets, cluster, &secret).await.map(drop)
    }

    /// Names the secret and the path in the export.
    async fn complete(&self, export: &PlaneObject) -> Result<(), PlaneError> {
        let path = self.directory.path_of(export.key.cluster).map(|path| path.to_string());
        if export.object.pointer("/spec/identity/secretRef").is_none_or(Value::is_null) {
            self.ensure_secret(export.key.cluster, &export.key.name).await?;
        }
        let complete = |export: &mut Value| {
            let before = export.clone();
            object::set_annotation(export, KCP_PATH, path.clone());
            if export.pointer("/spec/identity/secretRef").is_none_or(Value::is_null) {
                let name = object::name(export).to_owned();
                export["spec"]["identity"]["secretRef"] = json!({"namespace": NAMESPACE, "name": name});
            }
            if *export == before { PlaneChange::Keep } else { PlaneChange::Write(None) }
        };
        self.plane.change(self.exports, &export.key, complete).await.map(drop)
    }

    /// Returns the identity in the secret of an export.
    async fn identity(&self, export: &PlaneObject) -> Result<Result<String, String>, PlaneError> {
        let text =
            |key: &str| export.object.pointer(&format!("/spec/identity/secretRef/{key}")).and_then(Value::as_str);
        let (namespace, name) = (text("namespace").unwrap_or_default(), text("name").unwrap_or_default());
        let (Ok(scope), Ok(parsed)) = (namespace.parse::<NamespaceName>(), name.parse()) else {
            return Ok(Err(format!("secret \"{namespace}/{name}\" has no valid name")));
        };
        let key = ObjectKey {
            cluster: export.key.cluster,
            resource: self.secrets.group_resource(),
            scope: Scope::Namespace(scope),
            name: parsed,
        };
        let Some(secret) = self.plane.get(&key).await? else {
            return Ok(Err(format!("secret \"{namespace}/{name}\" not found")));
        };
        let data = secret.object.pointer("/data/key").and_then(Value::as_str).unwrap_or_default();
        Ok(match BASE64_STANDARD.decode(data) {
            Ok(key) if !key.is_empty() => Ok(apis::identity_of(&key)),
            _ => Err(format!("secret \"{namespace}/{name}\" has no data at {KEY}")),
        })
    }

    async fn write_identity(&self, export: &PlaneObject) -> Result<WorkOutcome, PlaneError> {
        let (identity, now) = (self.identity(export).await?, self.plane.seams().now_text());
        let mut is_valid = false;
        let write = |export: &mut Value| {
            let before = export.clone();
            let known = export.pointer("/status/identityHash").and_then(Value::as_str).unwrap_or_default().to_owned();
            let failure = match &identity {
                Ok(hash) if known.is_empty() => {
                    export["status"]["identityHash"] = hash.clone().into();
                    None
                }
                Ok(hash) if *hash == known => None,
                Ok(hash) => Some(format!(
                    "hash mismatch: identity secret hash \"{hash}\" must match status.identityHash \"{known}\""
                )),
                Err(why) => Some(why.clone()),
            };
            is_valid = failure.is_none();
            let condition = match failure {
                None => holds("IdentityValid"),
                Some(why) => fails("IdentityValid", "IdentityVerificationFailed", &why),
            };
            set_conditions(export, [condition], &now);
            if *export == before { PlaneChange::Keep } else { PlaneChange::Write(Some("status")) }
        };
        self.plane.change(self.exports, &export.key, write).await?;
        Ok(if is_valid { WorkOutcome::Done } else { WorkOutcome::RequeueAfter(RECHECK) })
    }

    async fn ensure_slice(&self, export: &PlaneObject) -> Result<(), PlaneError> {
        if object::annotation(&export.object, SKIP_SLICE).is_some() {
            return Ok(());
        }
        let (cluster, name) = (export.key.cluster, export.key.name.clone());
        let key = ObjectKey::cluster_scoped(cluster, self.slices.group_resource(), name.clone());
        if self.plane.get(&key).await?.is_some() {
            return Ok(());
        }
        let mut reference = json!({"name": name.as_str()});
        if let Some(path) = self.directory.path_of(cluster) {
            reference["path"] = path.to_string().into();
        }
        let slice = json!({
            "apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIExportEndpointSlice",
            "metadata": {
                "name": name.as_str(),
                "ownerReferences": [{
                    "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIExport", "name": name.as_str(),
                    "uid": object::meta_text(&export.object, "uid"),
                }],
            },
            "spec": {"export": reference},
        });
        self.plane.create(self.slices, cluster, slice).await.map(drop)
    }
}

impl Controller for ExportController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "api-exports"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.exports.group_resource(), self.secrets.group_resource()]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        if event.key.resource == self.exports.group_resource() {
            return vec![event.key.clone()];
        }
        // Those that are created by default have the name of their export.
        let is_identity = event.key.namespace().is_some_and(|namespace| namespace.as_str() == NAMESPACE);
        let exports = self.exports.group_resource();
        let key = || ObjectKey::cluster_scoped(event.key.cluster, exports, event.key.name.clone());
        is_identity.then(key).into_iter().collect()
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let is_alive = |found: &PlaneObject| !object::is_deleting(&found.object);
            let Some(export) = self.plane.get_reconciled(key).await?.filter(is_alive) else {
                return Ok(WorkOutcome::Done);
            };
            self.complete(&export).await?;
            self.ensure_slice(&export).await?;
            let Some(export) = self.plane.get(key).await? else { return Ok(WorkOutcome::Done) };
            self.write_identity(&export).await
        })
    }
}
