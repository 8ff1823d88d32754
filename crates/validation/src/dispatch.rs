//! Tables that map a kind to its rules: one per API group.

use super::{
    admission, apiextensions, apiregistration, apis, apps, autoscaling, batch, certificates, core, discovery,
    flowcontrol, networking, policy, portolan, rbac, resource, rules::Rules, small, storage,
};
use portolan_kinds::Kind;

static PLAIN: Rules = Rules::PLAIN;
static CUSTOM: Rules = Rules::CUSTOM;

/// Returns the rules of a kind.
pub(super) fn rules_of(kind: &Kind) -> &'static Rules {
    if !kind.is_typed() {
        return &CUSTOM;
    }
    let group: &'static [(&str, Rules)] = match &*kind.gvk.group {
        "" => core::RULES,
        "apps" => apps::RULES,
        "batch" => batch::RULES,
        "networking.k8s.io" => networking::RULES,
        "events.k8s.io" => core::EVENTS,
        "autoscaling" => autoscaling::RULES,
        "policy" => policy::RULES,
        "rbac.authorization.k8s.io" => rbac::RULES,
        "discovery.k8s.io" => discovery::RULES,
        "storage.k8s.io" => storage::RULES,
        "scheduling.k8s.io" => small::SCHEDULING,
        "coordination.k8s.io" => small::COORDINATION,
        "node.k8s.io" => small::NODE,
        "admissionregistration.k8s.io" => admission::RULES,
        "apiextensions.k8s.io" => apiextensions::RULES,
        "apiregistration.k8s.io" => apiregistration::RULES,
        "certificates.k8s.io" => certificates::RULES,
        "flowcontrol.apiserver.k8s.io" => flowcontrol::RULES,
        "resource.k8s.io" => resource::RULES,
        "portolan.dev" => portolan::RULES,
        "apis.kcp.io" => apis::RULES,
        "core.kcp.io" => portolan::CORE_KCP,
        "tenancy.kcp.io" => portolan::TENANCY,
        _ => &[],
    };
    group.iter().find(|(name, _)| *name == &*kind.gvk.kind).map_or(&PLAIN, |(_, rules)| rules)
}
