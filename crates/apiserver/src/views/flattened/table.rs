//! Fields of Kubernetes' types by which objects name namespaces, cluster-scoped objects and identities: the names that
//! a flattened view rewrites. Names of objects within a namespace stay as they are.
//!
//! A test walks all types of the kinds that a view shows and fails on a field that looks like a reference and is
//! neither here nor in the test's list of those that are none.

use std::{
    collections::{HashMap, HashSet},
    sync::LazyLock,
};

use portolan_kinds::{KindTable, Type, TypeId};

/// Object that a field refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlatReferent {
    /// A namespace, by name.
    Namespace,
    /// Namespaces, by a list of names.
    Namespaces,
    /// Namespaces, by a label selector.
    NamespaceSelector,
    /// A cluster-scoped object, by name.
    ClusterScoped,
    /// An object by kind, name and namespace, with a group or an API version.
    Typed,
    /// A user: a service account or any other.
    User,
    /// Groups of users, some of which are those of service accounts of a namespace.
    Groups,
    /// A user, a group or a service account.
    Subject,
    /// A rule by groups, resources and names of objects.
    Rule,
}

/// Field of a type.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlatReference {
    /// End of the OpenAPI name of the type, such as `core.v1.ObjectReference`.
    pub(super) of: &'static str,
    /// Name of the field; empty if the whole value is the reference.
    pub(super) field: &'static str,
    pub(super) referent: FlatReferent,
}

const fn reference(of: &'static str, field: &'static str, referent: FlatReferent) -> FlatReference {
    FlatReference { of, field, referent }
}

/// References by type.
pub(super) static REFERENCES: [FlatReference; 29] = [
    reference("meta.v1.ObjectMeta", "namespace", FlatReferent::Namespace),
    reference("meta.v1.OwnerReference", "", FlatReferent::Typed),
    reference("core.v1.ObjectReference", "", FlatReferent::Typed),
    reference("core.v1.TypedLocalObjectReference", "", FlatReferent::Typed),
    reference("core.v1.TypedObjectReference", "", FlatReferent::Typed),
    reference("rbac.v1.RoleRef", "", FlatReferent::Typed),
    reference("rbac.v1.Subject", "", FlatReferent::Subject),
    reference("rbac.v1.PolicyRule", "", FlatReferent::Rule),
    reference("admissionregistration.v1.NamedRuleWithOperations", "", FlatReferent::Rule),
    reference("core.v1.SecretReference", "namespace", FlatReferent::Namespace),
    reference("core.v1.AzureFilePersistentVolumeSource", "secretNamespace", FlatReferent::Namespace),
    reference("core.v1.GlusterfsPersistentVolumeSource", "endpointsNamespace", FlatReferent::Namespace),
    reference("core.v1.PersistentVolumeClaimSpec", "volumeName", FlatReferent::ClusterScoped),
    reference("core.v1.PodAffinityTerm", "namespaces", FlatReferent::Namespaces),
    reference("core.v1.PodAffinityTerm", "namespaceSelector", FlatReferent::NamespaceSelector),
    reference("networking.v1.NetworkPolicyPeer", "namespaceSelector", FlatReferent::NamespaceSelector),
    reference("admissionregistration.v1.ServiceReference", "namespace", FlatReferent::Namespace),
    reference("admissionregistration.v1.ParamRef", "namespace", FlatReferent::Namespace),
    reference("admissionregistration.v1.MatchResources", "namespaceSelector", FlatReferent::NamespaceSelector),
    reference("admissionregistration.v1.ValidatingWebhook", "namespaceSelector", FlatReferent::NamespaceSelector),
    reference("admissionregistration.v1.MutatingWebhook", "namespaceSelector", FlatReferent::NamespaceSelector),
    reference("ValidatingAdmissionPolicyBindingSpec", "policyName", FlatReferent::ClusterScoped),
    reference("MutatingAdmissionPolicyBindingSpec", "policyName", FlatReferent::ClusterScoped),
    reference("certificates.v1.CertificateSigningRequestSpec", "username", FlatReferent::User),
    reference("certificates.v1.CertificateSigningRequestSpec", "groups", FlatReferent::Groups),
    reference("autoscaling.v1.CrossVersionObjectReference", "", FlatReferent::Typed),
    reference("autoscaling.v2.CrossVersionObjectReference", "", FlatReferent::Typed),
    reference("core.v1.StorageOSVolumeSource", "volumeNamespace", FlatReferent::Namespace),
    reference("core.v1.StorageOSPersistentVolumeSource", "volumeNamespace", FlatReferent::Namespace),
];

/// Kinds that are shown once, from the logical cluster of the export, with their groups: infrastructure that all
/// logical clusters share. Names of their objects are not rewritten.
pub(super) static SHOWN_ONCE: [(&str, &str, &str); 17] = [
    ("", "nodes", "Node"),
    ("", "componentstatuses", "ComponentStatus"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition"),
    ("apiregistration.k8s.io", "apiservices", "APIService"),
    ("flowcontrol.apiserver.k8s.io", "flowschemas", "FlowSchema"),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations", "PriorityLevelConfiguration"),
    ("networking.k8s.io", "ingressclasses", "IngressClass"),
    ("networking.k8s.io", "ipaddresses", "IPAddress"),
    ("networking.k8s.io", "servicecidrs", "ServiceCIDR"),
    ("node.k8s.io", "runtimeclasses", "RuntimeClass"),
    ("resource.k8s.io", "deviceclasses", "DeviceClass"),
    ("resource.k8s.io", "resourceslices", "ResourceSlice"),
    ("scheduling.k8s.io", "priorityclasses", "PriorityClass"),
    ("storage.k8s.io", "csidrivers", "CSIDriver"),
    ("storage.k8s.io", "csinodes", "CSINode"),
    ("storage.k8s.io", "storageclasses", "StorageClass"),
    ("storage.k8s.io", "volumeattributesclasses", "VolumeAttributesClass"),
];

/// References of the types of the built-in table.
pub(super) struct TypeReferences {
    by_type: HashMap<TypeId, Vec<FlatReference>>,
    /// Types that have references, in themselves or below.
    reaching: HashSet<TypeId>,
}

impl TypeReferences {
    /// Returns the references of the built-in types. The first call finds them.
    pub(super) fn builtin() -> &'static Self {
        static BUILTIN: LazyLock<TypeReferences> = LazyLock::new(|| TypeReferences::of(KindTable::builtin()));
        &BUILTIN
    }

    fn of(table: &KindTable) -> Self {
        let of_type =
            |of: &Type| REFERENCES.iter().filter(|own| of.name.ends_with(own.of)).copied().collect::<Vec<_>>();
        let mut by_type: HashMap<_, _> = table.types().map(|(id, of)| (id, of_type(of))).collect();
        by_type.retain(|_, own| !own.is_empty());
        let mut reaching: HashSet<TypeId> = by_type.keys().copied().collect();
        loop {
            let reaches =
                |of: &Type| of.fields.iter().filter_map(|field| field.kind.message()).any(|id| reaching.contains(&id));
            let more: Vec<_> =
                table.types().filter(|(id, of)| !reaching.contains(id) && reaches(of)).map(|(id, _)| id).collect();
            if more.is_empty() {
                return Self { by_type, reaching };
            }
            reaching.extend(more);
        }
    }

    /// Returns the references in a type itself; `None` if there is none in it or below.
    pub(super) fn of_type(&self, id: TypeId) -> Option<&[FlatReference]> {
        self.reaching.contains(&id).then(|| self.by_type.get(&id).map_or(&[][..], Vec::as_slice))
    }
}

/// Returns true for a kind that is shown once.
pub(super) fn is_kind_shown_once(group: &str, kind: &str) -> bool {
    SHOWN_ONCE.iter().any(|(own, _, name)| *own == group && *name == kind)
}
