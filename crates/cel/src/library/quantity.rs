//! Kubernetes quantities.

use super::{Function, error, no_overload};
use crate::program::{Amount, Failure, Value};
use portolan_types::quantity::Quantity;

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "quantity" => |args, _| match args {
            [Value::String(text)] => parse(text).map(Value::Quantity),
            _ => no_overload(),
        },
        "isQuantity" => |args, _| match args {
            [Value::String(text)] => Ok(Value::Bool(parse(text).is_ok())),
            _ => no_overload(),
        },
        "sign" => |args, _| match args {
            [Value::Quantity(amount)] => Ok(Value::Int(i64::from(amount.quantity.nanos().signum() as i8))),
            _ => no_overload(),
        },
        "isInteger" => |args, _| match args {
            [Value::Quantity(amount)] => Ok(Value::Bool(integer(amount).is_some())),
            _ => no_overload(),
        },
        "asInteger" => |args, _| match args {
            [Value::Quantity(amount)] => {
                integer(amount).map_or_else(|| error("cannot convert value to integer"), |value| Ok(Value::Int(value)))
            }
            _ => no_overload(),
        },
        "asApproximateFloat" => |args, _| match args {
            [Value::Quantity(amount)] => Ok(Value::Double(amount.quantity.nanos() as f64 / 1e9)),
            _ => no_overload(),
        },
        "add" => |args, _| combine(args, |one, other| one + other),
        "sub" => |args, _| combine(args, Quantity::minus),
        _ => return None,
    })
}

fn parse(text: &str) -> Result<Amount, Failure> {
    let quantity: Quantity =
        text.parse().map_err(|wrong: portolan_types::quantity::InvalidQuantity| Failure::Error(wrong.to_string()))?;
    // Digits behind a point and units below one are kept as parts of a whole, even where they make one.
    let whole = !text.contains('.') && !text.ends_with(['m', 'u', 'n']) && !text.contains("e-") && !text.contains("E-");
    Ok(Amount { quantity, whole })
}

fn integer(amount: &Amount) -> Option<i64> {
    if !amount.whole || amount.quantity.nanos() % 1_000_000_000 != 0 {
        return None;
    }
    i64::try_from(amount.quantity.nanos() / 1_000_000_000).ok()
}

fn combine<'a>(args: &[Value<'a>], combine: fn(Quantity, Quantity) -> Quantity) -> Result<Value<'a>, Failure> {
    let (one, other) = match args {
        [Value::Quantity(one), Value::Quantity(other)] => (one, *other),
        [Value::Quantity(one), Value::Int(other)] => {
            (one, Amount { quantity: Quantity::from_units(*other), whole: true })
        }
        _ => return no_overload(),
    };
    Ok(Value::Quantity(Amount { quantity: combine(one.quantity, other.quantity), whole: one.whole && other.whole }))
}
