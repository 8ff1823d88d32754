//! Which rules hold for which kind: one table per API group.

use super::{apps, batch, core, network, policy, portolan, rules::Rules, storage};
use crate::kinds::Kind;

static PLAIN: Rules = Rules::PLAIN;

/// The rules of a kind.
pub(super) fn rules_of(kind: &Kind) -> &'static Rules {
    let group: &'static [(&str, Rules)] = match &*kind.gvk.group {
        "" => core::RULES,
        "apps" => apps::RULES,
        "batch" => batch::RULES,
        "networking.k8s.io" => network::RULES,
        "events.k8s.io" => core::EVENTS,
        "autoscaling" => policy::AUTOSCALING,
        "policy" => policy::POLICY,
        "rbac.authorization.k8s.io" => policy::RBAC,
        "discovery.k8s.io" => network::DISCOVERY,
        "storage.k8s.io" => storage::RULES,
        "scheduling.k8s.io" => policy::SCHEDULING,
        "coordination.k8s.io" => policy::COORDINATION,
        "node.k8s.io" => policy::NODE,
        "portolan.dev" => portolan::RULES,
        "core.kcp.io" => portolan::CORE_KCP,
        "tenancy.kcp.io" => portolan::TENANCY,
        _ => &[],
    };
    group.iter().find(|(name, _)| *name == &*kind.gvk.kind).map_or(&PLAIN, |(_, rules)| rules)
}
