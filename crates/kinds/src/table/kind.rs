//! Kinds: the objects that can be read and written under a resource name.

use std::sync::Arc;

use portolan_types::{GroupKind, GroupResource, GroupVersion, GroupVersionKind, GroupVersionResource};
use serde_json::Value;

use super::TypeId;
use crate::custom::Content;

/// A resource in one version.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Group, version and kind.
    pub gvk: GroupVersionKind,
    /// The plural, as in URLs.
    pub resource: Arc<str>,
    /// The singular, as typed on a command line.
    pub singular: Arc<str>,
    /// The kind of lists, `None` for kinds that cannot be listed (reviews, bindings).
    pub list_kind: Option<Arc<str>>,
    /// Short names for command lines.
    pub short_names: Box<[Arc<str>]>,
    /// Categories, such as `all`.
    pub categories: Box<[Arc<str>]>,
    /// Objects live in a namespace.
    pub namespaced: bool,
    /// True if Portolan serves the kind. Others are in the table so that their types can be decoded.
    pub served: bool,
    /// Verbs, sorted as discovery shows them.
    pub verbs: Box<[Arc<str>]>,
    /// Its definition is being deleted: no new objects are created, and existing ones are deleted.
    pub is_ending: bool,
    /// Subresources, sorted by name.
    pub subresources: Box<[Subresource]>,
    /// The type of an object, as fields are owned and documents describe it.
    pub schema: TypeId,
    /// The type by which bodies are read.
    pub decoded_as: TypeId,
    /// Content of its definition, if it has one. Otherwise its type determines defaults and validation.
    pub content: Option<Arc<Content>>,
    /// `metadata.generation` is kept.
    pub generation: bool,
    /// An update without resourceVersion is allowed.
    pub unconditional_update: bool,
    /// PUT to a name that does not exist creates the object.
    pub create_on_update: bool,
    /// The version and resource in which objects are kept. `events.k8s.io` keeps core events.
    pub storage: GroupVersionResource,
    /// Defaults which this kind alone has, besides those of its fields. Each applies when the object that holds the
    /// field is present and the field is absent.
    pub defaults: Box<[PlacedDefault]>,
}

/// A default of one kind's own.
#[derive(Clone, Debug)]
pub struct PlacedDefault {
    /// The way to the field, through objects only.
    pub path: Box<[Arc<str>]>,
    /// Default value.
    pub value: Value,
}

impl Kind {
    /// Returns group and version.
    pub fn group_version(&self) -> GroupVersion {
        self.gvk.group_version()
    }

    /// Returns group and plural, as in error messages.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.gvk.group.clone(), self.resource.clone())
    }

    /// Returns true for one of Kubernetes' own kinds, by its group.
    pub fn is_kubernetes(&self) -> bool {
        self.is_typed() && (!self.gvk.group.contains('.') || self.gvk.group.ends_with(".k8s.io"))
    }

    /// Returns true if the kind's type alone determines defaults and validation.
    pub fn is_typed(&self) -> bool {
        self.content.is_none()
    }

    /// Returns true if a delete is answered with the object, as kube-apiserver's storage of the kind is configured.
    pub fn returns_deleted(&self) -> bool {
        let core = ["namespaces", "persistentvolumeclaims", "persistentvolumes", "pods", "podtemplates"];
        let storage = ["csidrivers", "csinodes", "storageclasses", "volumeattachments", "volumeattributesclasses"];
        let resource = &*self.resource;
        match &*self.gvk.group {
            "" => core.contains(&resource) || matches!(resource, "resourcequotas" | "serviceaccounts" | "services"),
            "storage.k8s.io" => storage.contains(&resource),
            "resource.k8s.io" => true,
            _ => false,
        }
    }

    /// Returns true if a write of the status leaves metadata unchanged, which most kinds do not.
    pub fn status_keeps_metadata(&self) -> bool {
        matches!(
            (&*self.gvk.group, &*self.gvk.kind),
            ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy")
                | ("apiregistration.k8s.io", "APIService")
                | ("flowcontrol.apiserver.k8s.io", _)
                | ("networking.k8s.io", "ServiceCIDR")
                | ("resource.k8s.io", "ResourceClaim")
                | ("storage.k8s.io", "VolumeAttachment")
        )
    }

    /// Returns the kind that errors name: one kind under several groups has one internal name in kube-apiserver.
    pub fn called(&self) -> GroupKind {
        GroupKind { group: self.storage.group.clone(), kind: self.gvk.kind.clone() }
    }

    /// Returns true if the resource itself has this verb.
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|own| **own == *verb)
    }

    /// Returns true for kinds that are created and never stored: reviews and bindings.
    pub fn is_only_created(&self) -> bool {
        self.verbs.iter().all(|verb| **verb == *"create")
    }

    /// Returns the verbs that discovery shows.
    pub fn listed_verbs(&self) -> Vec<&str> {
        let is_listed = |verb: &&str| !self.is_ending || !matches!(*verb, "create" | "patch" | "update");
        self.verbs.iter().map(|verb| &**verb).filter(is_listed).collect()
    }

    /// Returns the subresource with this name, such as `status` or `proxy`.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|own| *own.name == *name)
    }
}

/// A subresource of a kind.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// Its name, the last part of the URL.
    pub name: Arc<str>,
    /// Kind that it accepts and returns; of another group version than its parent for `scale`, `eviction`, `token`.
    pub gvk: GroupVersionKind,
    /// Verbs, sorted.
    pub verbs: Box<[Arc<str>]>,
}
