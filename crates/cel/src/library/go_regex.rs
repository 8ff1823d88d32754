//! Go's patterns for Rust's engine, which matches in linear time like Go's: what the two write differently is rewritten.

use std::fmt;

use ::regex::{Regex, RegexBuilder};

/// A pattern may compile to this many bytes.
const MAX_BYTES: usize = 4 << 20;
/// Most patterns compile to no more than this.
const FEW_BYTES: usize = 64 << 10;
/// Bytes of states that are computed ahead while a pattern is matched; it is slower where they do not do, and no worse.
pub(super) const MAX_STATES: usize = 256 << 10;

/// A pattern that compiled.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) regex: Regex,
    /// Most bytes that it takes.
    pub(crate) weight: usize,
}
/// Go repeats no part more often.
const MAX_REPEAT: u32 = 1000;

/// Compiles a pattern.
///
/// # Errors
/// What is wrong with it, as Go tells where that is known.
pub(super) fn compile(pattern: &str) -> Result<Pattern, String> {
    let compiled = |limit| within(pattern, limit).map(|regex| Pattern { regex, weight: limit + MAX_STATES });
    let found = match compiled(FEW_BYTES) {
        Err(BadPattern::TooLarge(_)) => compiled(MAX_BYTES),
        other => other,
    };
    found.map_err(|fault| fault.to_string())
}

/// Why a pattern cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadPattern {
    /// It is none.
    Syntax(String),
    /// It compiles to more bytes than it may.
    TooLarge(usize),
}

impl fmt::Display for BadPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(text) => f.write_str(text),
            Self::TooLarge(most) => write!(f, "expression compiles to more than {most} bytes"),
        }
    }
}

/// Compiles a pattern that may take `most` bytes.
///
/// # Errors
/// What is wrong with it, as Go tells where that is known.
fn within(pattern: &str, most: usize) -> Result<Regex, BadPattern> {
    let rewritten = rewrite(pattern).map_err(BadPattern::Syntax)?;
    RegexBuilder::new(&rewritten).size_limit(most).dfa_size_limit(MAX_STATES).build().map_err(|error| match error {
        ::regex::Error::CompiledTooBig(most) => BadPattern::TooLarge(most),
        other => BadPattern::of_engine(pattern, &other),
    })
}

impl BadPattern {
    /// What the engine has against a pattern: the last line of what it says, above which it shows where.
    pub(super) fn of_engine(pattern: &str, error: &dyn fmt::Display) -> Self {
        let text = error.to_string();
        Self::Syntax(format!("invalid pattern: `{pattern}`: {}", text.lines().last().unwrap_or_default()))
    }
}

/// A pattern of Go's as Rust's engine wants it.
///
/// # Errors
/// What is wrong with it, as Go tells where that is known.
pub(super) fn rewrite(pattern: &str) -> Result<String, String> {
    let mut writer = Writer { rest: pattern, out: String::with_capacity(pattern.len() + 16) };
    while let Some(next) = writer.rest.chars().next() {
        match next {
            '\\' => writer.escape(false)?,
            '[' => writer.class()?,
            '{' => writer.repeat()?,
            '(' if writer.rest.starts_with("(?#") || writer.rest.starts_with("(?x") => {
                return Err("invalid or unsupported Perl syntax: `(?`".to_owned());
            }
            // A space is never left out: Go has no verbose mode.
            other => writer.keep(other),
        }
    }
    Ok(writer.out)
}

struct Writer<'p> {
    rest: &'p str,
    out: String,
}

impl Writer<'_> {
    fn keep(&mut self, character: char) {
        self.out.push(character);
        self.rest = &self.rest[character.len_utf8()..];
    }

    fn skip(&mut self, length: usize, with: &str) {
        self.out += with;
        self.rest = &self.rest[length..];
    }

    /// Classes by letter are of ASCII in Go.
    fn escape(&mut self, in_class: bool) -> Result<(), String> {
        let letter =
            self.rest.chars().nth(1).ok_or_else(|| "trailing backslash at end of expression: ``".to_owned())?;
        let plain = match (letter, in_class) {
            ('d', true) => "0-9",
            ('w', true) => "0-9A-Za-z_",
            ('s', true) => "\\t\\n\\f\\r ",
            ('d', false) => "[0-9]",
            ('w', false) => "[0-9A-Za-z_]",
            ('s', false) => "[\\t\\n\\f\\r ]",
            ('D', _) => "[^0-9]",
            ('W', _) => "[^0-9A-Za-z_]",
            ('S', _) => "[^\\t\\n\\f\\r ]",
            ('b', false) => "(?-u:\\b)",
            ('B', false) => "(?-u:\\B)",
            ('Q', false) => {
                self.quoted();
                return Ok(());
            }
            ('Z' | 'G' | 'K' | 'R' | 'X' | 'h' | 'H' | 'N' | 'k' | 'E', _) | ('1'..='9', _) => {
                return Err(format!("invalid escape sequence: `\\{letter}`"));
            }
            _ => {
                self.keep('\\');
                self.keep(letter);
                return Ok(());
            }
        };
        self.skip(1 + letter.len_utf8(), plain);
        Ok(())
    }

    /// `\Q…\E`
    fn quoted(&mut self) {
        let inner = &self.rest[2..];
        let (text, used) =
            inner.split_once("\\E").map_or((inner, self.rest.len()), |(text, _)| (text, 2 + text.len() + 2));
        let text = ::regex::escape(text);
        self.skip(used, &text);
    }

    /// In Rust's classes `[`, `&&`, `--` and `~~` mean something more.
    fn class(&mut self) -> Result<(), String> {
        let whole = self.rest;
        self.keep('[');
        if self.rest.starts_with('^') {
            self.keep('^');
        }
        if self.rest.starts_with(']') {
            self.skip(1, "\\]");
        }
        let mut first = true;
        loop {
            let next = self.rest.chars().next().ok_or_else(|| format!("missing closing ]: `{whole}`"))?;
            match next {
                ']' => {
                    self.keep(']');
                    return Ok(());
                }
                '\\' => self.escape(true)?,
                '[' if self.rest.starts_with("[:") && self.rest.contains(":]") => {
                    let end = self.rest.find(":]").map_or(1, |end| end + 2);
                    let named = self.rest[..end].to_owned();
                    self.skip(end, &named);
                }
                '[' | '&' | '~' => {
                    self.out.push('\\');
                    self.keep(next);
                }
                '-' if first || self.out.ends_with('-') && !self.out.ends_with("\\-") => self.skip(1, "\\-"),
                other => self.keep(other),
            }
            first = false;
        }
    }

    /// A brace that repeats nothing is itself.
    fn repeat(&mut self) -> Result<(), String> {
        let Some(end) = self.rest.find('}') else {
            self.skip(1, "\\{");
            return Ok(());
        };
        let inner = &self.rest[1..end];
        let (low, high) = inner.split_once(',').map_or((inner, None), |(low, high)| (low, Some(high)));
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty();
        if !number(low) || high.is_some_and(|high| !high.is_empty() && !number(high)) {
            self.skip(1, "\\{");
            return Ok(());
        }
        let most = [Some(low), high].into_iter().flatten().filter(|text| !text.is_empty());
        let fits = most.map(str::parse::<u32>).all(|count| count.is_ok_and(|count| count <= MAX_REPEAT));
        if !fits {
            return Err(format!("invalid repeat count: `{{{inner}}}`"));
        }
        let whole = self.rest[..=end].to_owned();
        self.skip(end + 1, &whole);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_go() {
        for (pattern, text, expected) in [
            (r"^\d+$", "12", true),
            (r"^\d+$", "١٢", false),
            (r"^\w+$", "é", false),
            (r"[[]", "[", true),
            (r"^[a&&b]+$", "&", true),
            (r"^[%--]$", "+", true),
            (r"^[\d-]+$", "1-2", true),
            (r"^a{,2}$", "a{,2}", true),
            (r"^x{2}$", "xx", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^[[:alpha:]]+$", "ab", true),
            (r"\bfoo\b", "a foo b", true),
            (r"^[^\s]+$", "a b", false),
        ] {
            assert_eq!(compile(pattern).map(|found| found.regex.is_match(text)), Ok(expected), "{pattern} on {text}");
        }
        for wrong in ["a{1001}", "(?=a)", "[a", r"\1", "a\\"] {
            assert!(compile(wrong).is_err(), "{wrong}");
        }
    }
}
