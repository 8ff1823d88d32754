//! Endpoints of services, in their old form.

use std::collections::HashSet;

use super::super::{
    Errors, names,
    selectors::{self, PROTOCOLS},
    view::At,
};

pub(super) fn check(object: &At<'_>, errors: &mut Errors) {
    object.items("subsets").for_each(|subset| subset_of(&subset, errors));
}

/// Validates changed Endpoints; unchanged subsets are skipped, even if they are invalid.
pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if old.get("subsets") != new.get("subsets") {
        check(new, errors);
    }
}

fn subset_of(at: &At<'_>, errors: &mut Errors) {
    let lists = ["addresses", "notReadyAddresses"];
    if lists.iter().all(|list| at.count(list) == 0) {
        errors.required(&at.path, "must specify `addresses` or `notReadyAddresses`");
    }
    for address in lists.iter().flat_map(|list| at.items(list)) {
        let ip = address.child("ip");
        selectors::legacy_ip(&ip, &HashSet::new(), errors);
        address.follows_if_set("hostname", names::dns_label, errors);
        if address.has("nodeName") {
            address.follows("nodeName", names::dns_subdomain, errors);
        }
        selectors::endpoint_ip(&ip, errors);
    }
    let several = at.count("ports") > 1;
    for port in at.items("ports") {
        if several && port.text("name").is_empty() {
            errors.required(port.path("name"), "");
        }
        port.follows_if_set("name", names::dns_label, errors);
        selectors::port_number(&port, "port", errors);
        port.one_of("protocol", &PROTOCOLS, errors);
        if port.has("appProtocol") {
            port.follows("appProtocol", names::qualified_name, errors);
        }
    }
}
