//! Parser of quantities by the rules of apimachinery's `resource.ParseQuantity`, which accepts more than its grammar.

use super::{BINARY, DECIMAL, InvalidQuantity, MAX_BINARY, MAX_NANOS, NANO, Notation, Quantity, text::rounded};

/// Parts of a quantity's text.
#[derive(Debug)]
pub(super) struct ParsedQuantity<'t> {
    pub(super) negative: bool,
    /// Digits before the point, without leading zeros; "0" if there are none.
    whole: &'t str,
    /// Digits after the point.
    fraction: &'t str,
    pub(super) form: Notation,
    /// Power of 2 or 10 that the suffix stands for.
    exponent: i32,
}

/// Most digits that kube-apiserver parses into 64 bits, and most of an amount with a binary suffix.
const QUICK: usize = 18;
const QUICK_BINARY: usize = 14;

impl<'t> ParsedQuantity<'t> {
    /// # Errors
    /// Fails if the text is not a quantity.
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
        // The fast path of kube-apiserver accepts a number without digits.
        if has_digits || read.is_quick() { Ok(read) } else { Err(InvalidQuantity::Number) }
    }

    /// Returns the power of 10 of the last digit, for an amount without a binary suffix.
    pub(super) fn scale(&self) -> i32 {
        self.exponent.wrapping_sub(i32::try_from(self.fraction.len()).unwrap_or(i32::MAX))
    }

    /// Returns all digits, perhaps with leading zeros.
    pub(super) fn digits(&self) -> String {
        format!("{}{}", self.whole, self.fraction)
    }

    /// Returns true if kube-apiserver parses it into 64 bits.
    pub(super) fn is_quick(&self) -> bool {
        let bits = usize::try_from(self.exponent).unwrap_or_default();
        match self.form {
            Notation::BinarySi => self.fraction.is_empty() && self.whole.len() + bits * 3 / 10 <= QUICK_BINARY,
            Notation::DecimalSi | Notation::DecimalExponent => {
                self.whole.len() + self.fraction.len() <= QUICK && self.scale() >= -9
            }
        }
    }

    /// Returns true if kube-apiserver takes the text for canonical and keeps it.
    pub(super) fn is_kept(&self) -> bool {
        let last = || self.whole.bytes().chain(self.fraction.bytes()).rev().take(3);
        self.is_quick()
            && match self.form {
                Notation::BinarySi => self.whole.parse::<u64>().is_ok_and(|value| value % 8 != 0),
                Notation::DecimalSi | Notation::DecimalExponent => {
                    self.scale() % 3 == 0 && last().filter(|digit| *digit == b'0').count() < 3 && self.whole != "0"
                }
            }
    }

    pub(super) fn amount(&self) -> Quantity {
        let nanos = match self.form {
            Notation::BinarySi => self.binary_nanos(),
            Notation::DecimalSi | Notation::DecimalExponent => self.decimal_nanos(),
        };
        let is_part = self.form == Notation::BinarySi && nanos < NANO;
        let form = if is_part { Notation::DecimalSi } else { self.form };
        Quantity { nanos: if self.negative { -nanos } else { nanos }, form }
    }

    /// Returns the amount in billionths, rounded up.
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

    /// Returns the amount in billionths, rounded up and capped.
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

/// Splits off the leading digits.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Returns true for the form of a suffix.
fn is_shaped(suffix: &str) -> bool {
    let rest = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    rest.strip_prefix(['+', '-']).unwrap_or(rest).bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns notation and exponent of a suffix.
fn meaning(suffix: &str) -> Option<(Notation, i32)> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(own, _)| *own == suffix) {
        return Some((Notation::DecimalSi, *exponent));
    }
    if let Some((_, bits)) = BINARY.iter().find(|(own, _)| *own == suffix) {
        return Some((Notation::BinarySi, *bits));
    }
    let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    // kube-apiserver keeps 32 bits of it.
    Some((Notation::DecimalExponent, exponent as i32))
}
