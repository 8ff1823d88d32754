//! Descriptions of Kubernetes' types, from the schemas of `k8s-openapi`.

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
use portolan_apiserver::hooks::TextSource;
use portolan_kinds::openapi::{OwnTexts, Texts};
use serde_json::{Map, Value};

/// Source of the descriptions of Kubernetes' types and Portolan's own.
pub(crate) struct KubernetesTexts;

impl TextSource for KubernetesTexts {
    fn read(&self) -> Box<dyn Texts> {
        Box::new(TypeDescriptions { kubernetes: definitions(), own: OwnTexts::read() })
    }
}

/// Descriptions in memory, while OpenAPI documents are built.
struct TypeDescriptions {
    /// JSON schemas by type name.
    kubernetes: Map<String, Value>,
    own: OwnTexts,
}

impl Texts for TypeDescriptions {
    fn text(&self, type_name: &str, field: Option<&str>) -> Option<&str> {
        let Some(schema) = self.kubernetes.get(type_name) else {
            return self.own.text(type_name, field);
        };
        match field {
            Some(field) => schema.get("properties")?.get(field),
            None => Some(schema),
        }?
        .get("description")?
        .as_str()
    }
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

#[cfg(test)]
mod tests {
    use portolan_kinds::KindTable;

    use super::*;

    #[test]
    fn every_kind_that_is_served_is_described() {
        let (texts, table) = (KubernetesTexts.read(), KindTable::builtin());
        for kind in table.kinds() {
            let name = &table.get(kind.schema).name;
            assert!(texts.text(name, None).is_some(), "{name} of {:?}", kind.gvk);
        }
    }

    #[test]
    fn fields_are_described() {
        let texts = KubernetesTexts.read();
        for (name, field, part) in [
            ("io.k8s.api.apps.v1.DeploymentSpec", "replicas", "desired pods"),
            ("io.k8s.api.core.v1.Container", "livenessProbe", "Periodic probe of container liveness"),
            ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "finalizers", "before the object is deleted"),
            ("dev.portolan.v1alpha1.PlacementPolicySpec", "spread", "spread over the values of labels"),
        ] {
            let text = texts.text(name, Some(field)).unwrap_or_default();
            assert!(text.contains(part), "{name}.{field}: {text}");
        }
    }
}
