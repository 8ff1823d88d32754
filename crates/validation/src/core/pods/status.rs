//! Validation of a pod's status.

use std::collections::{HashMap, HashSet};

use super::{
    super::super::{Errors, FieldError, internal, names, selectors, view::At},
    annotations, is_native, security,
};

pub(crate) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    annotations::update(old, new, errors);
    let (before, after) = (old.child("status"), new.child("status"));
    conditions(&after, errors);
    nominated(old, &before, &after, errors);
    if after.number("observedGeneration") < 0 {
        let value = after.number("observedGeneration").into();
        errors.invalid(after.path("observedGeneration"), &value, "must be a non-negative integer");
    }
    if before.text("qosClass") != after.text("qosClass") {
        let why = super::super::super::view::IMMUTABLE;
        errors.invalid(after.path("qosClass"), &after.text("qosClass").into(), why);
    }
    let spec = old.child("spec");
    for (list, containers) in
        [("containerStatuses", Some("containers")), ("initContainerStatuses", Some("initContainers"))]
    {
        transitions(&spec, list, containers, &before, &after, errors);
    }
    transitions(&spec, "ephemeralContainerStatuses", None, &before, &after, errors);
    claims(new, &after, errors);
    extended_claim(new, &after, errors);
    node_claims(new, &after, errors);
    addresses(&before, &after, "podIPs", errors);
    host_addresses(&before, &after, errors);
    users(new, &after, errors);
    devices(new, &after, errors);
}

const LISTS: [&str; 3] = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];

fn conditions(status: &At<'_>, errors: &mut Errors) {
    for condition in status.items("conditions") {
        if condition.number("observedGeneration") < 0 {
            let value = condition.number("observedGeneration").into();
            errors.invalid(condition.path("observedGeneration"), &value, "must be a non-negative integer");
        }
        let kind = condition.text("type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            errors.invalid_each(condition.path("Type"), &kind.into(), names::qualified_name(kind));
        }
    }
}

fn nominated(old: &At<'_>, before: &At<'_>, after: &At<'_>, errors: &mut Errors) {
    let name = "nominatedNodeName";
    if after.text(name).is_empty() || after.text(name) == before.text(name) {
        return;
    }
    after.follows(name, names::dns_subdomain, errors);
    if !old.child("spec").text("nodeName").is_empty() {
        errors.forbidden(after.path(name), "may not be set on pods that are already bound to a node");
    }
}

/// Returns true if a container restarts after it exited with `code`.
fn restarts(spec: &At<'_>, container: &At<'_>, code: i64) -> bool {
    let ended = |rule: &At<'_>| {
        let codes = rule.child("exitCodes");
        let values = codes.get("values").as_array().into_iter().flatten();
        let listed = values.into_iter().any(|value| value.as_i64() == Some(code));
        match codes.text("operator") {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    };
    let by = |policy: &str| match policy {
        "OnFailure" => code != 0,
        "Never" => false,
        _ => true,
    };
    match container.text("restartPolicy") {
        "" => by(spec.text("restartPolicy")),
        own => container.items("restartPolicyRules").any(|rule| ended(&rule)) || by(own),
    }
}

/// Checks that an ended container does not run again, unless its pod restarts it.
fn transitions(
    spec: &At<'_>,
    list: &str,
    containers: Option<&str>,
    before: &At<'_>,
    after: &At<'_>,
    errors: &mut Errors,
) {
    let restarts_all = ["initContainers", "containers"]
        .iter()
        .flat_map(|list| spec.items(list))
        .flat_map(|container| container.items("restartPolicyRules"))
        .any(|rule| rule.text("action") == "RestartAllContainers");
    if containers.is_some() && restarts_all {
        return;
    }
    let goes_on = |status: &At<'_>| !status.child("state").has("terminated");
    let going_on: HashSet<&str> = after.items(list).filter(goes_on).map(|status| status.text("name")).collect();
    let containers = containers.map(|list| by_name(spec, list)).unwrap_or_default();
    for (index, old) in before.items(list).enumerate() {
        let Some(ended) = old.child("state").present("terminated") else { continue };
        if !going_on.contains(old.text("name")) {
            continue;
        }
        let container = containers.get(old.text("name"));
        if !container.is_some_and(|container| restarts(spec, container, ended.number("exitCode"))) {
            let path = after.path(list).index(index).child("state");
            errors.forbidden(path, "may not be transitioned to non-terminated state");
        }
    }
}

/// Returns the containers of a list; of those of one name, the first.
fn by_name<'v>(spec: &At<'v>, list: &str) -> HashMap<&'v str, At<'v>> {
    let mut all = HashMap::new();
    for container in spec.items(list) {
        all.entry(container.text("name")).or_insert(container);
    }
    all
}

fn claims(pod: &At<'_>, status: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    let own: HashSet<&str> = pod.child("spec").items("resourceClaims").map(|one| one.text("name")).collect();
    for claim in status.items("resourceClaimStatuses") {
        let name = claim.text("name");
        if !own.contains(name) {
            let why = "must match the name of an entry in `spec.resourceClaims`";
            errors.invalid(claim.path("name"), &name.into(), why);
        }
        if !taken.insert(name) {
            errors.duplicate(claim.path("name"), &name.into());
        }
        if claim.has("resourceClaimName") {
            claim.follows("resourceClaimName", names::dns_subdomain, errors);
        }
    }
}

fn extended_claim(pod: &At<'_>, status: &At<'_>, errors: &mut Errors) {
    let Some(claim) = status.present("extendedResourceClaimStatus") else { return };
    if claim.count("requestMappings") == 0 {
        errors.required(claim.path("requestMappings"), "at least one request mapping is required");
    }
    let spec = pod.child("spec");
    let lists = ["initContainers", "containers"];
    // Of several with one name, the last one counts.
    let containers: HashMap<&str, At<'_>> =
        lists.iter().flat_map(|list| spec.items(list)).map(|one| (one.text("name"), one)).collect();
    let mut taken = HashSet::new();
    for mapping in claim.items("requestMappings") {
        let part = |name: &str| mapping.text(name);
        let (container, resource, request) = (part("containerName"), part("resourceName"), part("requestName"));
        match containers.get(container) {
            Some(found) if found.child("resources").child("requests").has(resource) => {}
            Some(_) => {
                let why = "must match the extended resource name of an entry in spec.initContainers.resources.requests \
                     or spec.containers.resources.requests";
                errors.invalid(mapping.path("resourceName"), &resource.into(), why);
            }
            None => {
                let why = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                errors.invalid(mapping.path("containerName"), &container.into(), why);
            }
        }
        errors.invalid_each(claim.path("requestName"), &request.into(), names::dns_label(request));
        if !taken.insert((container, resource, request)) {
            for name in ["containerName", "resourceName", "requestName"] {
                errors.duplicate(mapping.path(name), &part(name).into());
            }
        }
    }
    claim.needs_to_follow("resourceClaimName", names::dns_subdomain, errors);
}

fn node_claims(pod: &At<'_>, status: &At<'_>, errors: &mut Errors) {
    let own = pod.child("spec").items("resourceClaims").chain(status.items("resourceClaimStatuses"));
    let own: HashSet<&str> = own.filter_map(|one| one.get("resourceClaimName").as_str()).collect();
    for claim in status.items("nodeAllocatableResourceClaimStatuses") {
        let name = claim.text("resourceClaimName");
        claim.needs_because("resourceClaimName", "must not be empty", errors);
        if !own.contains(name) {
            let why = "no mapping found in pod reference";
            errors.invalid(claim.path("resourceClaimName"), &name.into(), why);
        }
        for list in ["containers", "resources"].into_iter().filter(|list| claim.count(list) == 0) {
            errors.required(claim.path(list), "must not be empty");
        }
        for (resource, amount) in claim.entries("resources") {
            if !is_native(resource) {
                errors.invalid(&amount.path, &resource.into(), "must be a node allocatable resource name");
            }
            if selectors::quantity(amount.value).is_some_and(|amount| amount < portolan_types::quantity::Quantity::ZERO)
            {
                errors.invalid(&amount.path, amount.value, "must be non-negative");
            }
        }
    }
}

/// Checks addresses: at most one per family.
fn addresses(before: &At<'_>, after: &At<'_>, list: &str, errors: &mut Errors) {
    let existing: HashSet<&str> = before.items(list).map(|address| address.text("ip")).collect();
    let all: Vec<&str> = after.items(list).map(|address| address.text("ip")).collect();
    for address in after.items(list) {
        selectors::legacy_ip(&At { value: address.get("ip"), path: address.path.clone() }, &existing, errors);
    }
    if let Some(at) = all.iter().position(|text| all.len() > 1 && !selectors::is_ip(text)) {
        let why = format!("failed to check for dual stack with error:invalid IP[{at}]: {}", all[at]);
        errors.push(FieldError::internal(after.path(list), &why));
    }
    if all.len() > 1 && (all.len() > 2 || !selectors::is_dual_stack(&all)) {
        let shown = internal::printed_value(if list == "podIPs" { "[]PodIP" } else { "[]HostIP" }, after.get(list));
        let why = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid_shown(after.path(list), &shown, why));
    }
}

fn host_addresses(before: &At<'_>, after: &At<'_>, errors: &mut Errors) {
    let Some(first) = after.items("hostIPs").next() else { return };
    if first.text("ip") != after.text("hostIP") {
        errors.invalid(first.path("ip"), &first.text("ip").into(), "must be equal to `hostIP`");
    }
    addresses(before, after, "hostIPs", errors);
}

fn users(pod: &At<'_>, status: &At<'_>, errors: &mut Errors) {
    let windows = pod.child("spec").child("os").text("name") == "windows";
    for user in LISTS.iter().flat_map(|list| status.items(list)).map(|status| status.child("user")) {
        let linux = user.child("linux");
        if linux.is_missing() {
            continue;
        }
        if windows {
            errors.forbidden(&linux.path, "cannot be set for a windows pod");
            continue;
        }
        for name in ["uid", "gid"] {
            linux.in_range(name, (0, i32::MAX.into()), errors);
        }
        security::groups(&linux, errors);
    }
}

/// Longest message about the health of a device.
const MAX_MESSAGE: usize = 1024;

fn devices(pod: &At<'_>, status: &At<'_>, errors: &mut Errors) {
    for (list, containers) in [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")] {
        let containers = by_name(&pod.child("spec"), containers);
        let mut claims = HashMap::new();
        for status in status.items(list) {
            let (name, container) = (status.text("name"), containers.get(status.text("name")));
            for resource in status.items("allocatedResourcesStatus") {
                if let Some(resources) = container.map(|container| container.child("resources")) {
                    let claims = claims.entry(name).or_insert_with(|| claims_of(&resources));
                    is_asked_for(&resources, claims, &resource, errors);
                }
                health(&resource, errors);
            }
        }
    }
    for status in status.items("ephemeralContainerStatuses").filter(|one| one.count("allocatedResourcesStatus") > 0) {
        errors.forbidden(status.path("allocatedResourcesStatus"), "must not be specified in container status");
    }
}

/// Returns the names that statuses use for the devices of a container's claims.
fn claims_of(resources: &At<'_>) -> HashSet<String> {
    let called = |claim: At<'_>| match claim.text("request") {
        "" => format!("claim:{}", claim.text("name")),
        request => format!("claim:{}/{request}", claim.text("name")),
    };
    resources.items("claims").map(called).collect()
}

fn is_asked_for(resources: &At<'_>, claims: &HashSet<String>, resource: &At<'_>, errors: &mut Errors) {
    let name = resource.text("name");
    let (found, why) = if name.starts_with("claim:") {
        (
            claims.contains(name),
            "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or \
             'claim:<claimName>' if request is empty",
        )
    } else {
        (resources.child("requests").has(name), "must match one of the container's resource requests")
    };
    if !found {
        errors.invalid(resource.path("name"), &name.into(), why);
    }
}

fn health(resource: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for device in resource.items("resources") {
        device.supported("health", &["Healthy", "Unhealthy", "Unknown"], errors);
        if device.has("message") {
            match device.text("message").len() {
                0 => errors.required(device.path("message"), "must be non-empty if specified"),
                length if length > MAX_MESSAGE => {
                    errors.push(FieldError::too_long(device.path("message"), MAX_MESSAGE));
                }
                _ => {}
            }
        }
        if !taken.insert(device.text("resourceID")) {
            errors.duplicate(device.path("resourceID"), device.get("resourceID"));
        }
    }
}
