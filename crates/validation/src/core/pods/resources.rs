//! Requests and limits, their names and amounts.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, HashSet},
};

use portolan_types::quantity::Quantity;
use serde_json::Value;

use super::{
    super::super::{
        Errors, FieldError, Path, internal, names, selectors,
        view::{At, NEGATIVE},
    },
    Part, annotations,
};

const NOT_STANDARD: &str = "must be a standard resource type or fully qualified";

/// Resources that quotas can limit, besides huge pages, `count/…` and names with a domain.
const QUOTA_RESOURCES: [&str; 19] = [
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];
/// Resources whose amounts must be whole numbers.
const COUNTED: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Returns true for a standard resource of quotas.
pub(crate) fn is_standard_for_quota(name: &str) -> bool {
    QUOTA_RESOURCES.contains(&name) || is_huge_page(name) || name.starts_with("requests.hugepages-")
}

/// Returns true for a native resource name.
pub(crate) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Returns true for an extended resource, which nodes advertise.
pub(crate) fn is_extended(name: &str) -> bool {
    let quota = || format!("requests.{name}");
    !is_native(name) && !name.starts_with("requests.") && names::qualified_name(&quota()).is_empty()
}

/// Returns true if a limit may exceed its request, unlike for huge pages and extended resources.
fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// Checks the name of any resource; returns true if it is valid.
pub(crate) fn resource_name(name: &str, path: &Path, errors: &mut Errors) -> bool {
    let details = names::qualified_name(name);
    let mut good = details.is_empty();
    errors.invalid_each(path, &name.into(), details);
    if good && !name.contains('/') && name != "storage" && !is_standard_for_quota(name) {
        good = false;
        errors.invalid(path, &name.into(), NOT_STANDARD);
    }
    good
}

/// Checks the name of a resource of containers.
pub(crate) fn container_resource(name: &str, path: &Path, errors: &mut Errors) {
    resource_name(name, path, errors);
    if name.split('/').count() == 1 {
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !is_huge_page(name) {
            errors.invalid(path, &name.into(), "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(path, &name.into(), "doesn't follow extended resource name standard");
    }
}

/// Checks the name of a pod-level resource.
fn pod_resource(name: &str, path: &Path, errors: &mut Errors) {
    if resource_name(name, path, errors) && !matches!(name, "cpu" | "memory") && !is_huge_page(name) {
        errors.not_supported(path, &name.into(), &["cpu", "hugepages-", "memory"]);
    }
}

/// Checks the name of a resource in a quota.
pub(crate) fn quota_name(name: &str, at: &At<'_>, errors: &mut Errors) {
    resource_name(name, &at.path, errors);
    if !name.contains('/') && !is_standard_for_quota(name) {
        errors.invalid(&at.path, &name.into(), "must be a standard resource for quota");
    }
}

/// Checks the name of a resource in a limit of this type.
pub(crate) fn limit_range_name(kind: &str, name: &str, at: &At<'_>, errors: &mut Errors) {
    match kind {
        "Pod" | "Container" => container_resource(name, &at.path, errors),
        _ => drop(resource_name(name, &at.path, errors)),
    }
}

/// Checks that an amount is not negative, and is whole if its resource is not divisible.
pub(crate) fn quantity(name: &str, at: &At<'_>, errors: &mut Errors) {
    let Some(amount) = selectors::quantity(at.value) else { return };
    if amount < Quantity::ZERO {
        errors.invalid(&at.path, at.value, NEGATIVE);
    }
    if (COUNTED.contains(&name) || is_extended(name)) && amount != Quantity::from_units(amount.units()) {
        errors.invalid(&at.path, at.value, "must be an integer");
    }
}

/// Returns true for huge pages, and reports an amount that is no multiple of the page size.
fn huge_pages(name: &str, at: &At<'_>, errors: &mut Errors) -> bool {
    let Some(page) = name.strip_prefix("hugepages-") else { return false };
    let amount = selectors::quantity(at.value).map_or(0, Quantity::units);
    let page = page.parse::<Quantity>().ok().filter(|page| *page > Quantity::ZERO);
    let whole = page.filter(|page| *page == Quantity::from_units(page.units()));
    if whole.is_none_or(|page| amount % page.units() != 0) {
        let from = errors.len();
        let why = format!("{} is not positive integer multiple of {name}", at.as_text());
        errors.invalid(&at.path, at.value, &why);
        errors.mark_tolerated(from, "parts of huge pages");
    }
    true
}

/// Requests and limits of a container. `claims` are the names of the pod's resource claims, sorted.
pub(crate) fn requirements(at: &At<'_>, claims: &[&str], errors: &mut Errors) {
    amounts(at, container_resource, errors);
    claim_names(at, claims, errors);
}

fn amounts(at: &At<'_>, name_rule: fn(&str, &Path, &mut Errors), errors: &mut Errors) {
    let (mut compute, mut huge) = (false, false);
    for (name, amount) in at.entries("limits") {
        name_rule(name, &amount.path, errors);
        quantity(name, &amount, errors);
        huge |= huge_pages(name, &amount, errors);
        compute |= matches!(name, "cpu" | "memory");
    }
    for (name, amount) in at.entries("requests") {
        name_rule(name, &amount.path, errors);
        quantity(name, &amount, errors);
        within_limit(at, name, &amount, errors);
        huge |= huge_pages(name, &amount, errors);
        compute |= matches!(name, "cpu" | "memory");
    }
    if huge && !compute {
        errors.forbidden(&at.path, "HugePages require cpu or memory");
    }
}

fn within_limit(at: &At<'_>, name: &str, amount: &At<'_>, errors: &mut Errors) {
    let limit = at.child("limits").get(name);
    let (wanted, most) = (selectors::quantity(amount.value), selectors::quantity(limit));
    match most {
        None if !may_overcommit(name) => {
            errors.required(at.path("limits"), "Limit must be set for non overcommitable resources");
        }
        Some(_) if wanted != most && !may_overcommit(name) => {
            let why = format!("must be equal to {name} limit of {}", limit.as_str().unwrap_or_default());
            errors.invalid(at.path("requests"), amount.value, &why);
        }
        Some(_) if wanted > most => {
            let why = format!("must be less than or equal to {name} limit of {}", limit.as_str().unwrap_or_default());
            errors.invalid(at.path("requests"), amount.value, &why);
        }
        _ => {}
    }
}

fn claim_names(at: &At<'_>, claims: &[&str], errors: &mut Errors) {
    let (mut taken, mut parted) = (HashSet::<String>::new(), HashSet::<String>::new());
    // Text that is long if there are many, and equal for all that are not found.
    let known = OnceCell::new();
    for claim in at.items("claims") {
        let (name, request) = (claim.text("name"), claim.text("request"));
        if name.is_empty() {
            errors.required(&claim.path, "");
            continue;
        }
        if taken.contains(name) {
            errors.duplicate(&claim.path, &name.into());
        } else {
            claim.follows_if_set("request", names::dns_label, errors);
            let key = if request.is_empty() { name.to_owned() } else { format!("{name}/{request}") };
            if taken.contains(&key) || (request.is_empty() && parted.contains(name)) {
                errors.duplicate(&claim.path, &key.as_str().into());
            }
            parted.extend(key.split_once('/').map(|(whole, _)| whole.to_owned()));
            taken.insert(key);
        }
        if claims.binary_search(&name).is_err() && !errors.is_full() {
            let why = known.get_or_init(|| one_of_claims(claims));
            errors.push(FieldError::not_found_because(&claim.path, &name.into(), why));
        }
    }
}

fn one_of_claims(claims: &[&str]) -> String {
    let known: Vec<&str> = claims.iter().copied().filter(|name| !name.is_empty()).collect();
    let rest = if known.is_empty() { " which is empty".to_owned() } else { format!(": {}", known.join(", ")) };
    format!("must be one of the names in pod.spec.resourceClaims{rest}")
}

/// Validates the overhead of a runtime.
pub(super) fn overhead(at: &At<'_>, errors: &mut Errors) {
    let limits = serde_json::json!({"limits": at.value});
    let mut own = Errors::default();
    amounts(&At { value: &limits, path: at.path.clone() }, container_resource, &mut own);
    errors.append(own);
}

/// Checks the claims of a pod for devices.
pub(super) fn pod_claims(part: &Part<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for claim in part.spec.items("resourceClaims") {
        if part.is_pod && annotations::is_mirror(part.metadata) {
            errors.forbidden("[]", "static pods do not support resource claims");
            continue;
        }
        let name = claim.text("name");
        if claim.needs("name", errors) {
            if taken.contains(name) {
                errors.duplicate(claim.path("name"), &name.into());
            } else {
                claim.follows("name", names::dns_label, errors);
                taken.insert(name);
            }
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        let why = match sources.iter().filter(|name| claim.has(name)).count() {
            0 => Some("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
            1 => None,
            _ => Some("at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"),
        };
        if let Some(why) = why {
            let value = internal::printed_value("PodResourceClaim", claim.value);
            errors.push(FieldError::invalid_shown(&claim.path, &value, why));
        }
        for name in sources.into_iter().filter(|name| claim.has(name)) {
            claim.follows(name, names::dns_subdomain, errors);
        }
    }
}

/// Requests and limits of the pod as a whole.
pub(super) fn of_pod(part: &Part<'_>, errors: &mut Errors) {
    let Some(at) = part.spec.present("resources") else { return };
    if part.spec.child("os").text("name") == "windows" {
        errors.forbidden(&at.path, "may not be set for a windows pod");
        return;
    }
    at.forbids(&["claims"], "claims may not be set for Resources at pod-level", errors);
    amounts(&at, pod_resource, errors);
    claim_names(&at, &[], errors);
    for (name, sum) in aggregate(part, "requests") {
        let own = selectors::quantity(at.child("requests").get(name));
        if let Some(own) = own.filter(|own| sum > *own) {
            let why = format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.invalid(at.path("requests").key(name), &own.to_string().into(), &why);
        }
    }
    for (name, sum) in aggregate(part, "limits").into_iter().filter(|(name, _)| is_huge_page(name)) {
        let own = selectors::quantity(at.child("limits").get(name));
        if let Some(own) = own.filter(|own| sum > *own) {
            let why = format!("must be greater than or equal to aggregate container limits of {sum}");
            errors.invalid(at.path("limits").key(name), &own.to_string().into(), &why);
        }
    }
    for (index, container) in part.spec.items("containers").enumerate() {
        for (name, limit) in container.child("resources").entries("limits") {
            let own = selectors::quantity(at.child("limits").get(name));
            if let Some(own) = own.filter(|own| selectors::quantity(limit.value) > Some(*own)) {
                let path = at.path("containers").index(index).key(name).child("limits");
                errors.invalid(path, limit.value, &format!("must be less than or equal to pod limits of {own}"));
            }
        }
    }
}

/// Returns the resources of all containers together: long-running ones add up, other init containers run one after the
/// other.
fn aggregate<'v>(part: &Part<'v>, list: &str) -> BTreeMap<&'v str, Quantity> {
    let amounts = |container: &At<'v>| -> Vec<(&'v str, Quantity)> {
        let resources = container.child("resources");
        let entries = resources.entries(list);
        entries.filter_map(|(name, amount)| Some((name, selectors::quantity(amount.value)?))).collect()
    };
    let mut all: BTreeMap<&str, Quantity> = BTreeMap::new();
    let add = |all: &mut BTreeMap<&'v str, Quantity>, amounts: Vec<(&'v str, Quantity)>| {
        for (name, amount) in amounts {
            let sum = all.get(name).map_or(amount, |sum| *sum + amount);
            all.insert(name, sum);
        }
    };
    part.spec.items("containers").for_each(|container| add(&mut all, amounts(&container)));
    let (mut staying, mut most) = (BTreeMap::new(), BTreeMap::new());
    for container in part.spec.items("initContainers") {
        if container.text("restartPolicy") == "Always" {
            add(&mut all, amounts(&container));
            add(&mut staying, amounts(&container));
            greatest(&mut most, staying.iter().map(|(name, amount)| (*name, *amount)));
        } else {
            let mut now = staying.clone();
            add(&mut now, amounts(&container));
            greatest(&mut most, now.into_iter());
        }
    }
    greatest(&mut all, most.into_iter());
    all
}

fn greatest<'v>(all: &mut BTreeMap<&'v str, Quantity>, amounts: impl Iterator<Item = (&'v str, Quantity)>) {
    for (name, amount) in amounts {
        let most = all.get(name).map_or(amount, |had| (*had).max(amount));
        all.insert(name, most);
    }
}

/// Returns true if a list of amounts lacks one of the old list.
pub(super) fn is_removed(new: &Value, old: &Value) -> bool {
    old.as_object().is_some_and(|old| old.keys().any(|name| new.get(name).is_none()))
}
