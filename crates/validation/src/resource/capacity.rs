//! Validation of device capacity: the share of a device that one request gets.

use portolan_types::quantity::Quantity;
use serde_json::Value;

use super::{
    super::{Errors, selectors, view::At},
    parts,
};

/// Most amounts of which a request may ask for one.
const MAX_CHOICES: usize = 10;

pub(super) fn check(at: &At<'_>, shared: bool, errors: &mut Errors) {
    let Some(policy) = at.present("requestPolicy") else { return };
    if !shared {
        return errors.forbidden(&policy.path, "allowMultipleAllocations must be true");
    }
    let (choices, range) = (policy.count("validValues") > 0, policy.present("validRange"));
    let most = at.get("value");
    match (choices, range) {
        (true, Some(_)) => {
            let why = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time";
            errors.forbidden(&policy.path, why);
        }
        (true, None) if policy.has("default") => self::choices(most, &policy, errors),
        (false, Some(range)) if policy.has("default") => self::range(most, policy.get("default"), &range, errors),
        (true, None) => errors.required(policy.path("default"), "required when validValues is defined"),
        (false, Some(_)) => errors.required(policy.path("default"), "required when validRange is defined"),
        (false, None) => {}
    }
}

fn amount(value: &Value) -> Quantity {
    selectors::quantity(value).unwrap_or(Quantity::ZERO)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("0")
}

fn choices(most: &Value, policy: &At<'_>, errors: &mut Errors) {
    let list: Vec<At<'_>> = policy.items("validValues").collect();
    for pair in list.windows(2).filter(|pair| amount(pair[0].value) > amount(pair[1].value)) {
        errors.invalid(&pair[1].path, pair[1].value, "values must be sorted in ascending order");
    }
    let choice = |one: &At<'_>, errors: &mut Errors| {
        if amount(one.value) > amount(most) {
            let why = format!("option is larger than capacity value: {}", text(most));
            errors.invalid(&one.path, one.value, &why);
        }
    };
    let key = |one: &At<'_>| Value::from(amount(one.value).units().to_string());
    parts::set(policy, "validValues", MAX_CHOICES, choice, key, errors);
    let default = policy.get("default");
    let known = list.len() <= MAX_CHOICES && list.iter().any(|one| amount(one.value) == amount(default));
    if !known {
        let why = "default value is not valid according to the requestPolicy";
        errors.invalid(policy.path("validValues"), default, why);
    }
}

fn range(most: &Value, default: &Value, range: &At<'_>, errors: &mut Errors) {
    let [min, max, step] = ["min", "max", "step"].map(|name| range.child(name));
    if min.is_missing() {
        return errors.required(&min.path, "required when validRange is defined");
    }
    let mut wrong = |at: &At<'_>, shown: &Value, why: &str, bound: &Value| {
        errors.invalid(&at.path, shown, &format!("{why}: {}", text(bound)));
    };
    let above = |one: &Value, other: &Value| amount(one) > amount(other);
    if above(min.value, most) {
        wrong(&min, min.value, "min is larger than capacity value", most);
    }
    if above(min.value, default) {
        wrong(&min, default, "default is less than min", min.value);
    }
    if !max.is_missing() && above(min.value, max.value) {
        wrong(&max, min.value, "min is larger than max", max.value);
    }
    if above(max.value, most) {
        wrong(&max, max.value, "max is larger than capacity value", most);
    }
    if !max.is_missing() && above(default, max.value) {
        wrong(&max, default, "default is more than max", max.value);
    }
    if step.is_missing() {
        return;
    }
    let first = amount(min.value) + amount(step.value);
    if first > amount(most) {
        wrong(&step, step.value, &format!("one step {first} is larger than capacity value"), most);
    }
    for value in [default, max.value].into_iter().filter(|value| !value.is_null()) {
        let (beyond, one) = (amount(value).units().wrapping_sub(amount(min.value).units()), amount(step.value).units());
        // Go's integers wrap, and the remainder of the least integer by minus one is zero.
        if one != 0 && beyond.wrapping_rem(one) != 0 {
            let (one, from) = (text(step.value), text(min.value));
            let why = format!("value is not a multiple of a given step ({one}) from ({from})");
            errors.invalid(&step.path, value, &why);
        }
    }
}
