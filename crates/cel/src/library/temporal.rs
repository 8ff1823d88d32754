//! Parts of times and durations.

use super::{LibraryFunction, no_overload};
use crate::program::{CelValue, EvaluationFailure};
use crate::time::{self, TimePart};

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
    Some(match name {
        "getFullYear" => |args, _| part(args, TimePart::Year, None),
        "getMonth" => |args, _| part(args, TimePart::Month, None),
        "getDayOfYear" => |args, _| part(args, TimePart::DayOfYear, None),
        "getDayOfMonth" => |args, _| part(args, TimePart::DayOfMonth, None),
        "getDate" => |args, _| part(args, TimePart::Date, None),
        "getDayOfWeek" => |args, _| part(args, TimePart::DayOfWeek, None),
        "getHours" => |args, _| part(args, TimePart::Hours, Some(3_600_000_000_000)),
        "getMinutes" => |args, _| part(args, TimePart::Minutes, Some(60_000_000_000)),
        "getSeconds" => |args, _| part(args, TimePart::Seconds, Some(1_000_000_000)),
        "getMilliseconds" => |args, _| part(args, TimePart::Milliseconds, Some(1_000_000)),
        _ => return None,
    })
}

/// Function that reads a part of a time, or a whole duration in a unit.
fn part<'a>(args: &[CelValue<'a>], part: TimePart, unit: Option<i64>) -> Result<CelValue<'a>, EvaluationFailure> {
    match (args, unit) {
        ([CelValue::Timestamp(time)], _) => Ok(CelValue::Int(time::part(*time, "UTC", part)?)),
        ([CelValue::Timestamp(time), CelValue::String(zone)], _) => Ok(CelValue::Int(time::part(*time, zone, part)?)),
        ([CelValue::Duration(nanos)], Some(unit)) => Ok(CelValue::Int(nanos / unit)),
        _ => no_overload(),
    }
}
