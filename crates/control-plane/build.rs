//! Writes the descriptions of Kubernetes' types, which are read from the schemas of `k8s-openapi`, as compressed JSON.
//! The crate's types themselves, a tenth of the binary with their schemas, are not linked into the server.

use std::{collections::BTreeMap, env, fs, io::Write as _, path::Path};

use flate2::{Compression, write::DeflateEncoder};
use k8s_openapi::{
    api::{
        admissionregistration::v1 as admission,
        apps::v1 as apps,
        authentication::v1 as authentication,
        authorization::v1 as authorization,
        autoscaling::{v1 as autoscaling_v1, v2 as autoscaling_v2},
        batch::v1 as batch,
        certificates::v1 as certificates,
        coordination::v1 as coordination,
        core::v1 as core,
        discovery::v1 as discovery,
        events::v1 as events,
        flowcontrol::v1 as flowcontrol,
        networking::v1 as networking,
        node::v1 as node,
        policy::v1 as policy,
        rbac::v1 as rbac,
        resource::v1 as resource,
        scheduling::v1 as scheduling,
        storage::v1 as storage,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions,
    apimachinery::pkg::apis::meta::v1 as meta,
    kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration,
    schemars::SchemaGenerator,
};
use serde_json::{Map, Value};

/// Descriptions of one type: of the type itself under the empty name, and of its fields.
type FieldTexts<'a> = BTreeMap<&'a str, &'a str>;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let schemas = definitions();
    let texts: BTreeMap<&str, FieldTexts<'_>> =
        schemas.iter().map(|(name, schema)| (name.as_str(), field_texts(schema))).collect();
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    serde_json::to_writer(&mut encoder, &texts).expect("texts are JSON");
    encoder.flush().expect("memory takes writes");
    let path = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("descriptions.json.deflate");
    fs::write(path, encoder.finish().expect("memory takes writes")).expect("OUT_DIR can be written");
}

fn field_texts(schema: &Value) -> FieldTexts<'_> {
    let own = schema.get("description").and_then(Value::as_str);
    let fields = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let fields = fields.filter_map(|(name, field)| Some((name.as_str(), field.get("description")?.as_str()?)));
    fields.chain(own.map(|text| ("", text))).collect()
}

/// Adds the schemas of the named types and of all types in them.
macro_rules! schemas_of {
    ($generator:ident: $($module:ident { $($name:ident)* })*) => {
        $($($generator.subschema_for::<$module::$name>();)*)*
    };
}

/// Returns the schemas of everything that the API serves.
fn definitions() -> Map<String, Value> {
    let mut generator = SchemaGenerator::default();
    schemas_of! {
        generator:
        core {
            ComponentStatus ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim
            Pod PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount Binding
        }
        admission {
            MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration
            ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration
        }
        apiextensions { CustomResourceDefinition }
        apiregistration { APIService }
        apps { ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet }
        authentication { SelfSubjectReview TokenRequest TokenReview }
        authorization {
            LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview
        }
        autoscaling_v1 { HorizontalPodAutoscaler Scale }
        autoscaling_v2 { HorizontalPodAutoscaler }
        batch { CronJob Job }
        certificates { CertificateSigningRequest }
        coordination { Lease }
        discovery { EndpointSlice }
        events { Event }
        flowcontrol { FlowSchema PriorityLevelConfiguration }
        networking { IPAddress Ingress IngressClass NetworkPolicy ServiceCIDR }
        node { RuntimeClass }
        policy { Eviction PodDisruptionBudget }
        rbac { ClusterRole ClusterRoleBinding Role RoleBinding }
        resource { DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice }
        scheduling { PriorityClass }
        storage { CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass }
        meta { APIGroup APIGroupList APIResourceList DeleteOptions Status }
    }
    generator.take_definitions(false)
}
