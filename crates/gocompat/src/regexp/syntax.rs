//! Syntax of patterns in Go's `regexp/syntax`, with its messages. Rust's engine accepts more, and not all of Go's; so
//! Go's rules come first.

use std::collections::HashSet;

use ::regex::Regex;

/// Go repeats no part more often, also by repetitions of repetitions.
const MAX_REPEAT: u32 = 1000;

/// Classes that have a name between `[:` and `:]`.
const NAMED: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// Open group or finished part.
enum Entry {
    Open,
    Bar,
    /// A part, with how often something in it is repeated at most.
    Part(u32),
}

/// Checks a pattern.
///
/// # Errors
/// Go's error.
pub(super) fn check(pattern: &str) -> Result<(), String> {
    Reader { whole: pattern, rest: pattern, stack: Vec::new(), last: "", known: HashSet::new(), unnamed: false }.all()
}

/// Repetition by `{2}`, `{2,}` or `{2,3}`.
pub(super) struct Counts {
    low: u32,
    /// `None` if there is no closing delimiter.
    high: Option<u32>,
    /// Bytes that it is written with.
    pub(super) length: usize,
}

/// Parses the repetition at the start of a text; any other brace is a character. Reads no further than its digits.
pub(super) fn counts(text: &str) -> Option<Counts> {
    let (low, rest) = number(text.strip_prefix('{')?)?;
    let (high, rest) = match rest.strip_prefix(',') {
        Some(rest) if rest.starts_with('}') => (None, rest),
        Some(rest) => number(rest).map(|(high, rest)| (Some(high), rest))?,
        None => (Some(low), rest),
    };
    let rest = rest.strip_prefix('}')?;
    Some(Counts { low, high, length: text.len() - rest.len() })
}

/// Parses a number without leading zeros, and returns it with the rest.
fn number(text: &str) -> Option<(u32, &str)> {
    let (digits, rest) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let is_one = digits == "0" || !digits.is_empty() && !digits.starts_with('0');
    is_one.then(|| (digits.parse().unwrap_or(u32::MAX), rest))
}

/// Returns the class with a name, as `[:alpha:]` or `[:^alpha:]`, that a text begins with.
pub(super) fn named_class(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("[:")?;
    let inner = inner.strip_prefix('^').unwrap_or(inner);
    let rest = NAMED.iter().find_map(|name| inner.strip_prefix(name)?.strip_prefix(":]"))?;
    Some(&text[..text.len() - rest.len()])
}

/// Returns true if a class continues with `-` and the end of a range.
pub(super) fn is_range(text: &str) -> bool {
    text.len() >= 2 && text.starts_with('-') && !text.starts_with("-]")
}

/// Returns true if a class continues with an escape for a set of characters.
pub(super) fn is_class_by_letter(text: &str) -> bool {
    ["\\d", "\\D", "\\s", "\\S", "\\w", "\\W"].iter().any(|class| text.starts_with(class))
}

/// Returns an error as Go writes it.
fn wrong<T>(what: &str, part: &str) -> Result<T, String> {
    Err(format!("{what}: `{part}`"))
}

const RANGE: &str = "invalid character class range";
const ESCAPE: &str = "invalid escape sequence";
const NO_ARGUMENT: &str = "missing argument to repetition operator";

struct Reader<'p> {
    whole: &'p str,
    rest: &'p str,
    stack: Vec<Entry>,
    /// Text from the repetition that was just parsed to the end; otherwise empty.
    last: &'p str,
    /// Names of Unicode's classes that were looked up.
    known: HashSet<String>,
    /// No `:]` follows. It is looked for once then, not for each `[:`.
    unnamed: bool,
}

impl<'p> Reader<'p> {
    fn all(mut self) -> Result<(), String> {
        while let Some(next) = self.rest.chars().next() {
            let before = self.rest;
            let mut last = "";
            match next {
                '(' if before.starts_with("(?") => self.flags()?,
                '(' => {
                    self.stack.push(Entry::Open);
                    self.skip(1);
                }
                '|' => self.bar(),
                ')' => self.close()?,
                '[' => self.class()?,
                '*' | '+' | '?' => {
                    self.skip(1);
                    self.repeat(before, None)?;
                    last = before;
                }
                '{' => match counts(before) {
                    Some(counts) => {
                        self.skip(counts.length);
                        self.repeat(before, Some(counts))?;
                        last = before;
                    }
                    None => self.part(1),
                },
                '\\' => self.escape()?,
                other => self.part(other.len_utf8()),
            }
            self.last = last;
        }
        self.gather();
        match self.stack.len() {
            1 => Ok(()),
            _ => wrong("missing closing )", self.whole),
        }
    }

    fn skip(&mut self, length: usize) {
        self.rest = &self.rest[length..];
    }

    /// Returns the text that was read since `before`.
    fn since(&self, before: &'p str) -> &'p str {
        &before[..before.len() - self.rest.len()]
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.skip(next.len_utf8());
        Some(next)
    }

    /// Parses a part of this length, which is not a repetition.
    fn part(&mut self, length: usize) {
        self.push();
        self.skip(length);
    }

    /// Adds a part; all parts before the last one are combined.
    fn push(&mut self) {
        match &mut self.stack[..] {
            [.., Entry::Part(all), Entry::Part(last)] => (*all, *last) = ((*all).max(*last), 1),
            _ => self.stack.push(Entry::Part(1)),
        }
    }

    /// Combines everything after the open bracket into one part, with its alternatives.
    fn gather(&mut self) {
        let mut most = 1;
        loop {
            match self.stack.pop() {
                Some(Entry::Part(count)) => most = most.max(count),
                Some(Entry::Bar) => {}
                Some(Entry::Open) => {
                    self.stack.push(Entry::Open);
                    break;
                }
                None => break,
            }
        }
        self.stack.push(Entry::Part(most));
    }

    fn bar(&mut self) {
        self.gather();
        self.stack.push(Entry::Bar);
        self.skip(1);
    }

    fn close(&mut self) -> Result<(), String> {
        self.gather();
        let inner = self.stack.pop();
        if self.stack.pop().is_none() {
            return wrong("unexpected )", self.whole);
        }
        self.push();
        if let (Some(last), Some(inner)) = (self.stack.last_mut(), inner) {
            *last = inner;
        }
        self.skip(1);
        Ok(())
    }

    fn repeat(&mut self, before: &'p str, counts: Option<Counts>) -> Result<(), String> {
        const SIZE: &str = "invalid repeat count";
        if let Some(Counts { low, high, .. }) = counts
            && (low.max(high.unwrap_or(0)) > MAX_REPEAT || high.is_some_and(|high| low > high))
        {
            return wrong(SIZE, self.since(before));
        }
        if self.rest.starts_with('?') {
            self.skip(1);
        }
        if !self.last.is_empty() {
            return wrong("invalid nested repetition operator", self.since(self.last));
        }
        let part = self.since(before);
        let Some(Entry::Part(inner)) = self.stack.last_mut() else { return wrong(NO_ARGUMENT, part) };
        if let Some(Counts { low, high, .. }) = counts {
            // `{0,}` keeps its content, and `{0}` drops it.
            let times = high.unwrap_or(low.max(1));
            *inner = if times == 0 { 1 } else { inner.saturating_mul(times) };
            if *inner > MAX_REPEAT && times >= 2 {
                return wrong(SIZE, part);
            }
        }
        Ok(())
    }

    /// Parses `(?P<name>`, `(?<name>`, `(?flags)` and `(?flags:`.
    fn flags(&mut self) -> Result<(), String> {
        let before = self.rest;
        let name = before.strip_prefix("(?P<").or_else(|| before.strip_prefix("(?<")).filter(|name| !name.is_empty());
        if let Some(name) = name {
            let Some(end) = name.find('>') else { return wrong("invalid named capture", before) };
            let head = before.len() - name.len();
            self.skip(head + end + 1);
            let is_good = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if end == 0 || !is_good(&name[..end]) {
                return wrong("invalid named capture", self.since(before));
            }
            self.stack.push(Entry::Open);
            return Ok(());
        }
        self.skip(2);
        let (mut negative, mut saw) = (false, false);
        while let Some(next) = self.next() {
            match next {
                'i' | 'm' | 's' | 'U' => saw = true,
                '-' if !negative => (negative, saw) = (true, false),
                ':' | ')' if saw || !negative => {
                    self.stack.extend((next == ':').then_some(Entry::Open));
                    return Ok(());
                }
                _ => break,
            }
        }
        wrong("invalid or unsupported Perl syntax", self.since(before))
    }

    fn escape(&mut self) -> Result<(), String> {
        let rest = self.rest;
        match rest[1..].chars().next() {
            Some('A' | 'b' | 'B' | 'z' | 'd' | 'D' | 's' | 'S' | 'w' | 'W') => {
                self.part(2);
                return Ok(());
            }
            Some('C') => return wrong(ESCAPE, &rest[..2]),
            Some('Q') => {
                let quoted = rest[2..].split_once("\\E").map_or(&rest[2..], |(quoted, _)| quoted);
                if !quoted.is_empty() {
                    self.push();
                }
                self.skip((2 + quoted.len() + 2).min(rest.len()));
                return Ok(());
            }
            Some('p' | 'P') => self.unicode()?,
            _ => drop(self.character()?),
        }
        self.push();
        Ok(())
    }

    /// Parses `\pL` and `\p{Greek}`.
    fn unicode(&mut self) -> Result<(), String> {
        let before = self.rest;
        self.skip(2);
        let name = match self.next() {
            Some('{') => {
                let Some(end) = before.find('}') else { return wrong(RANGE, before) };
                self.rest = &before[end + 1..];
                &before[3..end]
            }
            _ => &self.since(before)[2..],
        };
        let name = name.strip_prefix('^').unwrap_or(name);
        let name: String = name.chars().filter(|c| !matches!(c, ' ' | '_' | '-')).collect::<String>().to_lowercase();
        if !self.known.contains(&name) {
            if !is_unicode_class(&name) {
                return wrong(RANGE, self.since(before));
            }
            self.known.insert(name);
        }
        Ok(())
    }

    /// Parses an escaped character, after its backslash.
    fn character(&mut self) -> Result<char, String> {
        let before = self.rest;
        self.skip(1);
        let Some(first) = self.next() else { return wrong("trailing backslash at end of expression", "") };
        let found = match first {
            '0'..='7' => self.octal(first),
            'x' => self.hexadecimal(),
            'a' => Some('\u{7}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\u{b}'),
            other => Some(other).filter(|other| other.is_ascii() && !other.is_ascii_alphanumeric()),
        };
        found.map_or_else(|| wrong(ESCAPE, self.since(before)), Ok)
    }

    fn octal(&mut self, first: char) -> Option<char> {
        let mut value = first.to_digit(8)?;
        let mut digits = 1;
        while digits < 3
            && let Some(digit) = self.rest.chars().next().and_then(|next| next.to_digit(8))
        {
            value = value * 8 + digit;
            digits += 1;
            self.skip(1);
        }
        char::from_u32(value).filter(|_| first == '0' || digits > 1)
    }

    fn hexadecimal(&mut self) -> Option<char> {
        let first = self.next()?;
        if first != '{' {
            let second = self.next();
            let value = first.to_digit(16)?.checked_mul(16)? + second?.to_digit(16)?;
            return char::from_u32(value);
        }
        let mut value = None;
        loop {
            match self.next()? {
                // Go accepts surrogates as characters, too.
                '}' => return value.map(|value| char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER)),
                digit => {
                    let next = value.unwrap_or(0_u32) * 16 + digit.to_digit(16)?;
                    value = Some(next).filter(|next| *next <= u32::from(char::MAX));
                    value?;
                }
            }
        }
    }

    fn class(&mut self) -> Result<(), String> {
        let whole = self.rest;
        self.skip(if whole.starts_with("[^") { 2 } else { 1 });
        let mut first = true;
        while first || !self.rest.starts_with(']') {
            first = false;
            if self.rest.starts_with("[:") && self.named()? {
                continue;
            }
            if self.rest.starts_with("\\p") || self.rest.starts_with("\\P") {
                self.unicode()?;
                continue;
            }
            if is_class_by_letter(self.rest) {
                self.skip(2);
                continue;
            }
            let before = self.rest;
            let low = self.of_class(whole)?;
            if is_range(self.rest) {
                self.skip(1);
                if self.of_class(whole)? < low {
                    return wrong(RANGE, self.since(before));
                }
            }
        }
        self.part(1);
        Ok(())
    }

    /// Parses `[:alpha:]`; returns whether it is a named class.
    fn named(&mut self) -> Result<bool, String> {
        if let Some(class) = named_class(self.rest) {
            self.skip(class.len());
            return Ok(true);
        }
        let end = if self.unnamed { None } else { self.rest[2..].find(":]") };
        self.unnamed = end.is_none();
        end.map_or(Ok(false), |end| wrong(RANGE, &self.rest[..end + 4]))
    }

    fn of_class(&mut self, whole: &str) -> Result<char, String> {
        if self.rest.starts_with('\\') {
            return self.character();
        }
        self.next().map_or_else(|| wrong("missing closing ]", whole), Ok)
    }
}

/// Returns true if Unicode has a category or script of this name.
fn is_unicode_class(name: &str) -> bool {
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_one = |kind: &str| Regex::new(&format!("\\p{{{kind}={name}}}")).is_ok();
    matches!(name, "any" | "assigned" | "ascii") || is_name && (is_one("gc") || is_one("sc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_patterns_have_gos_errors() {
        for (pattern, expected) in [
            ("(", "missing closing ): `(`"),
            ("a(b", "missing closing ): `a(b`"),
            (")", "unexpected ): `)`"),
            ("a|b)", "unexpected ): `a|b)`"),
            ("[a", "missing closing ]: `[a`"),
            ("[z-a]", "invalid character class range: `z-a`"),
            ("[[:foo:]]", "invalid character class range: `[:foo:]`"),
            ("\\pX", "invalid character class range: `\\pX`"),
            ("\\p{Gree", "invalid character class range: `\\p{Gree`"),
            ("\\q", "invalid escape sequence: `\\q`"),
            ("\\8", "invalid escape sequence: `\\8`"),
            ("\\1", "invalid escape sequence: `\\1`"),
            ("\\Z", "invalid escape sequence: `\\Z`"),
            ("\\x{110000}", "invalid escape sequence: `\\x{110000`"),
            ("\\xg0", "invalid escape sequence: `\\xg0`"),
            ("[\\b]", "invalid escape sequence: `\\b`"),
            ("a\\", "trailing backslash at end of expression: ``"),
            ("*", "missing argument to repetition operator: `*`"),
            ("a|*", "missing argument to repetition operator: `*`"),
            ("(+?)", "missing argument to repetition operator: `+?`"),
            ("{2}", "missing argument to repetition operator: `{2}`"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("a*{2}?", "invalid nested repetition operator: `*{2}?`"),
            ("a{100}{100}", "invalid nested repetition operator: `{100}{100}`"),
            ("(a{100}){100}", "invalid repeat count: `{100}`"),
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("a{1001,}", "invalid repeat count: `{1001,}`"),
            ("a{1,99999999999}", "invalid repeat count: `{1,99999999999}`"),
            ("a{2,1}", "invalid repeat count: `{2,1}`"),
            ("((a{1000}){0,}){2}", "invalid repeat count: `{2}`"),
            ("((a{500}){1,}){3}", "invalid repeat count: `{3}`"),
            ("[[:a[:alpha:]]", "invalid character class range: `[:a[:alpha:]`"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
            ("(?s", "invalid or unsupported Perl syntax: `(?s`"),
            ("(?i-)", "invalid or unsupported Perl syntax: `(?i-)`"),
            ("(?x)", "invalid or unsupported Perl syntax: `(?x`"),
            ("(?P<n", "invalid named capture: `(?P<n`"),
            ("(?P<a b>c)", "invalid named capture: `(?P<a b>`"),
            ("(?P=n)", "invalid or unsupported Perl syntax: `(?P`"),
        ] {
            assert_eq!(check(pattern), Err(expected.to_owned()), "{pattern}");
        }
    }

    #[test]
    fn texts_that_go_accepts_are_accepted() {
        for pattern in [
            "",
            "a*?b+?c??",
            "()*",
            "(|a)*",
            "^*",
            "a{,2}",
            "a{02}",
            "a{1000}",
            "(a{100}){10}",
            "((a{1000}){0}){2}",
            "((a{1000}){0,1}){1}",
            "a{1{1,{1,1{00}{1,x}{}{,}",
            "x{0}{",
            "[]a]",
            "[^]a]",
            "[a-]",
            "[-a]",
            "[[:^alpha:][:word:]]",
            "[[:a]",
            "(?P<n>a)(?P<n>b)",
            "(?<1>a)",
            "(?i)a(?-i:b)",
            "(?)",
            "\\pL\\p{Greek}\\p{^Lu}",
            "\\Q(*\\E",
            "\\Q(",
            "\\012\\x{10FFFF}\\x41",
            "[\\d\\pN\\-]",
            "\\<\\_\\-",
            "é|ü",
        ] {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
    }

    #[test]
    fn long_patterns_are_read_once() {
        const MANY: usize = 1 << 20;
        for (part, after) in [("{", ""), ("{", "}"), ("{1,", ""), ("{1", "}"), ("[[:", "x]"), ("[a[:b]", "")] {
            assert_eq!(check(&(part.repeat(MANY / part.len()) + after)), Ok(()), "{part} many times");
        }
        assert_eq!(check(&("{1".to_owned() + &"1".repeat(MANY))), Ok(()));
        let open = "[[:".repeat(MANY / 3);
        assert_eq!(check(&open), Err(format!("missing closing ]: `{open}`")));
    }
}
