//! Reading quantities by the rules of apimachinery's `resource.ParseQuantity`, which takes more than its grammar says.

use super::{BINARY, DECIMAL, Form, InvalidQuantity, MAX_BINARY, MAX_NANOS, NANO, Quantity, text::rounded};

/// The parts of a quantity's text.
#[derive(Debug)]
pub(super) struct Read<'t> {
    pub(super) negative: bool,
    /// The digits before the point, without zeros in front; "0" where there are none.
    whole: &'t str,
    /// The digits behind the point.
    fraction: &'t str,
    pub(super) form: Form,
    /// The power of 2 or 10 that the suffix stands for.
    exponent: i32,
}

/// Most digits that upstream reads into 64 bits, and most of an amount with a binary suffix.
const QUICK: usize = 18;
const QUICK_BINARY: usize = 14;

impl<'t> Read<'t> {
    /// # Errors
    /// Where a text is no quantity.
    pub(super) fn of(text: &'t str) -> Result<Self, InvalidQuantity> {
        if text.is_empty() {
            return Err(InvalidQuantity::Shape);
        }
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let significant = unsigned.trim_start_matches('0');
        let (whole, rest) = digits(significant);
        let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), digits);
        if !is_shaped(suffix) {
            return Err(InvalidQuantity::Shape);
        }
        let (form, exponent) = meaning(suffix).ok_or(InvalidQuantity::Suffix)?;
        let has_digits = significant.len() < unsigned.len() || !whole.is_empty() || !fraction.is_empty();
        let whole = if whole.is_empty() { "0" } else { whole };
        let read = Self { negative: text.starts_with('-'), whole, fraction, form, exponent };
        // What upstream reads quickly needs none.
        if has_digits || read.is_quick() { Ok(read) } else { Err(InvalidQuantity::Number) }
    }

    /// The power of 10 of the last digit, of an amount without a binary suffix.
    pub(super) fn scale(&self) -> i32 {
        self.exponent.wrapping_sub(i32::try_from(self.fraction.len()).unwrap_or(i32::MAX))
    }

    /// All digits; zeros may stand in front.
    pub(super) fn digits(&self) -> String {
        format!("{}{}", self.whole, self.fraction)
    }

    /// Whether upstream reads it into 64 bits.
    pub(super) fn is_quick(&self) -> bool {
        let bits = usize::try_from(self.exponent).unwrap_or_default();
        match self.form {
            Form::BinarySi => self.fraction.is_empty() && self.whole.len() + bits * 3 / 10 <= QUICK_BINARY,
            Form::DecimalSi | Form::DecimalExponent => {
                self.whole.len() + self.fraction.len() <= QUICK && self.scale() >= -9
            }
        }
    }

    /// Whether upstream writes it as it was read: it takes such texts for canonical.
    pub(super) fn is_kept(&self) -> bool {
        let last = || self.whole.bytes().chain(self.fraction.bytes()).rev().take(3);
        self.is_quick()
            && match self.form {
                Form::BinarySi => self.whole.parse::<u64>().is_ok_and(|value| value % 8 != 0),
                Form::DecimalSi | Form::DecimalExponent => {
                    self.scale() % 3 == 0 && last().filter(|digit| *digit == b'0').count() < 3 && self.whole != "0"
                }
            }
    }

    pub(super) fn amount(&self) -> Quantity {
        let nanos = match self.form {
            Form::BinarySi => self.binary_nanos(),
            Form::DecimalSi | Form::DecimalExponent => self.decimal_nanos(),
        };
        let is_part = self.form == Form::BinarySi && nanos < NANO;
        let form = if is_part { Form::DecimalSi } else { self.form };
        Quantity { nanos: if self.negative { -nanos } else { nanos }, form }
    }

    /// Rounded up.
    fn decimal_nanos(&self) -> i128 {
        let shift = i64::from(self.scale()) + 9;
        let digits = rounded(self.digits(), shift.min(0).unsigned_abs());
        let zeros = u32::try_from(shift.max(0)).unwrap_or(u32::MAX);
        match digits.trim_start_matches('0') {
            "" => 0,
            digits => {
                let number = digits.parse::<i128>().ok();
                let nanos =
                    number.zip(10_i128.checked_pow(zeros)).and_then(|(number, factor)| number.checked_mul(factor));
                nanos.unwrap_or(MAX_NANOS).min(MAX_NANOS)
            }
        }
    }

    /// Rounded up and capped.
    fn binary_nanos(&self) -> i128 {
        let unit = NANO << self.exponent;
        let (mut part, mut more) = (0, false);
        for digit in self.fraction.bytes().rev() {
            part += i128::from(digit - b'0') * unit;
            more |= part % 10 != 0;
            part /= 10;
        }
        let whole = self.whole.parse::<i128>().ok().and_then(|whole| whole.checked_mul(unit)).unwrap_or(MAX_BINARY);
        whole.saturating_add(part + i128::from(more)).min(MAX_BINARY)
    }
}

/// The digits that a text begins with, and the rest.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Whether it looks like a suffix.
fn is_shaped(suffix: &str) -> bool {
    let rest = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    rest.strip_prefix(['+', '-']).unwrap_or(rest).bytes().all(|byte| byte.is_ascii_digit())
}

/// The form and the exponent that a suffix stands for.
fn meaning(suffix: &str) -> Option<(Form, i32)> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(own, _)| *own == suffix) {
        return Some((Form::DecimalSi, *exponent));
    }
    if let Some((_, bits)) = BINARY.iter().find(|(own, _)| *own == suffix) {
        return Some((Form::BinarySi, *bits));
    }
    let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    // Upstream keeps 32 bits of it.
    Some((Form::DecimalExponent, exponent as i32))
}
