//! Names of downstream namespaces.

use portolan_types::{LogicalClusterId, NamespaceName, Uid, annotations, object, placement::NamespaceMapping};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Longest readable part of a hashed name: with a dash and 26 characters of hash it fills the 63 of a DNS label.
const READABLE: usize = 36;
/// Hashed into every name first, so that another scheme gives other names. This scheme is for control planes without a
/// name, which are older than names and whose copies stay where they are,
const UNNAMED: &[u8] = b"portolan.dev/namespace/v1";
/// and of all others.
const NAMED: &[u8] = b"portolan.dev/namespace/v2";
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Hashed into the part that distinguishes the namespaces of one logical cluster from all others.
const TENANT: &[u8] = b"portolan.dev/tenant/v1";

/// Annotation of a namespace downstream: `true` lets Portolan use it although it did not create it. Who may change the
/// namespace there releases it. It is never deleted.
pub const ADOPTABLE_NAMESPACE: &str = "sync.portolan.dev/adoptable";

/// Namespace that is never synced to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("namespace {0} belongs to the physical cluster itself")]
pub struct ReservedNamespace(NamespaceName);

/// Returns the downstream namespace for `namespace` of the logical cluster `cluster` of the control plane `plane`.
///
/// Hashed names are `<readable>-<hash>`: the hash is 128 bits over the three parts, each with its length before it,
/// equal on every physical cluster, and of no other control plane: all of them count their logical clusters alike.
/// Those without a name have equal ones. The readable part is for people only. No result begins with `kube-`.
///
/// # Errors
/// With `Identity`, for names that Kubernetes keeps to itself.
pub fn downstream_namespace(
    mapping: NamespaceMapping,
    plane: Option<&str>,
    cluster: LogicalClusterId,
    namespace: &NamespaceName,
) -> Result<NamespaceName, ReservedNamespace> {
    match mapping {
        NamespaceMapping::Identity if namespace.starts_with("kube-") => Err(ReservedNamespace(namespace.clone())),
        NamespaceMapping::Identity => Ok(namespace.clone()),
        NamespaceMapping::Hashed => Ok(hashed(plane, &cluster.to_string(), namespace)),
    }
}

fn hashed(plane: Option<&str>, cluster: &str, namespace: &str) -> NamespaceName {
    let reserved = if namespace.starts_with("kube-") { "ns-" } else { "" };
    let readable: String = reserved.chars().chain(namespace.chars()).take(READABLE).collect();
    let hash = match plane {
        None => hash128(UNNAMED, &[cluster, namespace]),
        Some(plane) => hash128(NAMED, &[plane, cluster, namespace]),
    };
    let name = format!("{}-{hash}", readable.trim_end_matches('-'));
    name.parse().expect("the start of a DNS label, a dash and base 32 make a DNS label of at most 63 bytes")
}

/// Returns a label value that all namespaces of a logical cluster of a control plane have, and no others.
pub(crate) fn tenant_hash(plane: Option<&str>, cluster: &str) -> String {
    hash128(TENANT, &[plane.unwrap_or_default(), cluster])
}

/// 128 bits of SHA-256 over the domain and the parts, each after its length, in 26 base-32 digits.
fn hash128(domain: &[u8], parts: &[&str]) -> String {
    let mut hasher = Sha256::new_with_prefix(domain);
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    base32(&hasher.finalize()[..16])
}

fn base32(bytes: &[u8]) -> String {
    let (mut text, mut rest, mut bits) = (String::new(), 0_u32, 0_u32);
    for byte in bytes {
        rest = (rest << 8) | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(BASE32[((rest >> bits) & 31) as usize]));
        }
        rest &= (1 << bits) - 1;
    }
    if bits > 0 {
        text.push(char::from(BASE32[((rest << (5 - bits)) & 31) as usize]));
    }
    text
}

/// Identity of a downstream namespace: the value of its annotation `sync.portolan.dev/identity`. The syncer never uses
/// or removes a namespace without it, or one of another control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceIdentity {
    /// Text form of the logical cluster id.
    pub cluster: String,
    /// Upstream namespace.
    pub namespace: String,
    /// Uid of the `PhysicalCluster` that made it.
    pub physical: Uid,
    /// Name of the control plane that created it, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plane: Option<String>,
}

impl NamespaceIdentity {
    /// Reads the identity of a downstream namespace.
    pub fn of(namespace: &Value) -> Option<Self> {
        serde_json::from_str(object::annotation(namespace, annotations::DOWN_IDENTITY)?).ok()
    }

    /// Returns the labels and annotations that carry the identity.
    pub fn to_metadata(&self) -> Value {
        let identity = serde_json::to_string(self).expect("strings serialize");
        serde_json::json!({
            "labels": {(annotations::DOWN_CLUSTER): self.cluster, (annotations::DOWN_NAMESPACE): self.namespace},
            "annotations": {(annotations::DOWN_IDENTITY): identity},
        })
    }

    /// Creates the downstream namespace of this identity.
    pub fn to_namespace(&self, name: &NamespaceName) -> Value {
        let mut metadata = self.to_metadata();
        metadata["name"] = name.as_str().into();
        metadata["labels"]["pod-security.kubernetes.io/enforce"] = "baseline".into();
        serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> NamespaceName {
        text.parse().unwrap()
    }

    #[test]
    fn hashed_names_are_readable_and_never_reserved() {
        let hashed = |ns: &str| {
            downstream_namespace(NamespaceMapping::Hashed, Some("p"), LogicalClusterId::ROOT, &name(ns))
                .unwrap()
                .to_string()
        };
        for (namespace, start) in [
            ("default", "default-"),
            ("kube-system", "ns-kube-system-"),
            ("a-namespace-that-is-longer-than-the-rea-dable-part-may-be", "a-namespace-that-is-longer-than-the-"),
        ] {
            let name = hashed(namespace);
            assert!(name.starts_with(start), "{name}");
            assert!(name.len() <= 63 && !name.starts_with("kube-"), "{name}");
        }
        assert_eq!(hashed("default"), hashed("default"), "equal on every physical cluster");
        let other =
            downstream_namespace(NamespaceMapping::Hashed, Some("p"), LogicalClusterId::new(7), &name("default"))
                .unwrap();
        assert_ne!(hashed("default"), other.as_str(), "another logical cluster has another namespace");
        let other = downstream_namespace(NamespaceMapping::Hashed, Some("q"), LogicalClusterId::ROOT, &name("default"))
            .unwrap();
        assert_ne!(hashed("default"), other.as_str(), "and so has the same one of another control plane");
    }

    /// Computed independently, with Python's `hashlib` and `base64`: copies on physical clusters are found again only
    /// there.
    #[test]
    fn names_never_change() {
        for (plane, expected) in
            [(None, "shop-itbr53qwdpjcaa7eruemr4qzl4"), (Some("plane"), "shop-nufdmkzv627olvhfkjv4jh3lsa")]
        {
            let mapped =
                downstream_namespace(NamespaceMapping::Hashed, plane, LogicalClusterId::ROOT, &name("shop")).unwrap();
            assert_eq!(mapped.as_str(), expected, "{plane:?}");
        }
    }

    #[test]
    fn copies_of_unnamed_control_planes_stay_theirs() {
        let text = r#"{"cluster":"root","namespace":"shop","physical":"east"}"#;
        let identity: NamespaceIdentity = serde_json::from_str(text).unwrap();
        assert_eq!((identity.plane.as_deref(), serde_json::to_string(&identity).unwrap()), (None, text.to_owned()));
    }

    #[test]
    fn identity_keeps_names_but_not_those_of_kubernetes() {
        let identity =
            |ns| downstream_namespace(NamespaceMapping::Identity, Some("p"), LogicalClusterId::ROOT, &name(ns));
        assert_eq!(identity("shop"), Ok(name("shop")));
        assert_eq!(identity("kube-system"), Err(ReservedNamespace(name("kube-system"))));
    }

    #[test]
    fn base32_is_rfc_4648_in_lower_case_without_padding() {
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
        assert_eq!(base32(&[0xff; 16]).len(), 26);
    }

    proptest! {
        #[test]
        fn every_namespace_maps_to_a_namespace(text in "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", id in 2_u64..) {
            let mapped = downstream_namespace(NamespaceMapping::Hashed, Some("p"), LogicalClusterId::new(id), &name(&text)).unwrap();
            prop_assert!(mapped.parse::<NamespaceName>().is_ok());
        }

        #[test]
        fn parts_do_not_run_into_each_other(a in "[a-z]{1,5}", b in "[a-z]{1,5}") {
            prop_assert_ne!(hash128(NAMED, &[&a, &b]), hash128(NAMED, &[&format!("{a}{b}"), ""]));
        }
    }
}
