//! Groups, versions, kinds and resources, in Kubernetes' sense.

use std::{fmt, str::FromStr, sync::Arc};

use crate::names::InvalidName;

/// Group and version, as `apps/v1`; the core group is the empty string and written `v1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// API group, empty for core.
    pub group: Arc<str>,
    /// Version within the group.
    pub version: Arc<str>,
}

impl GroupVersion {
    /// Makes it from its two parts.
    pub fn new(group: impl Into<Arc<str>>, version: impl Into<Arc<str>>) -> Self {
        Self { group: group.into(), version: version.into() }
    }

    /// Returns a kind in this group and version.
    pub fn kind(&self, kind: impl Into<Arc<str>>) -> GroupVersionKind {
        GroupVersionKind { group: self.group.clone(), version: self.version.clone(), kind: kind.into() }
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.group {
            "" => f.write_str(&self.version),
            group => write!(f, "{group}/{}", self.version),
        }
    }
}

impl FromStr for GroupVersion {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let (group, version) = text.split_once('/').unwrap_or(("", text));
        if version.is_empty() || version.contains('/') {
            return Err(InvalidName::new(text, "unexpected GroupVersion string"));
        }
        Ok(Self::new(group, version))
    }
}

/// Kind in one version of its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// API group, empty for core.
    pub group: Arc<str>,
    /// Version within the group.
    pub version: Arc<str>,
    /// Kind, in upper camel case.
    pub kind: Arc<str>,
}

impl GroupVersionKind {
    /// Makes it from its three parts.
    pub fn new(group: impl Into<Arc<str>>, version: impl Into<Arc<str>>, kind: impl Into<Arc<str>>) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// Parses `apiVersion` and `kind` of an object.
    ///
    /// # Errors
    /// Fails if `api_version` is not one or two segments separated by `/`.
    pub fn parse(api_version: &str, kind: &str) -> Result<Self, InvalidName> {
        Ok(api_version.parse::<GroupVersion>()?.kind(kind))
    }

    /// Returns group and version.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion { group: self.group.clone(), version: self.version.clone() }
    }

    /// Returns group and kind.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.group.clone(), kind: self.kind.clone() }
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Kind={}", self.group_version(), self.kind)
    }
}

/// Kind in any version of its group. Written `Deployment.apps`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    /// API group, empty for core.
    pub group: Arc<str>,
    /// Kind, in upper camel case.
    pub kind: Arc<str>,
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.group {
            "" => f.write_str(&self.kind),
            group => write!(f, "{}.{group}", self.kind),
        }
    }
}

/// Resource in any version of its group, as storage and authorization use it. Written `deployments.apps`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// API group, empty for core.
    pub group: Arc<str>,
    /// Plural resource name, lower case.
    pub resource: Arc<str>,
}

impl GroupResource {
    /// Makes it from its two parts.
    pub fn new(group: impl Into<Arc<str>>, resource: impl Into<Arc<str>>) -> Self {
        Self { group: group.into(), resource: resource.into() }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.group {
            "" => f.write_str(&self.resource),
            group => write!(f, "{}.{group}", self.resource),
        }
    }
}

/// Resource in one version of its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionResource {
    /// API group, empty for core.
    pub group: Arc<str>,
    /// Version within the group.
    pub version: Arc<str>,
    /// Plural resource name, lower case.
    pub resource: Arc<str>,
}

impl GroupVersionResource {
    /// Returns group and resource.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.group.clone(), resource: self.resource.clone() }
    }
}
