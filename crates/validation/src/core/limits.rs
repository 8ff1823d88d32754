//! Ranges of limits.

use std::collections::{BTreeSet, HashSet};

use portolan_types::quantity::Quantity;

use super::{
    super::{Errors, names, selectors, view::At},
    pods,
};

pub(super) fn check(object: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for limit in object.child("spec").items("limits") {
        let kind = limit.text("type");
        type_name(&limit, errors);
        if !taken.insert(kind) {
            errors.duplicate(limit.path("type"), &kind.into());
        }
        names_of(&limit, errors);
        let lists = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
        let all: BTreeSet<&str> = lists.iter().flat_map(|list| limit.entries(list)).map(|(name, _)| name).collect();
        all.into_iter().for_each(|name| amounts(&limit, name, errors));
    }
}

fn type_name(limit: &At<'_>, errors: &mut Errors) {
    let kind = limit.text("type");
    let details = names::qualified_name(kind);
    let standard = kind.contains('/') || matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim");
    if details.is_empty() && !standard {
        let why = "must be a standard limit type or fully qualified";
        errors.invalid(limit.path("type"), &kind.into(), why);
    }
    errors.invalid_each(limit.path("type"), &kind.into(), details);
}

fn names_of(limit: &At<'_>, errors: &mut Errors) {
    let kind = limit.text("type");
    let each = |list: &str, errors: &mut Errors| {
        limit.entries(list).for_each(|(name, amount)| pods::limit_range_name(kind, name, &amount, errors));
    };
    each("max", errors);
    each("min", errors);
    for list in ["default", "defaultRequest"] {
        if kind != "Pod" {
            each(list, errors);
        } else if limit.count(list) > 0 {
            errors.forbidden(limit.path(list), "may not be specified when `type` is 'Pod'");
        }
    }
    let has_storage = ["min", "max"].iter().any(|list| limit.child(list).has("storage"));
    if kind == "PersistentVolumeClaim" && !has_storage {
        let why = "either minimum or maximum storage value is required, but neither was provided";
        errors.required(limit.path("limits"), why);
    }
    each("maxLimitRequestRatio", errors);
}

/// Required orders of limits: field and word of both, the field of the error, the field whose value is shown.
const ORDERS: [(&str, &str, &str, &str, &str, &str); 6] = [
    ("min", "min", "max", "max", "min", "min"),
    ("min", "min", "defaultRequest", "default request", "defaultRequest", "defaultRequest"),
    ("defaultRequest", "default request", "max", "max", "defaultRequest", "defaultRequest"),
    ("defaultRequest", "default request", "default", "default limit", "defaultRequest", "defaultRequest"),
    ("min", "min", "default", "default", "default", "min"),
    ("default", "default", "max", "max", "default", "max"),
];

fn amounts(limit: &At<'_>, name: &str, errors: &mut Errors) {
    let ignored = |list: &str| limit.text("type") == "Pod" && list.starts_with("default");
    let amount = |list: &str| selectors::quantity(limit.child(list).get(name)).filter(|_| !ignored(list));
    for (above, above_word, below, below_word, at, shown) in ORDERS {
        if let (Some(more), Some(less)) = (amount(above), amount(below))
            && more > less
        {
            let text = |list: &str| limit.child(list).get(name).as_str().unwrap_or_default();
            let why = format!("{above_word} value {} is greater than {below_word} value {}", text(above), text(below));
            errors.invalid(limit.path(at).key(name), limit.child(shown).get(name), &why);
        }
    }
    if let Some(most) = amount("maxLimitRequestRatio") {
        ratio(limit, name, most, amount("min"), amount("max"), errors);
    }
    let overcommits = pods::is_native(name) && !name.starts_with("hugepages-");
    if let (Some(default), Some(request)) = (amount("default"), amount("defaultRequest"))
        && !overcommits
        && default != request
    {
        let why = format!("default value {default} must equal to defaultRequest value {request} in {name}");
        errors.invalid(limit.path("defaultRequest").key(name), limit.child("defaultRequest").get(name), &why);
    }
}

/// Returns Go's `float64` of a quantity, in thousandths.
#[expect(clippy::cast_precision_loss, reason = "kube-apiserver divides floating-point numbers")]
fn float(amount: Quantity) -> f64 {
    amount.nanos() as f64
}

fn ratio(
    limit: &At<'_>,
    name: &str,
    most: Quantity,
    min: Option<Quantity>,
    max: Option<Quantity>,
    errors: &mut Errors,
) {
    let path = limit.path("maxLimitRequestRatio").key(name);
    let value = limit.child("maxLimitRequestRatio").get(name);
    if most < Quantity::from_units(1) {
        errors.invalid(&path, value, &format!("ratio {most} is less than 1"));
    }
    if let (Some(min), Some(max)) = (min, max) {
        let (is, may) = (float(most) / 1e9, float(max) / float(min));
        if is > may {
            errors.invalid(&path, value, &format!("ratio {most} is greater than max/min = {may:.6}"));
        }
    }
}
