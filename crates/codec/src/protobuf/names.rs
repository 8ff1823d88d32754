//! Go's names of fields, for errors.

/// Names that differ from the JSON name with a capital letter, in every message.
const OTHERS: &[(&str, &str)] = &[
    ("awsElasticBlockStore", "AWSElasticBlockStore"),
    ("bool", "BoolValue"),
    ("bools", "BoolValues"),
    ("cephfs", "CephFS"),
    ("chapAuthDiscovery", "DiscoveryCHAPAuth"),
    ("chapAuthSession", "SessionCHAPAuth"),
    ("cidr", "CIDR"),
    ("cidrs", "CIDRs"),
    ("diskURI", "DataDiskURI"),
    ("externalID", "DoNotUseExternalID"),
    ("int", "IntValue"),
    ("ints", "IntValues"),
    ("ips", "IPs"),
    ("lastState", "LastTerminationState"),
    ("reportingComponent", "ReportingController"),
    ("storageos", "StorageOS"),
    ("string", "StringValue"),
    ("strings", "StringValues"),
    ("wwids", "WWIDs"),
];

/// Names of single types.
const OF_TYPES: &[(&str, &str, &str)] = &[
    ("RBDVolumeSource", "image", "RBDImage"),
    ("RBDPersistentVolumeSource", "image", "RBDImage"),
    ("RBDVolumeSource", "monitors", "CephMonitors"),
    ("RBDPersistentVolumeSource", "monitors", "CephMonitors"),
    ("RBDVolumeSource", "pool", "RBDPool"),
    ("RBDPersistentVolumeSource", "pool", "RBDPool"),
    ("RBDVolumeSource", "user", "RadosUser"),
    ("RBDPersistentVolumeSource", "user", "RadosUser"),
    ("GlusterfsVolumeSource", "endpoints", "EndpointsName"),
    ("GlusterfsPersistentVolumeSource", "endpoints", "EndpointsName"),
    ("PodSpec", "serviceAccount", "DeprecatedServiceAccount"),
    ("DeviceAttribute", "version", "VersionValue"),
    ("DeviceAttribute", "versions", "VersionValues"),
];

/// Initialisms that Go capitalizes at the start of a name.
const INITIALS: &[&str] = &[
    "api", "ca", "cel", "csi", "dns", "fc", "fs", "gce", "gid", "gmsa", "grpc", "http", "id", "ip", "iqn", "iscsi",
    "json", "nfs", "os", "pd", "pkix", "qos", "rbd", "ssl", "tcp", "tls", "ttl", "tty", "uid", "url",
];

/// Returns Go's name of a field of a type from its name in JSON.
pub(super) fn go_field(owner: &str, field: &str) -> String {
    let of_type = OF_TYPES.iter().find(|(name, own, _)| (*name, *own) == (owner, field));
    let other = OTHERS.iter().find(|(own, _)| *own == field);
    if let Some(name) = of_type.map(|(.., name)| *name).or(other.map(|(_, name)| *name)) {
        return name.into();
    }
    if field == "metadata" {
        return if owner.ends_with("List") { "ListMeta".into() } else { "ObjectMeta".into() };
    }
    if let Some(rest) = field.strip_prefix("seLinux") {
        return format!("SELinux{rest}");
    }
    let field = field.trim_start_matches('$');
    if let Some(rest) = field.strip_prefix("x-kubernetes-") {
        let words = rest.split('-').map(capital);
        return format!("X{}", words.collect::<String>());
    }
    let begins = |initials: &&&str| {
        field.strip_prefix(**initials).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_lowercase()))
    };
    match INITIALS.iter().find(begins) {
        Some(initials) => format!("{}{}", initials.to_ascii_uppercase(), &field[initials.len()..]),
        None => capital(field),
    }
}

fn capital(text: &str) -> String {
    match text.split_at_checked(1) {
        Some((first, rest)) => first.to_ascii_uppercase() + rest,
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_called_as_in_go() {
        for (owner, field, expected) in [
            ("ConfigMap", "metadata", "ObjectMeta"),
            ("ConfigMapList", "metadata", "ListMeta"),
            ("ConfigMap", "binaryData", "BinaryData"),
            ("ObjectMeta", "uid", "UID"),
            ("PodSpec", "hostIPC", "HostIPC"),
            ("PodSpec", "serviceAccount", "DeprecatedServiceAccount"),
            ("Subject", "serviceAccount", "ServiceAccount"),
            ("PodSpec", "dnsPolicy", "DNSPolicy"),
            ("Container", "image", "Image"),
            ("RBDVolumeSource", "image", "RBDImage"),
            ("ImageVolumeSource", "fsType", "FSType"),
            ("Probe", "httpGet", "HTTPGet"),
            ("Job", "ttlSecondsAfterFinished", "TTLSecondsAfterFinished"),
            ("PodSecurityContext", "seLinuxOptions", "SELinuxOptions"),
            ("JSONSchemaProps", "x-kubernetes-list-map-keys", "XListMapKeys"),
            ("JSONSchemaProps", "$ref", "Ref"),
            ("JSONSchemaProps", "id", "ID"),
            ("NodeSpec", "podCIDRs", "PodCIDRs"),
            ("HostAlias", "ip", "IP"),
            ("PodIP", "ipFamilies", "IPFamilies"),
            ("Deployment", "spec", "Spec"),
            ("Endpoints", "subsets", "Subsets"),
        ] {
            assert_eq!(go_field(owner, field), expected, "{owner}.{field}");
        }
    }
}
