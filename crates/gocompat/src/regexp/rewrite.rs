//! Go's patterns for Rust's engine, which matches in linear time like Go's. Syntax that differs is rewritten.

use std::fmt;

use ::regex::{Regex, RegexBuilder};

use super::syntax;

/// A pattern may compile to this many bytes.
const MAX_BYTES: usize = 4 << 20;
/// Size within which most patterns compile.
const FEW_BYTES: usize = 64 << 10;
/// Bytes of states that are computed ahead while a pattern is matched; it is slower where they do not do, and no worse.
pub(super) const MAX_STATES: usize = 256 << 10;

/// A pattern that compiled.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The pattern in the syntax of Rust's engine.
    pub regex: Regex,
    /// Most bytes that it takes.
    pub weight: usize,
}

/// Compiles a pattern.
///
/// # Errors
/// The error in it, in Go's words where those are known.
pub fn compile(pattern: &str) -> Result<Pattern, String> {
    let compiled = |limit| compile_within(pattern, limit).map(|regex| Pattern { regex, weight: limit + MAX_STATES });
    let found = match compiled(FEW_BYTES) {
        Err(BadPattern::TooLarge(_)) => compiled(MAX_BYTES),
        other => other,
    };
    found.map_err(|fault| fault.to_string())
}

/// Reason that a pattern is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadPattern {
    /// Invalid syntax.
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
/// The error in it, in Go's words where those are known.
fn compile_within(pattern: &str, most: usize) -> Result<Regex, BadPattern> {
    let rewritten = rewrite(pattern).map_err(BadPattern::Syntax)?;
    RegexBuilder::new(&rewritten).size_limit(most).dfa_size_limit(MAX_STATES).build().map_err(|error| match error {
        ::regex::Error::CompiledTooBig(most) => BadPattern::TooLarge(most),
        other => BadPattern::of_engine(pattern, &other),
    })
}

impl BadPattern {
    /// Returns the engine's error for a pattern: the last line of its message, whose other lines show the position.
    pub(super) fn of_engine(pattern: &str, error: &dyn fmt::Display) -> Self {
        let text = error.to_string();
        Self::Syntax(format!("invalid pattern: `{pattern}`: {}", text.lines().last().unwrap_or_default()))
    }
}

/// Translates a Go pattern to the syntax of Rust's engine.
///
/// # Errors
/// The error in it, in Go's words where those are known.
pub(super) fn rewrite(pattern: &str) -> Result<String, String> {
    syntax::check(pattern)?;
    let mut writer = Writer { rest: pattern, out: String::with_capacity(pattern.len() + 16) };
    while let Some(next) = writer.rest.chars().next() {
        match next {
            '\\' => writer.escape(false)?,
            '[' => writer.class()?,
            '{' => writer.repeat(),
            '(' if writer.rest.starts_with("(?)") => writer.skip(3, ""),
            // No caller reads a group by its name, which Go allows several groups to share.
            '(' if writer.rest.starts_with("(?P<") || writer.rest.starts_with("(?<") => {
                let end = writer.rest.find('>').map_or(1, |end| end + 1);
                writer.skip(end, "(");
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

    fn copy(&mut self, length: usize) {
        let (text, rest) = self.rest.split_at(length);
        self.out += text;
        self.rest = rest;
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
            ('x', _) => {
                // Two digits, or a brace that is closed: that was checked.
                let braced = self.rest.starts_with("\\x{");
                let end = if braced { self.rest.find('}').map(|end| end + 1) } else { Some(4) };
                self.copy(end.unwrap_or(self.rest.len()));
                return Ok(());
            }
            ('0'..='7', _) => {
                self.octal();
                return Ok(());
            }
            ('p' | 'P', _) => {
                self.unicode(letter == 'P');
                return Ok(());
            }
            _ if !letter.is_ascii_alphanumeric() => {
                self.skip(1 + letter.len_utf8(), &::regex::escape(&letter.to_string()));
                return Ok(());
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

    /// Parses `\pL` and `\p{Greek}`; a `^` before the name negates it.
    fn unicode(&mut self, mut negated: bool) {
        let inner = &self.rest[2..];
        let (name, length) = match inner.strip_prefix('{').and_then(|braced| braced.split_once('}')) {
            Some((name, _)) => (name, name.len() + 2),
            None => {
                let length = inner.chars().next().map_or(0, char::len_utf8);
                (&inner[..length], length)
            }
        };
        negated ^= name.starts_with('^');
        let class = format!("\\{}{{{}}}", if negated { 'P' } else { 'p' }, name.trim_start_matches('^'));
        self.skip(2 + length, &class);
    }

    /// Parses a character given by one to three octal digits.
    fn octal(&mut self) {
        let digits = self.rest[1..].bytes().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
        let value = u32::from_str_radix(&self.rest[1..=digits], 8).unwrap_or_default();
        self.skip(1 + digits, &format!("\\x{{{value:x}}}"));
    }

    /// Parses `\Q…\E`.
    fn quoted(&mut self) {
        let inner = &self.rest[2..];
        let (text, used) =
            inner.split_once("\\E").map_or((inner, self.rest.len()), |(text, _)| (text, 2 + text.len() + 2));
        let text = ::regex::escape(text);
        self.skip(used, &text);
    }

    /// Parses a class with Go's rules.
    fn class(&mut self) -> Result<(), String> {
        let whole = self.rest;
        self.copy(if whole.starts_with("[^") { 2 } else { 1 });
        let mut first = true;
        while first || !self.rest.starts_with(']') {
            first = false;
            if let Some(named) = syntax::named_class(self.rest) {
                self.copy(named.len());
                continue;
            }
            let is_many =
                syntax::is_class_by_letter(self.rest) || self.rest.starts_with("\\p") || self.rest.starts_with("\\P");
            self.of_class(whole)?;
            if !is_many && syntax::is_range(self.rest) {
                self.keep('-');
                self.of_class(whole)?;
            }
        }
        self.keep(']');
        Ok(())
    }

    /// Parses a part of a class, and escapes `[`, `&&`, `--` and `~~`, which are operators in Rust's classes.
    fn of_class(&mut self, whole: &str) -> Result<(), String> {
        let next = self.rest.chars().next().ok_or_else(|| format!("missing closing ]: `{whole}`"))?;
        if next == '\\' {
            return self.escape(true);
        }
        if matches!(next, '[' | ']' | '&' | '~' | '-') {
            self.out.push('\\');
        }
        self.keep(next);
        Ok(())
    }

    /// Parses a brace, which is a plain character unless it is a repetition.
    fn repeat(&mut self) {
        match syntax::counts(self.rest) {
            Some(counts) => self.copy(counts.length),
            None => self.skip(1, "\\{"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_gos_semantics() {
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
            (r"^(?P<n>a)(?P<n>b)(?<1>c)$", "abc", true),
            (r"^\x{41}\x42\103$", "ABC", true),
            (r"^\<\_\-\ $", "<_- ", true),
            (r"^[\<\&\-\]]+$", "<&-]", true),
            (r"^a{02}$", "a{02}", true),
            (r"^a{1,}{{1,x}$", "aa{{1,x}", true),
            (r"^[ab\[-[:alpha:]x]$", "[x]", true),
            (r"^[ab\[-[:alpha:]x]$", "x", false),
            (r"^[[:alpha:]-x]+$", "b-", true),
            (r"^[]-a]$", "_", true),
            (r"^[]-a]$", "-", false),
            (r"^[\x41-\x43-\x{45}]+$", "B-E", true),
            (r"^[\x41-\x43-\x{45}]+$", "D", false),
            (r"(?)^a$", "a", true),
            (r"^\p{Greek}\pN[\p{^Lu}]\P{^Lu}$", "α1aA", true),
        ] {
            assert_eq!(compile(pattern).map(|found| found.regex.is_match(text)), Ok(expected), "{pattern} on {text}");
        }
        for wrong in ["a{1001}", "(?=a)", "[a", r"\1", "a\\"] {
            assert!(compile(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn long_patterns_are_rewritten_once() {
        let many = 1 << 20;
        let braces = "{".repeat(many) + "}";
        assert_eq!(rewrite(&braces), Ok("\\{".repeat(many) + "}"));
        let unnamed = "[:".repeat(many);
        assert_eq!(rewrite(&format!("[{unnamed}x]")), Ok(format!("[{}x]", "\\[:".repeat(many))));
    }
}
