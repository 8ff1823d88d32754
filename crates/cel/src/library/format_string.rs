//! `'%s has %d'.format([a, b])`.

use super::{CallContext, convert};
use crate::program::{CelList, CelMap, CelValue, EvaluationFailure};
use portolan_types::quoted::go_quoted;

/// Clause of a format string.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FormatClause {
    /// `%s`
    Text,
    /// `%d`
    Decimal,
    /// `%.3f`
    Fixed(Option<usize>),
    /// `%e`
    Scientific(Option<usize>),
    /// `%b`
    Binary,
    /// `%x` and `%X`
    Hex { upper: bool },
    /// `%o`
    Octal,
}

impl FormatClause {
    /// Returns the error for an argument of another type.
    pub(crate) fn misfit(self, found: &str) -> String {
        let wanted = match self {
            Self::Text => {
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
            }
            Self::Decimal => "decimal clause can only be used on integers",
            Self::Fixed(_) => "fixed-point clause can only be used on doubles",
            Self::Scientific(_) => "scientific clause can only be used on doubles",
            Self::Binary => "only integers and bools can be formatted as binary",
            Self::Hex { .. } => "only integers, byte buffers, and strings can be formatted as hex",
            Self::Octal => "octal clause can only be used on integers",
        };
        format!("{wanted}, was given {found}")
    }
}

/// Reason that a string cannot be formatted.
#[derive(Debug)]
pub(crate) enum FormatError {
    /// The format string itself.
    Clause(String),
    /// An argument.
    Format(String),
    Failure(EvaluationFailure),
}

impl FormatError {
    pub(crate) fn message(self) -> String {
        match self {
            Self::Clause(message) => message,
            Self::Format(message) => format!("error during formatting: {message}"),
            Self::Failure(failure) => failure.message().to_owned(),
        }
    }
}

/// Formats a string: `write` formats each argument.
pub(crate) fn interpolate(
    text: &str,
    count: usize,
    write: &mut dyn FnMut(usize, FormatClause) -> Result<String, FormatError>,
) -> Result<String, FormatError> {
    let mut made = String::new();
    let mut rest = text;
    let mut index = 0;
    while let Some(place) = rest.find('%') {
        made += &rest[..place];
        rest = &rest[place + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            made.push('%');
            rest = after;
            continue;
        }
        if rest.is_empty() {
            return Err(FormatError::Clause("unexpected end of string".to_owned()));
        }
        if index >= count {
            return Err(FormatError::Clause(format!("index {index} out of range")));
        }
        let (clause, after) = clause(rest)
            .map_err(|message| FormatError::Clause(format!("could not parse formatting clause: {message}")))?;
        made += &write(index, clause)?;
        rest = after;
        index += 1;
    }
    Ok(made + rest)
}

fn clause(text: &str) -> Result<(FormatClause, &str), String> {
    let (precision, rest) = match text.strip_prefix('.') {
        None => (None, text),
        Some(rest) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if digits == rest.len() {
                return Err("error while parsing precision: could not find end of precision specifier".to_owned());
            }
            let number = rest[..digits].parse::<usize>().map_err(|_| {
                format!("error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing {:?}: invalid syntax", &rest[..digits])
            })?;
            (Some(number), &rest[digits..])
        }
    };
    let letter = rest.chars().next().unwrap_or_default();
    let clause = match letter {
        's' => FormatClause::Text,
        'd' => FormatClause::Decimal,
        'f' => FormatClause::Fixed(precision),
        'e' => FormatClause::Scientific(precision),
        'b' => FormatClause::Binary,
        'x' => FormatClause::Hex { upper: false },
        'X' => FormatClause::Hex { upper: true },
        'o' => FormatClause::Octal,
        other => return Err(format!("unrecognized formatting clause \"{other}\"")),
    };
    Ok((clause, &rest[letter.len_utf8()..]))
}

/// Formats values.
pub(super) fn format<'a>(
    text: &str,
    values: &CelList<'a>,
    context: &CallContext<'_>,
) -> Result<CelValue<'a>, EvaluationFailure> {
    let made = interpolate(text, values.len(), &mut |index, clause| {
        let value = values.get(index).unwrap_or(Ok(CelValue::Null)).map_err(FormatError::Format)?;
        let part = write(&value, clause, context)?;
        context.meter.bytes(part.len()).map_err(FormatError::Failure)?;
        Ok(part)
    });
    match made {
        Ok(text) => Ok(text.into()),
        Err(FormatError::Failure(failure)) => Err(failure),
        Err(wrong) => Err(EvaluationFailure::Error(wrong.message())),
    }
}

fn write(value: &CelValue<'_>, clause: FormatClause, context: &CallContext<'_>) -> Result<String, FormatError> {
    let misfit = || FormatError::Format(clause.misfit(value.type_of().name()));
    Ok(match (clause, value) {
        (FormatClause::Text, value) => return plain(value, context),
        (FormatClause::Decimal, CelValue::Int(value)) => value.to_string(),
        (FormatClause::Decimal, CelValue::Uint(value)) => value.to_string(),
        (FormatClause::Fixed(precision), value) => {
            fixed(double(value).ok_or_else(misfit)?, precision.unwrap_or(6).min(1000))
        }
        (FormatClause::Scientific(width), value) => {
            let text = scientific(double(value).ok_or_else(misfit)?);
            format!("{text:>width$}", width = width.unwrap_or(6).min(1000))
        }
        (FormatClause::Binary, CelValue::Int(value)) => signed(*value, |magnitude| format!("{magnitude:b}")),
        (FormatClause::Binary, CelValue::Uint(value)) => format!("{value:b}"),
        (FormatClause::Binary, CelValue::Bool(value)) => u8::from(*value).to_string(),
        (FormatClause::Octal, CelValue::Int(value)) => signed(*value, |magnitude| format!("{magnitude:o}")),
        (FormatClause::Octal, CelValue::Uint(value)) => format!("{value:o}"),
        (FormatClause::Hex { upper }, value) => {
            let text = hex(value).ok_or_else(misfit)?;
            if upper { text.to_ascii_uppercase() } else { text }
        }
        (FormatClause::Decimal | FormatClause::Binary | FormatClause::Octal, _) => return Err(misfit()),
    })
}

fn signed(value: i64, write: impl Fn(u64) -> String) -> String {
    let text = write(value.unsigned_abs());
    if value < 0 { format!("-{text}") } else { text }
}

fn hex(value: &CelValue<'_>) -> Option<String> {
    let bytes = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match value {
        CelValue::Int(value) => Some(signed(*value, |magnitude| format!("{magnitude:x}"))),
        CelValue::Uint(value) => Some(format!("{value:x}")),
        CelValue::String(text) => Some(bytes(text.as_bytes())),
        CelValue::Bytes(value) => Some(bytes(value)),
        _ => None,
    }
}

fn double(value: &CelValue<'_>) -> Option<f64> {
    match value {
        CelValue::Double(value) => Some(*value),
        CelValue::String(text) if matches!(&**text, "NaN" | "Infinity" | "-Infinity") => text.parse().ok(),
        _ => None,
    }
}

fn unusual(value: f64) -> Option<&'static str> {
    match value {
        value if value.is_nan() => Some("NaN"),
        value if value == f64::INFINITY => Some("∞"),
        value if value == f64::NEG_INFINITY => Some("-∞"),
        _ => None,
    }
}

/// Groups digits by three, as English does.
fn fixed(value: f64, precision: usize) -> String {
    if let Some(text) = unusual(value) {
        return text.to_owned();
    }
    let text = format!("{:.precision$}", value.abs());
    let (whole, fraction) =
        text.split_once('.').map_or((text.as_str(), None), |(whole, fraction)| (whole, Some(fraction)));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if value.is_sign_negative() { "-" } else { "" };
    fraction.map_or_else(|| format!("{sign}{grouped}"), |fraction| format!("{sign}{grouped}.{fraction}"))
}

/// `1.052033 × 10⁰³`
fn scientific(value: f64) -> String {
    if let Some(text) = unusual(value) {
        return text.to_owned();
    }
    let text = format!("{value:.6e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(("", exponent), |exponent| ("⁻", exponent));
    let raised = |digit: char| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(digit.to_digit(10).unwrap_or_default() as usize).unwrap_or('⁰');
    let exponent: String = format!("{exponent:0>2}").chars().map(raised).collect();
    format!("{digits}\u{202f}×\u{202f}10{sign}{exponent}")
}

fn plain(value: &CelValue<'_>, context: &CallContext<'_>) -> Result<String, FormatError> {
    context.meter.steps(1).map_err(FormatError::Failure)?;
    match value {
        CelValue::Null => Ok("null".to_owned()),
        CelValue::Type(one) => Ok(one.name().to_owned()),
        CelValue::List(list) => list_text(list, context),
        CelValue::Map(map) => map_text(map, context),
        other => match convert::text_of(other) {
            Some(text) if !matches!(other, CelValue::Ip(_) | CelValue::Cidr(_)) => text.map_err(FormatError::Format),
            _ => Err(FormatError::Format(FormatClause::Text.misfit(value.type_of().name()))),
        },
    }
}

/// Formats a value within a list or a map as an expression would write it.
fn quoted(value: &CelValue<'_>, context: &CallContext<'_>) -> Result<String, FormatError> {
    Ok(match value {
        CelValue::String(text) => go_quoted(text),
        CelValue::Bytes(_) => format!("b{}", go_quoted(&plain(value, context)?)),
        CelValue::Double(value) => match unusual(*value) {
            Some("∞") => "\"+Inf\"".to_owned(),
            Some("-∞") => "\"-Inf\"".to_owned(),
            Some(text) => format!("{text:?}"),
            None => format!("{value:.6}"),
        },
        CelValue::Timestamp(_) => format!("timestamp({})", go_quoted(&plain(value, context)?)),
        CelValue::Duration(_) => format!("duration({})", go_quoted(&plain(value, context)?)),
        other => plain(other, context)?,
    })
}

fn list_text(list: &CelList<'_>, context: &CallContext<'_>) -> Result<String, FormatError> {
    let mut text = String::from("[");
    for (index, element) in list.iter().enumerate() {
        if index > 0 {
            text += ", ";
        }
        let part = quoted(&element.map_err(FormatError::Format)?, context)?;
        context.meter.bytes(part.len()).map_err(FormatError::Failure)?;
        text += &part;
    }
    Ok(text + "]")
}

fn map_text(map: &CelMap<'_>, context: &CallContext<'_>) -> Result<String, FormatError> {
    let mut pairs = Vec::new();
    for key in map.keys() {
        let value = map.find(&key).map_err(FormatError::Format)?.unwrap_or(CelValue::Null);
        let pair = (quoted(&key, context)?, quoted(&value, context)?);
        context.meter.bytes(pair.0.len() + pair.1.len()).map_err(FormatError::Failure)?;
        pairs.push(pair);
    }
    pairs.sort();
    let pairs: Vec<String> = pairs.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
    Ok(format!("{{{}}}", pairs.join(", ")))
}
