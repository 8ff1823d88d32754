//! The group discovery.k8s.io.

use std::{collections::HashSet, net::IpAddr};

use super::{
    Errors, FieldError, metadata, names,
    rules::{
        Rules,
        Step::{Became, Is, Metadata},
    },
    selectors,
    view::At,
};

pub(super) static RULES: &[(&str, Rules)] = &[(
    "EndpointSlice",
    Rules { create: &[Metadata, Is(new)], update: &[Metadata, Became(update)], subresources: &[] },
)];

const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_TOPOLOGY: usize = 16;
const MAX_HINTS: usize = 8;

fn new(object: &At<'_>, errors: &mut Errors) {
    general(object, errors);
    endpoints(object, errors);
}

fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    general(new, errors);
    if old.get("endpoints") != new.get("endpoints") {
        endpoints(new, errors);
    }
    if old.text("addressType") != new.text("addressType") {
        errors.invalid("addressType", &new.text("addressType").into(), super::view::IMMUTABLE);
    }
}

fn too_many(at: &At<'_>, name: &str, most: usize, errors: &mut Errors) -> bool {
    let count = at.count(name);
    if count > most {
        errors.push(FieldError::too_many(at.path(name), count, most));
    }
    count > most
}

fn general(object: &At<'_>, errors: &mut Errors) {
    object.one_of("addressType", &["FQDN", "IPv4", "IPv6"], errors);
    if too_many(object, "ports", MAX_PORTS, errors) {
        return;
    }
    let mut taken = HashSet::new();
    for port in object.items("ports") {
        let name = port.text("name");
        port.follows_if_set("name", names::dns_label, errors);
        if !taken.insert(name) {
            errors.duplicate(port.path("name"), &name.into());
        }
        if port.has("protocol") {
            port.supported("protocol", &selectors::PROTOCOLS, errors)
        } else {
            errors.required(port.path("protocol"), "")
        }
        if port.has("appProtocol") {
            port.follows("appProtocol", names::qualified_name, errors);
        }
    }
}

fn endpoints(object: &At<'_>, errors: &mut Errors) {
    if too_many(object, "endpoints", MAX_ENDPOINTS, errors) {
        return;
    }
    for endpoint in object.items("endpoints") {
        let list = endpoint.child("addresses");
        if endpoint.count("addresses") == 0 {
            errors.required(&list.path, "must contain at least 1 address");
        }
        too_many(&endpoint, "addresses", MAX_ADDRESSES, errors);
        endpoint.items("addresses").for_each(|one| address(object.text("addressType"), &list, &one, errors));
        if endpoint.has("nodeName") {
            endpoint.follows("nodeName", names::dns_subdomain, errors);
        }
        too_many(&endpoint, "deprecatedTopology", MAX_TOPOLOGY, errors);
        let topology = endpoint.child("deprecatedTopology");
        metadata::labels(&topology.path, Some(topology.value), errors);
        if endpoint.has("hostname") {
            endpoint.follows("hostname", names::dns_label, errors);
        }
        hints(&endpoint.child("hints"), errors);
    }
}

fn address(kind: &str, list: &At<'_>, at: &At<'_>, errors: &mut Errors) {
    if kind == "FQDN" {
        selectors::full_domain(at, errors);
    }
    if !matches!(kind, "IPv4" | "IPv6") {
        return;
    }
    let complaint = match kind {
        "IPv4" => selectors::ip_complaint(at.as_text()).map(str::to_owned),
        _ => names::canonical_ip(at.as_text()).into_iter().next(),
    };
    if let Some(why) = complaint {
        errors.invalid(&at.path, at.value, &why);
        return;
    }
    if at.as_text().parse().is_ok_and(|ip: IpAddr| ip.is_ipv4() != (kind == "IPv4")) {
        errors.invalid(&list.path, at.value, &format!("must be an {kind} address"));
    }
    selectors::endpoint_ip(at, errors);
}

fn hints(hints: &At<'_>, errors: &mut Errors) {
    for (list, rule) in [("forZones", names::label_value as fn(&str) -> _), ("forNodes", names::dns_subdomain)] {
        if too_many(hints, list, MAX_HINTS, errors) {
            return;
        }
        let mut taken = Vec::new();
        for hint in hints.items(list) {
            if taken.contains(&hint.text("name")) {
                errors.duplicate(hint.path("name"), &hint.text("name").into())
            } else {
                taken.push(hint.text("name"))
            }
            hint.follows("name", rule, errors);
        }
    }
}
