//! Actual costs of calls.

use super::CelValue;
use crate::estimate::{CHECK_COST, CostRange, LIST_COST, PATTERN_FACTOR, TEXT_FACTOR, costs_one, selector_cost};

/// Returns true if the cost of a call depends on its result.
pub(super) fn needs_result(overload: &str) -> bool {
    matches!(overload, "list_join" | "list_join_string" | "list_slice" | "lists_range" | "list_reverse")
}

fn scaled(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

/// Returns the cost of a call. An argument that is an error is `None`. `overload` is empty if several fit the types.
pub(super) fn of_call(
    function: &str,
    overload: &str,
    args: &[Option<&CelValue<'_>>],
    result: Option<&CelValue<'_>>,
) -> u64 {
    of_lists_and_sets(overload, args, result)
        .or_else(|| of_kubernetes(function, overload, args, result))
        .unwrap_or_else(|| of_standard(overload, args))
}

fn size(args: &[Option<&CelValue<'_>>], index: usize) -> u64 {
    args.get(index).copied().flatten().map_or(1, CelValue::size)
}

fn of_standard(overload: &str, args: &[Option<&CelValue<'_>>]) -> u64 {
    let size = |index| size(args, index);
    match overload {
        "starts_with_string" | "ends_with_string" | "string_to_bytes" | "bytes_to_string" | "strings_quote"
        | "string_format" => scaled(size(0), TEXT_FACTOR),
        "in_list" => size(1),
        "less_string"
        | "greater_string"
        | "less_equals_string"
        | "greater_equals_string"
        | "less_bytes"
        | "greater_bytes"
        | "less_equals_bytes"
        | "greater_equals_bytes"
        | "equals"
        | "not_equals" => scaled(size(0).min(size(1)), TEXT_FACTOR),
        "add_string" | "add_bytes" => scaled(size(0) + size(1), TEXT_FACTOR),
        "matches_string" => scaled(1 + size(0), TEXT_FACTOR).saturating_mul(scaled(size(1), PATTERN_FACTOR)),
        "contains_string" => scaled(size(0), TEXT_FACTOR).saturating_mul(scaled(size(1), TEXT_FACTOR)),
        _ => 1,
    }
}

fn of_lists_and_sets(overload: &str, args: &[Option<&CelValue<'_>>], result: Option<&CelValue<'_>>) -> Option<u64> {
    let size = |index| size(args, index);
    let made = |factor: f64, size: u64| (size as f64 * factor) as u64 + 1 + LIST_COST;
    Some(match overload {
        "list_sets_contains_list" | "list_sets_intersects_list" => size(0).saturating_mul(size(1)).saturating_add(1),
        "list_sets_equivalent_list" => size(0).saturating_mul(size(1)).saturating_mul(2).saturating_add(1),
        "list_slice" | "lists_range" | "list_reverse" => made(1.0, result.map_or(1, CelValue::size)),
        "list_flatten" => made(1.0, size(0)),
        "list_flatten_int" => match args.get(1) {
            Some(Some(CelValue::Int(depth))) => made(*depth as f64, size(0)),
            _ => made(1.0, size(0)),
        },
        "list_distinct" => compared_with_itself(args.first().copied().flatten()),
        _ if overload.starts_with("list_") && overload.ends_with("_sort") => {
            compared_with_itself(args.first().copied().flatten())
        }
        _ if overload.ends_with("_sortByAssociatedKeys") => compared_with_itself(args.get(1).copied().flatten()),
        _ => return None,
    })
}

fn compared_with_itself(list: Option<&CelValue<'_>>) -> u64 {
    let Some(CelValue::List(list)) = list else { return 1 + LIST_COST };
    let texts = matches!(list.get(0), Some(Ok(CelValue::String(_) | CelValue::Bytes(_))));
    let size = list.len() as u64;
    (size.saturating_mul(size) as f64 * if texts { 2.0 + TEXT_FACTOR } else { 2.0 }) as u64 + 1 + LIST_COST
}

fn of_kubernetes(
    function: &str,
    overload: &str,
    args: &[Option<&CelValue<'_>>],
    result: Option<&CelValue<'_>>,
) -> Option<u64> {
    let size = |index| size(args, index);
    Some(match function {
        "check" => CHECK_COST,
        simple if costs_one(simple) => 1,
        "fieldSelector" | "labelSelector" => selector_cost(CostRange::fixed(size(1))).max,
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            args.first().copied().flatten().map_or(1, traversal)
        }
        "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" | "jsonpatch.escapeKey" => {
            scaled(size(0), TEXT_FACTOR)
        }
        "replace" | "split" => scaled(size(0), 2.0 * TEXT_FACTOR),
        "join" => scaled(result.map_or(1, CelValue::size), 2.0 * TEXT_FACTOR),
        "find" | "findAll" => scaled(1 + size(0), TEXT_FACTOR).saturating_mul(scaled(size(1), PATTERN_FACTOR)),
        "ip" if overload == "cidr_ip" => 1,
        "ip" | "cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
            scaled(size(0), TEXT_FACTOR)
        }
        "ip.isCanonical" => scaled(size(0), 2.0 * TEXT_FACTOR),
        "containsIP" | "containsCIDR" => contains_address(function, overload, size(0), size(1)),
        "validate" => match args.first() {
            Some(Some(CelValue::Format(format))) => {
                scaled(1 + size(1), TEXT_FACTOR).saturating_mul(scaled(format.pattern_length, PATTERN_FACTOR))
            }
            _ => return None,
        },
        "_==_" => match args.first() {
            Some(Some(
                CelValue::Quantity(_)
                | CelValue::Ip(_)
                | CelValue::Cidr(_)
                | CelValue::Format(_)
                | CelValue::Url(_)
                | CelValue::Semver(_)
                | CelValue::Check(_),
            )) => 1,
            _ => return None,
        },
        _ => return None,
    })
}

fn contains_address(function: &str, overload: &str, cidr: u64, other: u64) -> u64 {
    let mut cost = scaled(cidr + cidr, TEXT_FACTOR);
    if function == "containsCIDR" {
        cost += scaled(cidr, TEXT_FACTOR) + 1;
    }
    if overload.ends_with("_string") { cost + scaled(other, TEXT_FACTOR) } else { cost }
}

/// Returns the cost of traversing a value once.
fn traversal(value: &CelValue<'_>) -> u64 {
    match value {
        CelValue::String(text) => (text.len() as f64 * TEXT_FACTOR) as u64,
        CelValue::Bytes(bytes) => (bytes.len() as f64 * TEXT_FACTOR) as u64,
        CelValue::List(list) => list.iter().map(|element| element.as_ref().map_or(1, traversal)).sum(),
        CelValue::Map(map) => {
            let each = |key: &CelValue<'_>| traversal(key) + map.find(key).ok().flatten().as_ref().map_or(1, traversal);
            map.keys().iter().map(each).sum()
        }
        _ => 1,
    }
}
