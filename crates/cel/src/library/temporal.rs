//! Parts of times and durations.

use super::{Function, no_overload};
use crate::program::{Failure, Value};
use crate::time::{self, Part};

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "getFullYear" => |args, _| part(args, Part::Year, None),
        "getMonth" => |args, _| part(args, Part::Month, None),
        "getDayOfYear" => |args, _| part(args, Part::DayOfYear, None),
        "getDayOfMonth" => |args, _| part(args, Part::DayOfMonth, None),
        "getDate" => |args, _| part(args, Part::Date, None),
        "getDayOfWeek" => |args, _| part(args, Part::DayOfWeek, None),
        "getHours" => |args, _| part(args, Part::Hours, Some(3_600_000_000_000)),
        "getMinutes" => |args, _| part(args, Part::Minutes, Some(60_000_000_000)),
        "getSeconds" => |args, _| part(args, Part::Seconds, Some(1_000_000_000)),
        "getMilliseconds" => |args, _| part(args, Part::Milliseconds, Some(1_000_000)),
        _ => return None,
    })
}

/// A part of a time, or all of a duration in a unit.
fn part<'a>(args: &[Value<'a>], part: Part, unit: Option<i64>) -> Result<Value<'a>, Failure> {
    match (args, unit) {
        ([Value::Timestamp(time)], _) => Ok(Value::Int(time::part(*time, "UTC", part)?)),
        ([Value::Timestamp(time), Value::String(zone)], _) => Ok(Value::Int(time::part(*time, zone, part)?)),
        ([Value::Duration(nanos)], Some(unit)) => Ok(Value::Int(nanos / unit)),
        _ => no_overload(),
    }
}
