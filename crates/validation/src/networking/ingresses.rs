//! Ingresses and their classes.

use serde_json::Value;

use super::super::{
    Errors, FieldError,
    core::ingress_points,
    names, selectors,
    view::{At, IMMUTABLE},
};

const NOT_A_NAME: &str = "must be a DNS name, not an IP address";
const NOT_ABSOLUTE: &str = "must be an absolute path";
/// Longest name of a controller.
const MAX_CONTROLLER: usize = 250;

pub(super) fn annotation(object: &At<'_>, errors: &mut Errors) {
    let key = "kubernetes.io/ingress.class";
    let class = object.child("metadata").child("annotations");
    let spec = object.child("spec");
    if class.has(key) && spec.has("ingressClassName") && class.text(key) != spec.text("ingressClassName") {
        let why = "must match `ingressClassName` when both are specified";
        errors.invalid(format!("annotations.{key}"), class.get(key), why);
    }
}

pub(super) fn good(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if spec.count("rules") == 0 && !spec.has("defaultBackend") {
        let why = "either `defaultBackend` or `rules` must be specified";
        errors.invalid(&spec.path, spec.get("rules"), why);
    }
    if let Some(default) = spec.present("defaultBackend") {
        backend(&default, errors);
    }
    spec.items("rules").for_each(|one| rule(&one, errors));
    for tls in spec.items("tls") {
        for host in tls.items("hosts") {
            errors.invalid_each(&host.path, host.value, host_name(host.as_text()));
        }
        let from = errors.len();
        tls.follows_if_set("secretName", names::dns_subdomain, errors);
        errors.mark_tolerated(from, "names of TLS secrets");
    }
    if spec.has("ingressClassName") {
        spec.follows("ingressClassName", names::dns_subdomain, errors);
    }
}

fn rule(rule: &At<'_>, errors: &mut Errors) {
    let host = rule.text("host");
    if selectors::is_ip(host) {
        errors.invalid(rule.path("host"), &host.into(), NOT_A_NAME);
    }
    rule.follows_if_set("host", host_name, errors);
    if let Some(http) = rule.present("http") {
        let from = errors.len();
        if http.count("paths") == 0 {
            errors.required(http.path("paths"), "");
        }
        http.items("paths").for_each(|one| path(&one, errors));
        if host.contains('*') {
            errors.mark_tolerated(from, "rules of hosts with wildcards");
        }
    }
}

fn host_name(host: &str) -> names::Complaints {
    if host.contains('*') { names::wildcard_subdomain(host) } else { names::dns_subdomain(host) }
}

fn path(rule: &At<'_>, errors: &mut Errors) {
    if !rule.has("pathType") {
        errors.required(rule.path("pathType"), "pathType must be specified");
        return;
    }
    let path = rule.text("path");
    let at = rule.path("path");
    let exact = matches!(rule.text("pathType"), "Exact" | "Prefix");
    rule.supported("pathType", &["Exact", "ImplementationSpecific", "Prefix"], errors);
    if !path.starts_with('/') && (exact || rule.text("pathType") == "ImplementationSpecific" && !path.is_empty()) {
        errors.invalid(&at, &path.into(), NOT_ABSOLUTE);
    }
    if exact {
        for part in ["//", "/./", "/../", "%2f", "%2F"].into_iter().filter(|part| path.contains(part)) {
            errors.invalid(&at, &path.into(), &format!("must not contain '{part}'"));
        }
        for end in ["/..", "/."].into_iter().filter(|end| path.ends_with(end)) {
            errors.invalid(&at, &path.into(), &format!("cannot end with '{end}'"));
        }
    }
    backend(&rule.child("backend"), errors);
}

fn backend(at: &At<'_>, errors: &mut Errors) {
    let empty = Value::from("");
    match (at.present("service"), at.present("resource")) {
        (Some(_), Some(_)) => errors.invalid(&at.path, &empty, "cannot set both resource and service backends"),
        (None, None) => errors.invalid(&at.path, &empty, "resource or service backend is required"),
        (None, Some(resource)) => reference(&resource, errors),
        (Some(service), None) => {
            service.needs_to_follow("name", names::dns_label, errors);
            let port = service.child("port");
            match (port.text("name").is_empty(), port.number("number")) {
                (false, 0) => port.follows("name", names::port_name, errors),
                (false, _) => errors.invalid(&at.path, &empty, "cannot set both port name & port number"),
                (true, 0) => errors.required(&at.path, "port name or number is required"),
                (true, _) => selectors::port_number(&port, "number", errors),
            }
        }
    }
}

fn reference(at: &At<'_>, errors: &mut Errors) {
    if at.has("apiGroup") {
        at.follows("apiGroup", names::dns_subdomain, errors);
    }
    at.needs_to_follow("kind", names::path_segment, errors);
    at.needs_to_follow("name", names::path_segment, errors);
}

pub(super) fn status(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (old, new) = (old.child("status"), new.child("status"));
    ingress_points(&old.child("loadBalancer"), &new.child("loadBalancer"), false, errors);
}

pub(super) fn class(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if spec.text("controller").len() > MAX_CONTROLLER {
        errors.push(FieldError::too_long(spec.path("controller"), MAX_CONTROLLER));
    }
    selectors::domain_prefixed_path(&spec, "controller", errors);
    let Some(parameters) = spec.present("parameters") else { return };
    reference(&parameters, errors);
    let namespace = parameters.path("namespace");
    if !parameters.has("scope") {
        errors.required(parameters.path("scope"), "");
        return;
    }
    match (parameters.text("scope"), parameters.has("namespace")) {
        ("Namespace", false) => errors.required(namespace, "`parameters.scope` is set to 'Namespace'"),
        ("Namespace", true) => parameters.follows("namespace", names::dns_label, errors),
        ("Cluster", true) => errors.forbidden(namespace, "`parameters.scope` is set to 'Cluster'"),
        _ => parameters.supported("scope", &["Cluster", "Namespace"], errors),
    }
}

pub(super) fn class_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (old, new) = (old.child("spec"), new.child("spec"));
    if old.text("controller") != new.text("controller") {
        errors.invalid(new.path("controller"), &new.text("controller").into(), IMMUTABLE);
    }
}
