//! Syntax errors of JSON in the words of Go's parser. Used only for JSON that does not parse.

use std::borrow::Cow;

/// Returns Go's error in JSON; `None` if Go finds none.
pub fn json_error(text: &[u8]) -> Option<String> {
    let mut scanner = Scanner { open: Vec::new(), step: Step::Value };
    for byte in text {
        if let Err(context) = scanner.read(*byte) {
            return Some(format!("invalid character {} {context}", quoted(*byte)));
        }
    }
    // A number ends only at the next byte, so Go feeds a space, and reports that one.
    match scanner.read(b' ') {
        Err(context) => Some(format!("invalid character ' ' {context}")),
        Ok(()) if scanner.step == Step::End => None,
        Ok(()) => Some("unexpected end of JSON input".into()),
    }
}

/// Quotes a byte as Go shows a character: as a code point of its own.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".into(),
        b'"' => "'\"'".into(),
        b'\\' => r"'\\'".into(),
        0x07 => r"'\a'".into(),
        0x08 => r"'\b'".into(),
        0x09 => r"'\t'".into(),
        0x0a => r"'\n'".into(),
        0x0b => r"'\v'".into(),
        0x0c => r"'\f'".into(),
        0x0d => r"'\r'".into(),
        0x20..=0x7e | 0xa1..=0xac | 0xae..=0xff => format!("'{}'", char::from(byte)),
        0..=0x1f | 0x7f => format!(r"'\x{byte:02x}'"),
        0x80..=0xa0 | 0xad => format!(r"'\u{byte:04x}'"),
    }
}

/// State of the scanner, after `encoding/json/scanner.go`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    AfterValue,
    End,
    Text,
    Escape,
    /// Number of digits of `\u` that are still missing.
    Hex(u8),
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    /// Word with the number of its characters that were read.
    Word(&'static str, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Key,
    Entry,
    List,
}

struct Scanner {
    open: Vec<Open>,
    step: Step,
}

type Read = Result<(), Cow<'static, str>>;

impl Scanner {
    fn read(&mut self, byte: u8) -> Read {
        let is_space = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        match self.step {
            Step::Value | Step::ValueOrEnd | Step::Key | Step::KeyOrEnd | Step::End if is_space => Ok(()),
            Step::ValueOrEnd if byte == b']' => self.after_value(byte),
            Step::Value | Step::ValueOrEnd => self.value(byte),
            Step::KeyOrEnd if byte == b'}' => {
                self.reopen(Open::Entry);
                self.after_value(byte)
            }
            Step::Key | Step::KeyOrEnd if byte == b'"' => self.go(Step::Text),
            Step::Key | Step::KeyOrEnd => Err("looking for beginning of object key string".into()),
            Step::AfterValue => self.after_value(byte),
            Step::End => Err("after top-level value".into()),
            Step::Text | Step::Escape | Step::Hex(_) => self.text(byte),
            Step::Word(word, at) => match word.as_bytes()[at] {
                wanted if wanted != byte => {
                    Err(format!("in literal {word} (expecting '{}')", char::from(wanted)).into())
                }
                _ if at + 1 == word.len() => self.go(Step::AfterValue),
                _ => self.go(Step::Word(word, at + 1)),
            },
            Step::Minus
            | Step::Zero
            | Step::Digits
            | Step::Point
            | Step::Fraction
            | Step::Exponent
            | Step::ExponentSign
            | Step::ExponentDigits => self.number(byte),
        }
    }

    fn go(&mut self, step: Step) -> Read {
        self.step = step;
        Ok(())
    }

    fn reopen(&mut self, as_what: Open) {
        if let Some(last) = self.open.last_mut() {
            *last = as_what;
        }
    }

    fn value(&mut self, byte: u8) -> Read {
        let step = match byte {
            b'{' => {
                self.open.push(Open::Key);
                Step::KeyOrEnd
            }
            b'[' => {
                self.open.push(Open::List);
                Step::ValueOrEnd
            }
            b'"' => Step::Text,
            b'-' => Step::Minus,
            b'0' => Step::Zero,
            b'1'..=b'9' => Step::Digits,
            b't' => Step::Word("true", 1),
            b'f' => Step::Word("false", 1),
            b'n' => Step::Word("null", 1),
            _ => return Err("looking for beginning of value".into()),
        };
        self.go(step)
    }

    fn after_value(&mut self, byte: u8) -> Read {
        let is_space = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        match (self.open.last(), byte) {
            (None, _) => {
                self.step = Step::End;
                self.read(byte)
            }
            (Some(_), _) if is_space => self.go(Step::AfterValue),
            (Some(Open::Key), b':') => {
                self.reopen(Open::Entry);
                self.go(Step::Value)
            }
            (Some(Open::Entry), b',') => {
                self.reopen(Open::Key);
                self.go(Step::Key)
            }
            (Some(Open::List), b',') => self.go(Step::Value),
            (Some(Open::Entry), b'}') | (Some(Open::List), b']') => {
                self.open.pop();
                self.go(if self.open.is_empty() { Step::End } else { Step::AfterValue })
            }
            (Some(Open::Key), _) => Err("after object key".into()),
            (Some(Open::Entry), _) => Err("after object key:value pair".into()),
            (Some(Open::List), _) => Err("after array element".into()),
        }
    }

    fn text(&mut self, byte: u8) -> Read {
        match (self.step, byte) {
            (Step::Escape, b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => self.go(Step::Text),
            (Step::Escape, b'u') => self.go(Step::Hex(4)),
            (Step::Escape, _) => Err("in string escape code".into()),
            (Step::Hex(left), digit) if digit.is_ascii_hexdigit() => {
                self.go(if left == 1 { Step::Text } else { Step::Hex(left - 1) })
            }
            (Step::Hex(_), _) => Err("in \\u hexadecimal character escape".into()),
            (_, b'"') => self.go(Step::AfterValue),
            (_, b'\\') => self.go(Step::Escape),
            (_, 0..0x20) => Err("in string literal".into()),
            _ => Ok(()),
        }
    }

    fn number(&mut self, byte: u8) -> Read {
        match (self.step, byte) {
            (Step::Minus, b'0') => self.go(Step::Zero),
            (Step::Minus, b'1'..=b'9') | (Step::Digits, b'0'..=b'9') => self.go(Step::Digits),
            (Step::Minus, _) => Err("in numeric literal".into()),
            (Step::Zero | Step::Digits, b'.') => self.go(Step::Point),
            (Step::Point | Step::Fraction, b'0'..=b'9') => self.go(Step::Fraction),
            (Step::Point, _) => Err("after decimal point in numeric literal".into()),
            (Step::Zero | Step::Digits | Step::Fraction, b'e' | b'E') => self.go(Step::Exponent),
            (Step::Exponent, b'+' | b'-') => self.go(Step::ExponentSign),
            (Step::Exponent | Step::ExponentSign | Step::ExponentDigits, b'0'..=b'9') => self.go(Step::ExponentDigits),
            (Step::Exponent | Step::ExponentSign, _) => Err("in exponent of numeric literal".into()),
            _ => self.after_value(byte),
        }
    }
}

/// Returns the number that ends before a position in JSON, as written there. Lines are counted from 1, columns in
/// bytes.
pub(super) fn number_before(body: &[u8], line: usize, column: usize) -> Option<&str> {
    let line = body.split(|byte| *byte == b'\n').nth(line.checked_sub(1)?)?;
    let read = line.get(..column)?;
    let start = read.iter().rposition(|byte| !is_of_number(byte)).map_or(0, |last| last + 1);
    std::str::from_utf8(&read[start..]).ok().filter(|text| !text.is_empty())
}

/// Prefix of the text that represents a number beyond any float.
pub(super) const HUGE: &str = "\0number ";

/// Treatment of numbers beyond any float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Huge {
    /// They stay, and the usual reader stops at them.
    Kept,
    /// They are texts after [`HUGE`].
    AsTexts,
}

/// JSON in which `-0` is replaced by `0`: serde_json reads `-0` as a float, Go as an integer. `None` if there is
/// nothing to replace.
pub(super) fn respelled(body: &[u8], huge: Huge) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut done = 0;
    for (start, number) in numbers(body) {
        let new = match number {
            "-0" => "0".to_owned(),
            number if huge == Huge::AsTexts && is_huge(number) => format!("\"\\u0000number {number}\""),
            _ => continue,
        };
        out.extend_from_slice(&body[done..start]);
        out.extend_from_slice(new.as_bytes());
        done = start + number.len();
    }
    (done > 0).then(|| [&out, &body[done..]].concat())
}

/// Returns the first number in JSON that no float holds.
pub(super) fn huge_number(body: &[u8]) -> Option<&str> {
    numbers(body).map(|(_, number)| number).find(|number| is_huge(number))
}

fn is_huge(number: &str) -> bool {
    number.parse::<f64>().is_ok_and(f64::is_infinite)
}

/// Returns all numbers in JSON outside of strings, with their offsets.
fn numbers(body: &[u8]) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let mut in_text = false;
        while let Some(byte) = body.get(at) {
            match byte {
                b'\\' if in_text => at += 1,
                b'"' => in_text = !in_text,
                b'-' | b'0'..=b'9' if !in_text => {
                    let length = body[at..].iter().take_while(|byte| is_of_number(byte)).count();
                    let start = at;
                    at += length;
                    return Some((start, std::str::from_utf8(&body[start..at]).unwrap_or_default()));
                }
                _ => {}
            }
            at += 1;
        }
        None
    })
}

fn is_of_number(byte: &u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelled_so_that_they_can_be_read() {
        for (text, expected) in [
            (r#"{"a":1,"b":[-0.0,"-0","\"-0"]}"#, None),
            (r#"{"a":-0}"#, Some(r#"{"a":0}"#)),
            (r#"[1e999, -0,-1e400]"#, Some(r#"["\u0000number 1e999", 0,"\u0000number -1e400"]"#)),
        ] {
            let respelled = respelled(text.as_bytes(), Huge::AsTexts).map(|json| String::from_utf8(json).unwrap());
            assert_eq!(respelled.as_deref(), expected, "{text}");
        }
        let kept = respelled(b"[1e999,-0]", Huge::Kept);
        assert_eq!(kept.as_deref(), Some(&b"[1e999,0]"[..]));
        assert_eq!(huge_number(br#"["1e999", 5, 1e309]"#), Some("1e309"));
    }

    #[test]
    fn json_is_refused_in_gos_words() {
        for (text, expected) in [
            ("", "unexpected end of JSON input"),
            ("{\"a\":", "unexpected end of JSON input"),
            ("-", "invalid character ' ' in numeric literal"),
            ("nul", "invalid character ' ' in literal null (expecting 'l')"),
            ("nuts", "invalid character 't' in literal null (expecting 'l')"),
            ("{a}", "invalid character 'a' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 \"b\":2}", "invalid character '\"' after object key:value pair"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("{}x", "invalid character 'x' after top-level value"),
            ("1x", "invalid character 'x' after top-level value"),
            ("\"\n\"", "invalid character '\\n' in string literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u12g\"", "invalid character 'g' in \\u hexadecimal character escape"),
            ("1.", "invalid character ' ' after decimal point in numeric literal"),
            ("1e+", "invalid character ' ' in exponent of numeric literal"),
            ("\u{0}", "invalid character '\\x00' looking for beginning of value"),
            ("k8s", "invalid character 'k' looking for beginning of value"),
            ("\u{80}", "invalid character 'Â' looking for beginning of value"),
        ] {
            assert_eq!(json_error(text.as_bytes()).as_deref(), Some(expected), "{text:?}");
        }
    }

    #[test]
    fn json_that_is_fine_is_not_refused() {
        for text in ["{}", " [ ] ", "0", "-1.5e-3 ", "[1, {\"a\": [true, false, null]}, \"\\u00e9\\n\"]", "\"é\""] {
            assert_eq!(json_error(text.as_bytes()), None, "{text:?}");
        }
    }
}
