//! Names that custom resources cannot have: built-in resources and the server's own records have their keys in the
//! store.

use std::{collections::HashSet, sync::LazyLock};

use portolan_types::GroupResource;

use crate::KindTable;

/// Groups whose objects are this server's own, with all groups below them.
const OWN_GROUPS: [&str; 2] = ["portolan.dev", "kcp.io"];

/// Returns true for a group that belongs to the server, such as `internal.portolan.dev`.
pub fn is_own_group(group: &str) -> bool {
    let is_in = |own: &str| group.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    OWN_GROUPS.into_iter().any(is_in)
}

/// Returns true for a resource whose objects are those of a built-in kind, served or not, or the server's own records.
/// A definition of such a name serves nothing and has no instances.
pub fn is_builtin_resource(resource: &GroupResource) -> bool {
    static BUILTIN: LazyLock<HashSet<GroupResource>> = LazyLock::new(|| {
        let of_kind = |kind: &std::sync::Arc<crate::Kind>| [kind.group_resource(), kind.storage.group_resource()];
        KindTable::builtin().kinds().flat_map(of_kind).collect()
    });
    is_own_group(&resource.group) || BUILTIN.contains(resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_resources_and_the_servers_records_are_not_for_definitions() {
        for (group, resource, expected) in [
            ("rbac.authorization.k8s.io", "clusterroles", true),
            ("apiextensions.k8s.io", "customresourcedefinitions", true),
            ("networking.k8s.io", "ipaddresses", true),
            ("events.k8s.io", "events", true),
            ("", "events", true),
            ("portolan.dev", "nodeports", true),
            ("internal.portolan.dev", "rooms", true),
            ("tenancy.kcp.io", "workspaces", true),
            ("rbac.authorization.k8s.io", "boats", false),
            ("notportolan.dev", "rooms", false),
            ("gateway.networking.k8s.io", "gateways", false),
        ] {
            assert_eq!(is_builtin_resource(&GroupResource::new(group, resource)), expected, "{resource}.{group}");
        }
    }

    #[test]
    fn every_built_in_kind_keeps_its_keys() {
        for kind in KindTable::builtin().kinds() {
            assert!(is_builtin_resource(&kind.group_resource()), "{}", kind.group_resource());
            assert!(is_builtin_resource(&kind.storage.group_resource()), "{}", kind.storage.group_resource());
        }
    }
}
