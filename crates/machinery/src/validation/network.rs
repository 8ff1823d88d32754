//! Ingresses and network policies.

use std::{collections::HashSet, net::IpAddr};

use serde_json::Value;

use super::{
    Errors, FieldError, names,
    rules::{
        Rules,
        Step::{Became, Is, Metadata, MetadataChange},
    },
    selectors::{self, PROTOCOLS},
    view::At,
};

pub(super) static RULES: &[(&str, Rules)] = &[
    ("Ingress", Rules { create: &[Metadata, Is(ingress)], update: &[MetadataChange, Is(ingress)], subresources: &[] }),
    (
        "IngressClass",
        Rules {
            create: &[Metadata, Is(ingress_class)],
            update: &[MetadataChange, Became(ingress_class_update), Is(ingress_class)],
            subresources: &[],
        },
    ),
    (
        "NetworkPolicy",
        Rules {
            create: &[Metadata, Is(network_policy)],
            update: &[MetadataChange, Is(network_policy)],
            subresources: &[],
        },
    ),
];

pub(super) static DISCOVERY: &[(&str, Rules)] = &[(
    "EndpointSlice",
    Rules {
        create: &[Metadata, Is(endpoint_slice)],
        update: &[Metadata, Is(endpoint_slice), Became(endpoint_slice_update)],
        subresources: &[],
    },
)];

const NO_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

fn endpoint_slice_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    new.immutable(old, "addressType", errors);
}

fn ingress(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if spec.count("rules") == 0 && !spec.has("defaultBackend") {
        let why = "either `defaultBackend` or `rules` must be specified";
        errors.invalid(&spec.path, spec.get("rules"), why);
    }
    if spec.has("defaultBackend") {
        backend(&spec.child("defaultBackend"), errors);
    }
    for rule in spec.items("rules") {
        let host = rule.text("host");
        if host.parse::<IpAddr>().is_ok() {
            errors.invalid(rule.path("host"), &host.into(), "must be a DNS name, not an IP address");
        }
        if !host.is_empty() {
            rule.follows("host", host_name, errors);
        }
        if rule.has("http") {
            paths(&rule.child("http"), errors);
        }
    }
    for tls in spec.items("tls") {
        for host in tls.items("hosts") {
            host_name(host.as_text()).iter().for_each(|detail| errors.invalid(&host.path, host.value, detail));
        }
        if !tls.text("secretName").is_empty() {
            tls.follows("secretName", names::dns_subdomain, errors);
        }
    }
    if spec.has("ingressClassName") {
        spec.follows("ingressClassName", names::dns_subdomain, errors);
    }
}

const WILDCARD_RULE: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
     consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', \
     regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

fn host_name(host: &str) -> names::Complaints {
    match host.strip_prefix("*.") {
        Some(rest) if names::dns_subdomain(rest).is_empty() => Vec::new(),
        None if !host.contains('*') => names::dns_subdomain(host),
        _ => vec![WILDCARD_RULE.to_owned()],
    }
}

fn paths(http: &At<'_>, errors: &mut Errors) {
    if http.count("paths") == 0 {
        errors.required(http.path("paths"), "");
    }
    for rule in http.items("paths") {
        let path = rule.text("path");
        let absolute = path.starts_with('/');
        match rule.text("pathType") {
            "" => {
                errors.required(rule.path("pathType"), "pathType must be specified");
                continue;
            }
            "Exact" | "Prefix" => {
                if !absolute {
                    errors.invalid(rule.path("path"), &path.into(), "must be an absolute path");
                }
                for part in ["//", "/./", "/../", "%2f", "%2F"] {
                    if path.contains(part) {
                        errors.invalid(rule.path("path"), &path.into(), &format!("must not contain '{part}'"));
                    }
                }
                for end in ["/..", "/."] {
                    if path.ends_with(end) {
                        errors.invalid(rule.path("path"), &path.into(), &format!("cannot end with '{end}'"));
                    }
                }
            }
            "ImplementationSpecific" => {
                if !path.is_empty() && !absolute {
                    errors.invalid(rule.path("path"), &path.into(), "must be an absolute path");
                }
            }
            _ => {
                let known = ["Exact", "ImplementationSpecific", "Prefix"];
                errors.not_supported(rule.path("pathType"), rule.get("pathType"), &known);
            }
        }
        backend(&rule.child("backend"), errors);
    }
}

fn backend(at: &At<'_>, errors: &mut Errors) {
    let empty = Value::from("");
    match (at.has("service"), at.has("resource")) {
        (true, true) => errors.invalid(&at.path, &empty, "cannot set both resource and service backends"),
        (false, false) => errors.invalid(&at.path, &empty, "resource or service backend is required"),
        (false, true) => {
            let resource = at.child("resource");
            resource.needs("kind", errors);
            resource.needs("name", errors);
        }
        (true, false) => {
            let service = at.child("service");
            if service.needs("name", errors) {
                service.follows("name", names::dns_label, errors);
            }
            let port = service.child("port");
            match (port.text("name").is_empty(), port.int("number").unwrap_or(0)) {
                (false, 0) => port.follows("name", names::port_name, errors),
                (false, _) => errors.invalid(&at.path, &empty, "cannot set both port name & port number"),
                (true, 0) => errors.required(&at.path, "port name or number is required"),
                (true, _) => selectors::port_number(&port, "number", errors),
            }
        }
    }
}

fn ingress_class(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if spec.needs("controller", errors) {
        let name = spec.text("controller");
        if name.len() > 250 {
            errors.push(FieldError::too_long(spec.path("controller"), 250));
        }
        if !name.contains('/') {
            let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            errors.invalid(spec.path("controller"), &name.into(), why);
        }
    }
}

fn ingress_class_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    new.child("spec").immutable(&old.child("spec"), "controller", errors);
}

fn network_policy(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    selectors::selector(&spec.child("podSelector"), errors);
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for rule in spec.items(rules) {
            rule.items("ports").for_each(|port| policy_port(&port, errors));
            rule.items(peers).for_each(|one| peer(&one, errors));
        }
    }
    if spec.count("policyTypes") > 2 {
        let why = "may not specify more than two policyTypes";
        errors.invalid(spec.path("policyTypes"), spec.get("policyTypes"), why);
        return;
    }
    for kind in spec.items("policyTypes") {
        if !matches!(kind.as_text(), "Ingress" | "Egress") {
            errors.not_supported(&kind.path, kind.value, &["Ingress", "Egress"]);
        }
    }
}

fn policy_port(at: &At<'_>, errors: &mut Errors) {
    at.one_of_if_set("protocol", &["TCP", "UDP", "SCTP"], errors);
    let end = at.int("endPort");
    match (at.get("port"), end) {
        (Value::Null, Some(end)) => {
            errors.invalid(at.path("endPort"), &end.into(), "may not be specified when `port` is not specified");
        }
        (Value::Null, None) => {}
        (Value::String(_), end) => {
            if let Some(end) = end {
                errors.invalid(at.path("endPort"), &end.into(), "may not be specified when `port` is non-numeric");
            }
            selectors::port(at, "port", errors);
        }
        (port, end) => {
            selectors::port_number(at, "port", errors);
            if let Some(end) = end {
                if end < port.as_i64().unwrap_or(0) {
                    errors.invalid(at.path("endPort"), port, "must be greater than or equal to `port`");
                }
                selectors::port_number(at, "endPort", errors);
            }
        }
    }
}

fn peer(at: &At<'_>, errors: &mut Errors) {
    let kinds = ["podSelector", "namespaceSelector"];
    let mut count = 0;
    for name in kinds {
        if at.has(name) {
            count += 1;
            selectors::selector(&at.child(name), errors);
        }
    }
    let block = at.child("ipBlock");
    match (count, block.is_missing()) {
        (0, true) => errors.required(&at.path, "must specify a peer"),
        (_, false) => {
            ip_block(&block, errors);
            if count > 0 {
                errors.forbidden(&at.path, "may not specify both ipBlock and another peer");
            }
        }
        _ => {}
    }
}

const NO_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

fn ip_block(at: &At<'_>, errors: &mut Errors) {
    if !at.needs("cidr", errors) {
        return;
    }
    let Some((network, length)) = cidr(at.text("cidr")) else {
        errors.invalid(at.path("cidr"), at.get("cidr"), NO_CIDR);
        return;
    };
    for except in at.items("except") {
        match cidr(except.as_text()) {
            None => errors.invalid(&except.path, except.value, NO_CIDR),
            Some((inner, inner_length)) => {
                if inner_length <= length || !same_network(network, inner, length) {
                    errors.invalid(&except.path, except.value, "must be a strict subset of `cidr`");
                }
            }
        }
    }
}

/// Address and prefix length.
fn cidr(text: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let length: u32 = length.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    (length <= most).then_some((address, length))
}

fn same_network(a: IpAddr, b: IpAddr, length: u32) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            u32::from(a) & mask == u32::from(b) & mask
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            u128::from(a) & mask == u128::from(b) & mask
        }
        _ => false,
    }
}

/// Most endpoints and ports of a slice.
const MAX_ENDPOINTS: usize = 1000;
const MAX_PORTS: usize = 20_000;

fn endpoint_slice(object: &At<'_>, errors: &mut Errors) {
    object.one_of("addressType", &["FQDN", "IPv4", "IPv6"], errors);
    if object.count("endpoints") > MAX_ENDPOINTS {
        errors.push(FieldError::too_many("endpoints", object.count("endpoints"), MAX_ENDPOINTS));
        return;
    }
    for endpoint in object.items("endpoints") {
        match endpoint.count("addresses") {
            0 => errors.required(endpoint.path("addresses"), "must contain at least 1 address"),
            count if count > 100 => errors.push(FieldError::too_many(endpoint.path("addresses"), count, 100)),
            _ => {}
        }
        for address in endpoint.items("addresses") {
            let fits = match (object.text("addressType"), address.as_text().parse::<IpAddr>()) {
                ("IPv4", Ok(IpAddr::V4(_))) | ("IPv6", Ok(IpAddr::V6(_))) => true,
                ("FQDN", _) => names::dns_subdomain(address.as_text()).is_empty(),
                _ => false,
            };
            if !fits {
                errors.invalid(&address.path, address.value, NO_ADDRESS);
            }
        }
    }
    if object.count("ports") > MAX_PORTS {
        errors.push(FieldError::too_many("ports", object.count("ports"), MAX_PORTS));
    }
    let mut taken = HashSet::new();
    for port in object.items("ports") {
        let name = port.text("name");
        if !name.is_empty() {
            port.follows("name", names::dns_label, errors);
        }
        if !taken.insert(name) {
            errors.duplicate(port.path("name"), &name.into());
        }
        port.one_of("protocol", &PROTOCOLS, errors);
    }
}
