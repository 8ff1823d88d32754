//! Addresses and ranges of services.

use super::super::{
    Errors, FieldError, internal, names,
    selectors::{self, cidr_complaint},
    view::{At, IMMUTABLE, is_same},
};

pub(super) fn address(object: &At<'_>, errors: &mut Errors) {
    let Some(parent) = object.child("spec").present("parentRef") else {
        errors.required("spec.parentRef", "");
        return;
    };
    parent.follows_if_set("group", names::dns_subdomain, errors);
    parent.needs_to_follow("resource", names::path_segment, errors);
    parent.needs_to_follow("name", names::path_segment, errors);
    parent.follows_if_set("namespace", names::path_segment, errors);
}

pub(super) fn address_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec").child("parentRef"), new.child("spec").child("parentRef"));
    if !is_same(before.value, after.value) {
        let shown = internal::printed_value("*ParentReference", after.value);
        errors.push(FieldError::invalid_shown(&after.path, &shown, IMMUTABLE));
    }
}

pub(super) fn cidrs(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    let path = spec.path("cidrs");
    match spec.count("cidrs") {
        0 => return errors.required(path, "at least one CIDR required"),
        1 | 2 => {}
        _ => {
            let shown = internal::printed_value("ServiceCIDRSpec", spec.value);
            return errors.push(FieldError::invalid_shown(path, &shown, "may only hold up to 2 values"));
        }
    }
    for range in spec.items("cidrs") {
        if let Some(why) = cidr_complaint(range.as_text()) {
            errors.invalid(&range.path, range.value, why);
        }
    }
    let families: Vec<_> = spec.items("cidrs").map(|range| selectors::cidr(range.as_text())).collect();
    if let [Some((one, _)), Some((other, _))] = families[..]
        && one.to_canonical().is_ipv4() == other.to_canonical().is_ipv4()
    {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.invalid(path, spec.get("cidrs"), why);
    }
}

pub(super) fn cidrs_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    let counts = (before.count("cidrs"), after.count("cidrs"));
    if counts.0 != counts.1 && counts != (1, 2) {
        errors.invalid(after.path("cidrs"), after.get("cidrs"), IMMUTABLE);
        return;
    }
    for (_, range) in before.items("cidrs").zip(after.items("cidrs")).filter(|(was, is)| was.value != is.value) {
        errors.invalid(&range.path, range.value, IMMUTABLE);
    }
    if counts == (1, 2) {
        cidrs(new, errors);
    }
}
