//! The address families of a Service, and those that a logical cluster cannot provide: it has addresses of one family
//! (Kubernetes' `initIPFamilyFields`).

use portolan_types::object::{Object, child_mut};
use serde_json::{Value, json};

use super::allocation::{spec_list, spec_text};
use portolan_kinds::field::Errors;
use portolan_validation::service_addresses;

const FAMILIES: &str = "ipFamilies";
const POLICY: &str = "ipFamilyPolicy";
const SINGLE: &str = "SingleStack";
const BOTH: &str = "RequireDualStack";

/// Fills in families and their policy up to the first error. That is reported alone: kube-apiserver allocates before it
/// validates the rest.
pub(crate) fn settle(old: Option<&Value>, new: &mut Value) -> Errors {
    let mut errors = Errors::default();
    if spec_text(new, "type") == "ExternalName" || old.is_some_and(|old| keeps_two_families(old, new)) {
        return errors;
    }
    choose_policy(old, new);
    service_addresses(old.unwrap_or(&Value::Null), new, &mut errors);
    if !errors.is_empty() {
        return errors;
    }
    if let Some(old) = old {
        releases(old, new, &mut errors);
    }
    counts(new, &mut errors);
    families_of_addresses(new, &mut errors);
    if !errors.is_empty() {
        return errors;
    }
    if is_headless(new) && !selects(new) {
        // Endpoints of other writers may have address families that the server does not.
        choose_families(new, spec_text(new, POLICY) != SINGLE);
        return errors;
    }
    not_configured(new, &mut errors);
    if errors.is_empty() {
        choose_families(new, false);
    }
    errors
}

fn is_headless(service: &Value) -> bool {
    spec_text(service, "clusterIP") == "None"
}

/// Returns true for a Service with a selector.
fn selects(service: &Value) -> bool {
    let selector = service.get("spec").and_then(|spec| spec.get("selector")).and_then(Value::as_object);
    selector.is_some_and(|selector| !selector.is_empty())
}

fn spec(service: &mut Value) -> Option<&mut Object> {
    Some(child_mut(service.as_object_mut()?, "spec"))
}

fn policy(service: &Value) -> &Value {
    service.get("spec").and_then(|spec| spec.get(POLICY)).unwrap_or(&Value::Null)
}

/// Returns true if a Service with a preference for two families keeps them.
fn keeps_two_families(old: &Value, new: &Value) -> bool {
    let prefers = |service: &Value| spec_text(service, POLICY) == "PreferDualStack";
    let same = |name: &str| spec_list(old, name) == spec_list(new, name);
    let same_type = spec_text(old, "type") == spec_text(new, "type");
    prefers(old) && prefers(new) && same_type && ["clusterIPs", FAMILIES].into_iter().all(same)
}

/// Defaults the policy to the old one. A new Service is single-stack, unless its endpoints are unknown.
fn choose_policy(old: Option<&Value>, new: &mut Value) {
    if !policy(new).is_null() {
        return;
    }
    let before = old.map(policy).filter(|policy| !policy.is_null()).cloned();
    let fresh = if is_headless(new) && !selects(new) { BOTH } else { SINGLE };
    if let Some(spec) = spec(new) {
        spec.insert(POLICY.into(), before.unwrap_or_else(|| fresh.into()));
    }
}

/// Drops the second family of a Service that becomes single-stack, unless the client names it; reports a fault then.
fn releases(old: &Value, new: &mut Value, errors: &mut Errors) {
    let single = spec_text(new, POLICY) == SINGLE;
    for (key, what) in [("clusterIPs", "cluster IP"), (FAMILIES, "IP family")] {
        let (was, is) = (spec_list(old, key), spec_list(new, key));
        if !single && !is.is_empty() && is.len() < was.len() {
            let why = format!("must be 'SingleStack' to release the secondary {what}");
            errors.invalid(format!("spec.{POLICY}"), policy(new), &why);
        }
        if single && was == is {
            let list = spec(new).and_then(|spec| spec.get_mut(key)).and_then(Value::as_array_mut);
            list.into_iter().for_each(|list| list.truncate(1));
        }
    }
}

/// Checks that a single-stack Service has at most one address and one family.
fn counts(new: &Value, errors: &mut Errors) {
    for (key, what) in [("clusterIPs", "cluster IPs"), (FAMILIES, "IP families")] {
        if spec_text(new, POLICY) == SINGLE && spec_list(new, key).len() == 2 {
            let why = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            errors.invalid(format!("spec.{POLICY}"), policy(new), &why);
        }
    }
}

/// Derives the families from the addresses.
fn families_of_addresses(new: &mut Value, errors: &mut Errors) {
    let addresses = spec_list(new, "clusterIPs").to_vec();
    let mut families = spec_list(new, FAMILIES).to_vec();
    for (index, address) in addresses.iter().enumerate().take_while(|(_, address)| *address != "None") {
        if index < families.len() {
            continue;
        }
        if address.as_str().is_some_and(|text| text.contains(':')) {
            let why = "IPv6 is not configured on this cluster";
            errors.invalid(format!("spec.clusterIPs[{index}]"), &json!(addresses), why);
        } else {
            families.push("IPv4".into())
        }
    }
    if let Some(spec) = spec(new).filter(|_| !families.is_empty()) {
        spec.insert(FAMILIES.into(), families.into());
    }
}

/// Families default to the first of the cluster; `both` adds the other one.
fn choose_families(new: &mut Value, both: bool) {
    let mut families = spec_list(new, FAMILIES).to_vec();
    if families.is_empty() {
        families.push("IPv4".into());
    }
    if both && families.len() < 2 {
        families.push(if families[0] == "IPv4" { "IPv6" } else { "IPv4" }.into());
    }
    if let Some(spec) = spec(new) {
        spec.insert(FAMILIES.into(), families.into());
    }
}

fn not_configured(new: &Value, errors: &mut Errors) {
    if spec_text(new, POLICY) == BOTH {
        let why = "this cluster is not configured for dual-stack services";
        errors.invalid(format!("spec.{POLICY}"), policy(new), why);
    }
    for (index, family) in spec_list(new, FAMILIES).iter().enumerate().filter(|(_, family)| *family != "IPv4") {
        errors.invalid(format!("spec.{FAMILIES}[{index}]"), family, "not configured on this cluster");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_follow_addresses_selectors_and_policies() {
        let headless = |more: Value| {
            let mut spec = json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        let old = headless(json!({"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "RequireDualStack"}));
        for (case, spec, old, families, policy) in [
            ("the endpoints are unknown", headless(json!({})), None, json!(["IPv4", "IPv6"]), BOTH),
            (
                "one family of them is given",
                headless(json!({"ipFamilies": ["IPv6"]})),
                None,
                json!(["IPv6", "IPv4"]),
                BOTH,
            ),
            ("one is wanted", headless(json!({"ipFamilyPolicy": SINGLE})), None, json!(["IPv4"]), SINGLE),
            ("it selects", headless(json!({"selector": {"a": "b"}})), None, json!(["IPv4"]), SINGLE),
            ("families are taken off", headless(json!({})), Some(&old), json!(["IPv4", "IPv6"]), BOTH),
            (
                "the second is let go",
                headless(json!({"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": SINGLE})),
                Some(&old),
                json!(["IPv6"]),
                SINGLE,
            ),
        ] {
            let (old, mut new) = (old.map(|spec| json!({"spec": spec})), json!({"spec": spec}));
            assert!(settle(old.as_ref(), &mut new).is_empty(), "{case}");
            assert_eq!((&new["spec"][FAMILIES], spec_text(&new, POLICY)), (&families, policy), "{case}");
        }
    }

    #[test]
    fn a_service_gets_available_families_or_an_error() {
        let old = json!({"spec": {"type": "ClusterIP", "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"], "ipFamilies": ["IPv4"]}});
        for (spec, old, expected) in [
            (json!({"type": "ClusterIP"}), None, None),
            (json!({"type": "ClusterIP", "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"]}), None, None),
            (json!({"type": "ExternalName", "ipFamilies": ["IPv6"]}), None, None),
            (
                json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "ipFamilyPolicy": "RequireDualStack"}),
                None,
                None,
            ),
            (
                json!({"type": "ClusterIP", "clusterIPs": ["10.96.0.5"]}),
                None,
                Some("Invalid value: [\"10.96.0.5\"]: must be empty when `clusterIP` is not specified"),
            ),
            (
                json!({"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack"}),
                None,
                Some("Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services"),
            ),
            (
                json!({"type": "ClusterIP", "ipFamilies": ["IPv6"]}),
                None,
                Some("Invalid value: \"IPv6\": not configured on this cluster"),
            ),
            (
                json!({"type": "ClusterIP", "clusterIP": "fd00::1", "clusterIPs": ["fd00::1"]}),
                None,
                Some("Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster"),
            ),
            (
                json!({"type": "ClusterIP", "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"], "ipFamilies": ["IPv6"]}),
                Some(&old),
                Some("Invalid value: \"10.96.0.5\": expected an IPv6 value as indicated by `ipFamilies[0]`"),
            ),
        ] {
            let told: Vec<_> = settle(old, &mut json!({"spec": spec.clone()})).into_causes();
            let told: Vec<&str> = told.iter().map(|cause| cause.message.as_str()).collect();
            assert_eq!(told, expected.into_iter().collect::<Vec<_>>(), "{spec}");
        }
    }
}
