//! Network policies.

use std::collections::HashSet;

use serde_json::Value;

use super::super::{
    Errors, names,
    selectors::{self, cidr, legacy_cidr},
    view::At,
};

pub(super) fn new(object: &At<'_>, errors: &mut Errors) {
    spec(&object.child("spec"), &HashSet::new(), errors);
}

pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let mut existing = HashSet::new();
    for (_, peer) in peers(&old.child("spec")) {
        let Some(block) = peer.present("ipBlock") else { continue };
        existing.insert(block.text("cidr"));
        existing.extend(block.items("except").map(|range| range.as_text()));
    }
    let from = errors.len();
    spec(&new.child("spec"), &existing, errors);
    errors.tolerate(from, || {
        let mut before = Errors::default();
        selectors::tolerated_selector(&old.child("spec").child("podSelector"), &mut before);
        before
    });
}

const RULES: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

/// Returns all rules' peers.
fn peers<'v>(spec: &At<'v>) -> Vec<(&'static str, At<'v>)> {
    let mut all = Vec::new();
    for (rules, peers) in RULES {
        for rule in spec.items(rules) {
            all.extend(rule.items(peers).map(|peer| (rules, peer)));
        }
    }
    all
}

fn spec(spec: &At<'_>, existing: &HashSet<&str>, errors: &mut Errors) {
    selectors::tolerated_selector(&spec.child("podSelector"), errors);
    for (rules, peers) in RULES {
        for rule in spec.items(rules) {
            rule.items("ports").for_each(|one| port(&one, errors));
            rule.items(peers).for_each(|one| peer(&one, existing, errors));
        }
    }
    if spec.count("policyTypes") > 2 {
        let why = "may not specify more than two policyTypes";
        errors.invalid(spec.path("policyTypes"), spec.get("policyTypes"), why);
        return;
    }
    for kind in spec.items("policyTypes").filter(|kind| !matches!(kind.as_text(), "Ingress" | "Egress")) {
        errors.not_supported(&kind.path, kind.value, &["Ingress", "Egress"]);
    }
}

fn port(at: &At<'_>, errors: &mut Errors) {
    at.supported_if_present("protocol", &["TCP", "UDP", "SCTP"], errors);
    let end = at.int("endPort");
    let (path, shown) = (at.path("endPort"), at.get("endPort"));
    match (at.get("port"), end) {
        (Value::Null, Some(_)) => errors.invalid(path, shown, "may not be specified when `port` is not specified"),
        (Value::Null, None) => {}
        (Value::String(_), end) => {
            if end.is_some() {
                errors.invalid(path, shown, "may not be specified when `port` is non-numeric");
            }
            at.follows("port", names::port_name, errors);
        }
        (port, end) => {
            selectors::port_number(at, "port", errors);
            if end.is_some_and(|end| end < at.number("port")) {
                errors.invalid(path, port, "must be greater than or equal to `port`");
            }
            if end.is_some() {
                selectors::port_number(at, "endPort", errors);
            }
        }
    }
}

fn peer(at: &At<'_>, existing: &HashSet<&str>, errors: &mut Errors) {
    let selecting = ["podSelector", "namespaceSelector"].into_iter().filter_map(|name| at.present(name));
    let count = selecting.inspect(|selector| selectors::tolerated_selector(selector, errors)).count();
    match (count, at.present("ipBlock")) {
        (0, None) => errors.required(&at.path, "must specify a peer"),
        (_, None) => {}
        (_, Some(block)) => {
            ip_block(&block, existing, errors);
            if count > 0 {
                errors.forbidden(&at.path, "may not specify both ipBlock and another peer");
            }
        }
    }
}

fn ip_block(at: &At<'_>, existing: &HashSet<&str>, errors: &mut Errors) {
    if !at.needs("cidr", errors) {
        return;
    }
    legacy_cidr(&at.path("cidr"), at.text("cidr"), existing, errors);
    let Some(outer) = cidr(at.text("cidr")) else { return };
    for except in at.items("except") {
        legacy_cidr(&except.path, except.as_text(), existing, errors);
        if cidr(except.as_text()).is_some_and(|inner| !selectors::is_within(outer, inner)) {
            errors.invalid(&except.path, except.value, "must be a strict subset of `cidr`");
        }
    }
}
