//! Conversions between types.

use super::{Context, Function, error};
use crate::program::{Failure, Meter, Value};
use crate::time;
use crate::types::Type;
use portolan_types::duration;
use std::collections::HashMap;

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "bool" => |args, _| one(args, "bool", to_bool),
        "bytes" => to_bytes,
        "double" => |args, _| one(args, "double", to_double),
        "duration" => |args, _| one(args, "duration", to_duration),
        "dyn" => |args, _| one(args, "dyn", |value| Some(Ok(value.clone()))),
        "int" => |args, _| one(args, "int", to_int),
        "string" => to_string,
        "timestamp" => |args, _| one(args, "timestamp", to_timestamp),
        "type" => |args, _| one(args, "type", |value| Some(Ok(Value::Type(value.type_of())))),
        "uint" => |args, _| one(args, "uint", to_uint),
        "size" => |args, _| one(args, "size", size),
        _ => return None,
    })
}

/// A conversion that a constant stands for.
///
/// # Errors
/// What the conversion says: the expression cannot be.
pub(crate) fn convert_constant(function: &str, value: &Value<'static>) -> Result<Value<'static>, String> {
    let Some(run) = self::function(function) else { return Err(format!("no such overload: {function}(...)")) };
    let context = Context { patterns: &HashMap::new(), meter: Meter::default() };
    run(std::slice::from_ref(value), &context).map_err(|failure| failure.message().to_owned())
}

type Converted<'a> = Option<Result<Value<'a>, String>>;

fn one<'a>(
    args: &[Value<'a>],
    function: &str,
    convert: impl Fn(&Value<'a>) -> Converted<'a>,
) -> Result<Value<'a>, Failure> {
    match args {
        [value] => {
            convert(value).map_or_else(|| no_overload(function, args), |converted| converted.map_err(Failure::Error))
        }
        _ => no_overload(function, args),
    }
}

fn from_text<'a>(value: Option<Value<'a>>, to: &Type) -> Converted<'a> {
    Some(value.ok_or_else(|| format!("type conversion error from 'string' to '{}'", to.name())))
}

fn size<'a>(value: &Value<'a>) -> Converted<'a> {
    match value {
        Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_) => {
            Some(Ok(Value::Int(i64::try_from(value.size()).unwrap_or(i64::MAX))))
        }
        _ => None,
    }
}

fn to_bool<'a>(value: &Value<'a>) -> Converted<'a> {
    match value {
        Value::Bool(value) => Some(Ok(Value::Bool(*value))),
        Value::String(text) => from_text(
            match &**text {
                "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(Value::Bool(true)),
                "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(Value::Bool(false)),
                _ => None,
            },
            &Type::Bool,
        ),
        _ => None,
    }
}

fn to_bytes<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Bytes(bytes)] => Ok(Value::Bytes(bytes.clone())),
        [Value::String(text)] => {
            context.meter.bytes(text.len())?;
            Ok(Value::Bytes(text.as_bytes().into()))
        }
        _ => no_overload("bytes", args),
    }
}

fn to_double<'a>(value: &Value<'a>) -> Converted<'a> {
    match value {
        Value::Double(value) => Some(Ok(Value::Double(*value))),
        Value::Int(value) => Some(Ok(Value::Double(*value as f64))),
        Value::Uint(value) => Some(Ok(Value::Double(*value as f64))),
        Value::String(text) => from_text(parse_double(text).map(Value::Double), &Type::Double),
        _ => None,
    }
}

/// As Go reads a float: no white space, and no number that is too large.
pub(super) fn parse_double(text: &str) -> Option<f64> {
    let named = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let value: f64 = text.parse().ok()?;
    (value.is_finite() || matches!(named.as_str(), "inf" | "infinity" | "nan")).then_some(value)
}

fn to_duration<'a>(value: &Value<'a>) -> Converted<'a> {
    match value {
        Value::Duration(nanos) => Some(Ok(Value::Duration(*nanos))),
        Value::Int(nanos) => Some(Ok(Value::Duration(*nanos))),
        Value::String(text) => from_text(duration::parse(text).ok().map(Value::Duration), &Type::Duration),
        _ => None,
    }
}

fn to_timestamp<'a>(value: &Value<'a>) -> Converted<'a> {
    match value {
        Value::Timestamp(time) => Some(Ok(Value::Timestamp(*time))),
        Value::Int(seconds) => {
            Some(time::from_seconds(*seconds).map(Value::Timestamp).ok_or_else(|| "timestamp overflow".to_owned()))
        }
        Value::String(text) => from_text(time::parse_timestamp(text).map(Value::Timestamp), &Type::Timestamp),
        _ => None,
    }
}

fn to_int<'a>(value: &Value<'a>) -> Converted<'a> {
    let overflow = || "integer overflow".to_owned();
    match value {
        Value::Int(value) => Some(Ok(Value::Int(*value))),
        Value::Uint(value) => Some(i64::try_from(*value).map(Value::Int).map_err(|_| overflow())),
        Value::Double(value)
            if value.is_finite() && *value > -9.223_372_036_854_776e18 && *value < 9.223_372_036_854_776e18 =>
        {
            Some(Ok(Value::Int(*value as i64)))
        }
        Value::Double(_) => Some(Err(overflow())),
        Value::Duration(nanos) => Some(Ok(Value::Int(*nanos))),
        Value::Timestamp(time) => Some(Ok(Value::Int(time.as_second()))),
        Value::String(text) => from_text(text.parse().ok().map(Value::Int), &Type::Int),
        _ => None,
    }
}

fn to_uint<'a>(value: &Value<'a>) -> Converted<'a> {
    let overflow = || "unsigned integer overflow".to_owned();
    match value {
        Value::Uint(value) => Some(Ok(Value::Uint(*value))),
        Value::Int(value) => Some(u64::try_from(*value).map(Value::Uint).map_err(|_| overflow())),
        Value::Double(value) if value.is_finite() && *value >= 0.0 && *value < 1.844_674_407_370_955_2e19 => {
            Some(Ok(Value::Uint(*value as u64)))
        }
        Value::Double(_) => Some(Err(overflow())),
        Value::String(text) => from_text(
            text.strip_prefix('+').is_none().then(|| text.parse().ok()).flatten().map(Value::Uint),
            &Type::Uint,
        ),
        _ => None,
    }
}

/// The text of a value that has one.
pub(super) fn text_of(value: &Value<'_>) -> Option<Result<String, String>> {
    Some(Ok(match value {
        Value::String(text) => text.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => go_double(*value),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => return Some(Err("invalid UTF-8 in bytes, cannot convert to string".to_owned())),
        },
        Value::Duration(nanos) => time::duration_text(*nanos),
        Value::Timestamp(time) => time.to_string(),
        Value::Ip(ip) => ip.to_string(),
        Value::Cidr(cidr) => cidr.to_string(),
        _ => return None,
    }))
}

/// Go's `%g`: an exponent where a number is very large or very small.
fn go_double(value: f64) -> String {
    let magnitude = value.abs();
    if !value.is_finite() || magnitude == 0.0 || (1e-4..1e21).contains(&magnitude) {
        return time::double_text(value);
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

fn to_string<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    let [value] = args else { return no_overload("string", args) };
    if let Value::String(text) = value {
        return Ok(Value::String(text.clone()));
    }
    match text_of(value) {
        Some(Ok(text)) => context.meter.text(text),
        Some(Err(message)) => error(message),
        None => no_overload("string", args),
    }
}

/// None of several overloads fits these arguments.
fn no_overload<'a>(function: &str, args: &[Value<'_>]) -> Result<Value<'a>, Failure> {
    let names: Vec<String> = args.iter().map(|arg| arg.type_of().name().to_owned()).collect();
    error(format!("no such overload: {function}({})", names.join(", ")))
}
