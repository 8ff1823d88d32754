//! Conversions between types.

use super::{CallContext, LibraryFunction, error};
use crate::program::{CelValue, EvaluationFailure, Meter};
use portolan_gocompat::print::go_double;

use crate::time;
use crate::types::CelType;
use portolan_types::duration;
use std::collections::HashMap;

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
    Some(match name {
        "bool" => |args, _| one(args, "bool", to_bool),
        "bytes" => to_bytes,
        "double" => |args, _| one(args, "double", to_double),
        "duration" => |args, _| one(args, "duration", to_duration),
        "dyn" => |args, _| one(args, "dyn", |value| Some(Ok(value.clone()))),
        "int" => |args, _| one(args, "int", to_int),
        "string" => to_string,
        "timestamp" => |args, _| one(args, "timestamp", to_timestamp),
        "type" => |args, _| one(args, "type", |value| Some(Ok(CelValue::Type(value.type_of())))),
        "uint" => |args, _| one(args, "uint", to_uint),
        "size" => |args, _| one(args, "size", size),
        _ => return None,
    })
}

/// Converts a constant at compile time.
///
/// # Errors
/// The error of the conversion; the expression is invalid.
pub(crate) fn convert_constant(function: &str, value: &CelValue<'static>) -> Result<CelValue<'static>, String> {
    let Some(run) = self::function(function) else { return Err(format!("no such overload: {function}(...)")) };
    let context = CallContext { patterns: &HashMap::new(), meter: Meter::default() };
    run(std::slice::from_ref(value), &context).map_err(|failure| failure.message().to_owned())
}

type Converted<'a> = Option<Result<CelValue<'a>, String>>;

fn one<'a>(
    args: &[CelValue<'a>],
    function: &str,
    convert: impl Fn(&CelValue<'a>) -> Converted<'a>,
) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [value] => convert(value)
            .map_or_else(|| no_overload(function, args), |converted| converted.map_err(EvaluationFailure::Error)),
        _ => no_overload(function, args),
    }
}

fn from_text<'a>(value: Option<CelValue<'a>>, to: &CelType) -> Converted<'a> {
    Some(value.ok_or_else(|| format!("type conversion error from 'string' to '{}'", to.name())))
}

fn size<'a>(value: &CelValue<'a>) -> Converted<'a> {
    match value {
        CelValue::String(_) | CelValue::Bytes(_) | CelValue::List(_) | CelValue::Map(_) => {
            Some(Ok(CelValue::Int(i64::try_from(value.size()).unwrap_or(i64::MAX))))
        }
        _ => None,
    }
}

fn to_bool<'a>(value: &CelValue<'a>) -> Converted<'a> {
    match value {
        CelValue::Bool(value) => Some(Ok(CelValue::Bool(*value))),
        CelValue::String(text) => from_text(
            match &**text {
                "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(CelValue::Bool(true)),
                "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(CelValue::Bool(false)),
                _ => None,
            },
            &CelType::Bool,
        ),
        _ => None,
    }
}

fn to_bytes<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Bytes(bytes)] => Ok(CelValue::Bytes(bytes.clone())),
        [CelValue::String(text)] => {
            context.meter.bytes(text.len())?;
            Ok(CelValue::Bytes(text.as_bytes().into()))
        }
        _ => no_overload("bytes", args),
    }
}

fn to_double<'a>(value: &CelValue<'a>) -> Converted<'a> {
    match value {
        CelValue::Double(value) => Some(Ok(CelValue::Double(*value))),
        CelValue::Int(value) => Some(Ok(CelValue::Double(*value as f64))),
        CelValue::Uint(value) => Some(Ok(CelValue::Double(*value as f64))),
        CelValue::String(text) => from_text(parse_double(text).map(CelValue::Double), &CelType::Double),
        _ => None,
    }
}

/// Parses a float as Go does: no white space, and no number out of range.
pub(super) fn parse_double(text: &str) -> Option<f64> {
    let named = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let value: f64 = text.parse().ok()?;
    (value.is_finite() || matches!(named.as_str(), "inf" | "infinity" | "nan")).then_some(value)
}

fn to_duration<'a>(value: &CelValue<'a>) -> Converted<'a> {
    match value {
        CelValue::Duration(nanos) => Some(Ok(CelValue::Duration(*nanos))),
        CelValue::Int(nanos) => Some(Ok(CelValue::Duration(*nanos))),
        CelValue::String(text) => from_text(duration::parse(text).ok().map(CelValue::Duration), &CelType::Duration),
        _ => None,
    }
}

fn to_timestamp<'a>(value: &CelValue<'a>) -> Converted<'a> {
    match value {
        CelValue::Timestamp(time) => Some(Ok(CelValue::Timestamp(*time))),
        CelValue::Int(seconds) => {
            Some(time::from_seconds(*seconds).map(CelValue::Timestamp).ok_or_else(|| "timestamp overflow".to_owned()))
        }
        CelValue::String(text) => from_text(time::parse_timestamp(text).map(CelValue::Timestamp), &CelType::Timestamp),
        _ => None,
    }
}

fn to_int<'a>(value: &CelValue<'a>) -> Converted<'a> {
    let overflow = || "integer overflow".to_owned();
    match value {
        CelValue::Int(value) => Some(Ok(CelValue::Int(*value))),
        CelValue::Uint(value) => Some(i64::try_from(*value).map(CelValue::Int).map_err(|_| overflow())),
        CelValue::Double(value)
            if value.is_finite() && *value > -9.223_372_036_854_776e18 && *value < 9.223_372_036_854_776e18 =>
        {
            Some(Ok(CelValue::Int(*value as i64)))
        }
        CelValue::Double(_) => Some(Err(overflow())),
        CelValue::Duration(nanos) => Some(Ok(CelValue::Int(*nanos))),
        CelValue::Timestamp(time) => Some(Ok(CelValue::Int(time.as_second()))),
        CelValue::String(text) => from_text(text.parse().ok().map(CelValue::Int), &CelType::Int),
        _ => None,
    }
}

fn to_uint<'a>(value: &CelValue<'a>) -> Converted<'a> {
    let overflow = || "unsigned integer overflow".to_owned();
    match value {
        CelValue::Uint(value) => Some(Ok(CelValue::Uint(*value))),
        CelValue::Int(value) => Some(u64::try_from(*value).map(CelValue::Uint).map_err(|_| overflow())),
        CelValue::Double(value) if value.is_finite() && *value >= 0.0 && *value < 1.844_674_407_370_955_2e19 => {
            Some(Ok(CelValue::Uint(*value as u64)))
        }
        CelValue::Double(_) => Some(Err(overflow())),
        CelValue::String(text) => from_text(
            text.strip_prefix('+').is_none().then(|| text.parse().ok()).flatten().map(CelValue::Uint),
            &CelType::Uint,
        ),
        _ => None,
    }
}

/// Returns the string form of a value, if it has one.
pub(super) fn text_of(value: &CelValue<'_>) -> Option<Result<String, String>> {
    Some(Ok(match value {
        CelValue::String(text) => text.to_string(),
        CelValue::Bool(value) => value.to_string(),
        CelValue::Int(value) => value.to_string(),
        CelValue::Uint(value) => value.to_string(),
        CelValue::Double(value) => go_double(*value),
        CelValue::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => return Some(Err("invalid UTF-8 in bytes, cannot convert to string".to_owned())),
        },
        CelValue::Duration(nanos) => time::duration_text(*nanos),
        CelValue::Timestamp(time) => time.to_string(),
        CelValue::Ip(ip) => ip.to_string(),
        CelValue::Cidr(cidr) => cidr.to_string(),
        _ => return None,
    }))
}

fn to_string<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [value] = args else { return no_overload("string", args) };
    if let CelValue::String(text) = value {
        return Ok(CelValue::String(text.clone()));
    }
    match text_of(value) {
        Some(Ok(text)) => context.meter.text(text),
        Some(Err(message)) => error(message),
        None => no_overload("string", args),
    }
}

/// Returns the error for arguments that fit none of several overloads.
fn no_overload<'a>(function: &str, args: &[CelValue<'_>]) -> Result<CelValue<'a>, EvaluationFailure> {
    let names: Vec<String> = args.iter().map(|arg| arg.type_of().name().to_owned()).collect();
    error(format!("no such overload: {function}({})", names.join(", ")))
}
