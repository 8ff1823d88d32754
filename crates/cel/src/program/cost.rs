//! What a call costs when it is made.

use super::Value;
use crate::estimate::{CHECK_COST, LIST_COST, PATTERN_FACTOR, Range, TEXT_FACTOR, costs_one, selector_cost};

/// Whether the cost of a call hangs on what it gives.
pub(super) fn needs_result(overload: &str) -> bool {
    matches!(overload, "list_join" | "list_join_string" | "list_slice" | "lists_range" | "list_reverse")
}

fn scaled(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

/// The cost of a call; an argument that is an error is `None`. `overload` is empty where several fitted the types.
pub(super) fn of_call(function: &str, overload: &str, args: &[Option<&Value<'_>>], result: Option<&Value<'_>>) -> u64 {
    of_lists_and_sets(overload, args, result)
        .or_else(|| of_kubernetes(function, overload, args, result))
        .unwrap_or_else(|| of_standard(overload, args))
}

fn size(args: &[Option<&Value<'_>>], index: usize) -> u64 {
    args.get(index).copied().flatten().map_or(1, Value::size)
}

fn of_standard(overload: &str, args: &[Option<&Value<'_>>]) -> u64 {
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

fn of_lists_and_sets(overload: &str, args: &[Option<&Value<'_>>], result: Option<&Value<'_>>) -> Option<u64> {
    let size = |index| size(args, index);
    let made = |factor: f64, size: u64| (size as f64 * factor) as u64 + 1 + LIST_COST;
    Some(match overload {
        "list_sets_contains_list" | "list_sets_intersects_list" => size(0).saturating_mul(size(1)).saturating_add(1),
        "list_sets_equivalent_list" => size(0).saturating_mul(size(1)).saturating_mul(2).saturating_add(1),
        "list_slice" | "lists_range" | "list_reverse" => made(1.0, result.map_or(1, Value::size)),
        "list_flatten" => made(1.0, size(0)),
        "list_flatten_int" => match args.get(1) {
            Some(Some(Value::Int(depth))) => made(*depth as f64, size(0)),
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

fn compared_with_itself(list: Option<&Value<'_>>) -> u64 {
    let Some(Value::List(list)) = list else { return 1 + LIST_COST };
    let texts = matches!(list.get(0), Some(Ok(Value::String(_) | Value::Bytes(_))));
    let size = list.len() as u64;
    (size.saturating_mul(size) as f64 * if texts { 2.0 + TEXT_FACTOR } else { 2.0 }) as u64 + 1 + LIST_COST
}

fn of_kubernetes(
    function: &str,
    overload: &str,
    args: &[Option<&Value<'_>>],
    result: Option<&Value<'_>>,
) -> Option<u64> {
    let size = |index| size(args, index);
    Some(match function {
        "check" => CHECK_COST,
        simple if costs_one(simple) => 1,
        "fieldSelector" | "labelSelector" => selector_cost(Range::fixed(size(1))).max,
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            args.first().copied().flatten().map_or(1, traversal)
        }
        "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" | "jsonpatch.escapeKey" => {
            scaled(size(0), TEXT_FACTOR)
        }
        "replace" | "split" => scaled(size(0), 2.0 * TEXT_FACTOR),
        "join" => scaled(result.map_or(1, Value::size), 2.0 * TEXT_FACTOR),
        "find" | "findAll" => scaled(1 + size(0), TEXT_FACTOR).saturating_mul(scaled(size(1), PATTERN_FACTOR)),
        "ip" if overload == "cidr_ip" => 1,
        "ip" | "cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
            scaled(size(0), TEXT_FACTOR)
        }
        "ip.isCanonical" => scaled(size(0), 2.0 * TEXT_FACTOR),
        "containsIP" | "containsCIDR" => contains_address(function, overload, size(0), size(1)),
        "validate" => match args.first() {
            Some(Some(Value::Format(format))) => {
                scaled(1 + size(1), TEXT_FACTOR).saturating_mul(scaled(format.pattern_length, PATTERN_FACTOR))
            }
            _ => return None,
        },
        "_==_" => match args.first() {
            Some(Some(
                Value::Quantity(_)
                | Value::Ip(_)
                | Value::Cidr(_)
                | Value::Format(_)
                | Value::Url(_)
                | Value::Semver(_)
                | Value::Check(_),
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

/// Walking through a value once.
fn traversal(value: &Value<'_>) -> u64 {
    match value {
        Value::String(text) => (text.len() as f64 * TEXT_FACTOR) as u64,
        Value::Bytes(bytes) => (bytes.len() as f64 * TEXT_FACTOR) as u64,
        Value::List(list) => list.iter().map(|element| element.as_ref().map_or(1, traversal)).sum(),
        Value::Map(map) => {
            let each = |key: &Value<'_>| traversal(key) + map.find(key).ok().flatten().as_ref().map_or(1, traversal);
            map.keys().iter().map(each).sum()
        }
        _ => 1,
    }
}
