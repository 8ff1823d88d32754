//! Numbers, as Go reads and prints them.

/// A float as Go's `%v` prints it: with an exponent from a million on, and below a ten-thousandth.
pub(crate) fn go_float(value: f64) -> String {
    let plain = format!("{value}");
    if value == 0.0 || !value.is_finite() {
        return plain;
    }
    let shortest = format!("{value:e}");
    let Some((mantissa, exponent)) = shortest.split_once('e') else { return plain };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ => plain,
    }
}

/// Whether a float is an integer of JSON, give or take what floats cannot tell.
pub(super) fn is_integer(value: f64) -> bool {
    const MOST: f64 = 9_007_199_254_740_991.0;
    const NEAR: f64 = 1e-9;
    if !value.is_finite() || value.abs() > MOST {
        return false;
    }
    let whole = value.trunc();
    let apart = (value - whole).abs();
    apart == 0.0 || (whole != 0.0 && apart / (value.abs() + whole.abs()) < NEAR)
}
