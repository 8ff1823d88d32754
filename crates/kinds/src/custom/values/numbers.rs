//! Numbers of JSON.

/// Returns true if a float is an integer of JSON, within the precision of floats.
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
