//! Values as Go's `%v` prints them, `map[a:1 b:[x y]]`, and Go's names of their types.

use std::{
    fmt::{Display, LowerExp},
    ops::Range,
};

use serde_json::Value;

/// Returns a tree as Go prints its maps and slices; keys are sorted.
pub fn go_print(value: &Value) -> String {
    printed(value, &|leaf| match leaf {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) if !number.is_i64() => number.as_f64().map_or_else(|| number.to_string(), go_general),
        other => other.to_string(),
    })
}

/// Prints a tree as Go does where a string is expected: other values are printed with their type.
pub fn go_print_text(value: &Value) -> String {
    printed(value, &|leaf| match leaf {
        Value::Null => "%!s(<nil>)".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) if !number.is_f64() => format!("%!s(int64={number})"),
        Value::Number(number) => format!("%!s(float64={number})"),
        other => format!("%!s(bool={other})"),
    })
}

/// Returns Go's type of a value that was read without a schema.
pub fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Returns a float as Go writes it in JSON.
pub fn go_float(number: f64) -> String {
    shortest(number, -6..21, 1)
}

/// Returns a float as Go's `%g` prints it.
pub fn go_general<F: Display + LowerExp>(number: F) -> String {
    shortest(number, -4..6, 2)
}

/// Prints a float as Go's `strconv.FormatFloat(value, 'f', -1, 64)` does: without an exponent.
pub fn go_decimal(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}

/// Prints a float as Go's `%v` does: with an exponent from 1e21 on, and below 1e-4.
pub fn go_double(value: f64) -> String {
    if value.is_finite() { shortest(value, -4..21, 2) } else { go_decimal(value) }
}

/// Prints a float in its shortest exact digits: without an exponent if that is in `plain`, else with an exponent of at
/// least `digits` digits.
fn shortest<F: Display + LowerExp>(number: F, plain: Range<i32>, digits: usize) -> String {
    let shortest = format!("{number:e}");
    match shortest.split_once('e').map(|(mantissa, exponent)| (mantissa, exponent.parse::<i32>())) {
        Some((mantissa, Ok(exponent))) if !plain.contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:0digits$}", exponent.abs())
        }
        _ => number.to_string(),
    }
}

/// Prints maps and slices in Go's form, and their leaves with `leaf`.
fn printed(value: &Value, leaf: &impl Fn(&Value) -> String) -> String {
    match value {
        Value::Array(list) => {
            format!("[{}]", list.iter().map(|item| printed(item, leaf)).collect::<Vec<_>>().join(" "))
        }
        Value::Object(fields) => {
            let mut entries: Vec<(&String, &Value)> = fields.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries: Vec<String> =
                entries.iter().map(|(key, value)| format!("{key}:{}", printed(value, leaf))).collect();
            format!("map[{}]", entries.join(" "))
        }
        other => leaf(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn floats_are_written_as_go_writes_them_in_json() {
        for (number, expected) in [
            (0.0, "0"),
            (-1.5, "-1.5"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (-2.5e300, "-2.5e+300"),
            (0.000001, "0.000001"),
            (0.0000001, "1e-7"),
            (-0.0, "-0"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(go_float(number), expected);
        }
    }

    #[test]
    fn floats_are_printed_as_go_prints_them() {
        for (number, expected) in [
            (0.0, "0"),
            (100_000.5, "100000.5"),
            (1e5, "100000"),
            (1e6, "1e+06"),
            (-2.5e300, "-2.5e+300"),
            (0.0001, "0.0001"),
            (0.000015, "1.5e-05"),
        ] {
            assert_eq!(go_general(number), expected);
        }
        assert_eq!(go_general(0.1_f32), "0.1");
    }

    #[test]
    fn doubles_are_printed_with_and_without_an_exponent() {
        for (number, double, decimal) in [
            (0.0, "0", "0"),
            (1e20, "100000000000000000000", "100000000000000000000"),
            (-1e21, "-1e+21", "-1000000000000000000000"),
            (0.00001, "1e-05", "0.00001"),
            (f64::NAN, "NaN", "NaN"),
            (f64::INFINITY, "+Inf", "+Inf"),
            (f64::NEG_INFINITY, "-Inf", "-Inf"),
        ] {
            assert_eq!((go_double(number).as_str(), go_decimal(number).as_str()), (double, decimal), "{number}");
        }
    }

    #[test]
    fn trees_are_printed_as_go_prints_maps() {
        let tree = json!({"b": [1, "x y", true], "a": {"$patch": "burn"}, "c": null, "d": {}, "e": []});
        assert_eq!(go_print(&tree), "map[a:map[$patch:burn] b:[1 x y true] c:<nil> d:map[] e:[]]");
        let expected = "map[a:map[$patch:burn] b:[%!s(int64=1) x y %!s(bool=true)] c:%!s(<nil>) d:map[] e:[]]";
        assert_eq!(go_print_text(&tree), expected);
    }
}
