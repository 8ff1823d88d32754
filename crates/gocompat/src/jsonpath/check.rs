//! Syntax errors of a JSONPath in the words of client-go's parser (`util/jsonpath`).

use std::sync::LazyLock;

use regex::Regex;

/// Checks a path, without braces around it.
///
/// # Errors
/// The error that client-go reports.
pub fn check(path: &str) -> Result<(), String> {
    action(path).map(drop)
}

/// Three optional numbers, as in a slice.
static SLICE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("^(-?[0-9]*)(:-?[0-9]*)?(:-?[0-9]*)?$").expect("a test reads this pattern"));

/// Checks the text between braces, and returns whether it ends with a recursive descent. Filters nest at most three
/// deep, because each ends at the first bracket outside of its first pair of quotes.
fn action(text: &str) -> Result<bool, String> {
    let text = format!("{{{text}}}");
    let mut scan = Scan { text: &text, start: 0, at: 0, descends: false };
    // The text between two actions is plain.
    while let Some(open) = scan.text[scan.at..].find('{') {
        scan.at += open + 1;
        scan.taken();
        scan.inside()?;
    }
    Ok(scan.descends)
}

struct Scan<'t> {
    text: &'t str,
    /// Start of the next token.
    start: usize,
    at: usize,
    /// True if the last step was a recursive descent.
    descends: bool,
}

impl<'t> Scan<'t> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn taken(&mut self) -> &'t str {
        let taken = &self.text[self.start..self.at];
        self.start = self.at;
        taken
    }

    /// Returns true if the character before the last is escaped.
    fn is_escaped(&self) -> bool {
        self.at >= 2 && self.text.as_bytes()[self.at - 2] == b'\\'
    }

    /// Steps up to the closing brace.
    fn inside(&mut self) -> Result<(), String> {
        self.descends = false;
        loop {
            let rest = &self.text[self.at..];
            if rest.starts_with('}') {
                self.at += 1;
                self.taken();
                return Ok(());
            } else if rest.starts_with("[?(") {
                self.filter()?;
                continue;
            } else if rest.starts_with("..") {
                self.descend()?;
                continue;
            }
            let first = self.peek();
            match first {
                None | Some('\r' | '\n') => return Err("unclosed action".to_owned()),
                Some(' ' | '@' | '$') => {
                    self.next();
                    self.taken();
                    continue;
                }
                Some('[') => {
                    self.array()?;
                    continue;
                }
                Some(quote @ ('"' | '\'')) => self.quoted(quote)?,
                Some('.') => {
                    self.next();
                    self.field();
                }
                Some(c) if c == '+' || c == '-' || c.is_numeric() => self.number()?,
                Some(c) if c == '_' || c.is_alphabetic() => {
                    while self.peek().is_some_and(|c| !ends_word(c)) {
                        self.next();
                    }
                    self.taken();
                }
                Some(c) => return Err(format!("unrecognized character in action: {}", quoted_character(c))),
            }
            self.descends = false;
        }
    }

    fn descend(&mut self) -> Result<(), String> {
        if self.descends {
            return Err("invalid multiple recursive descent".to_owned());
        }
        self.at += 2;
        self.taken();
        self.descends = !self.peek().is_some_and(|c| c == '_' || c.is_alphanumeric());
        if !self.descends {
            self.field();
        }
        Ok(())
    }

    fn field(&mut self) {
        while let Some(c) = self.peek().filter(|c| !ends_word(*c)) {
            self.next();
            if c == '\\' {
                self.next();
            }
        }
        self.taken();
    }

    fn number(&mut self) -> Result<(), String> {
        self.next();
        while self.peek().is_some_and(|c| c == '.' || c.is_numeric()) {
            self.next();
        }
        let number = self.taken();
        match number.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(()),
            _ => Err(format!("cannot parse number {number}")),
        }
    }

    fn array(&mut self) -> Result<(), String> {
        loop {
            match self.next() {
                None | Some('\n') => return Err("unterminated array".to_owned()),
                Some(']') => break,
                Some(_) => {}
            }
        }
        let text = self.taken();
        let text = &text[1..text.len() - 1];
        self.descends = false;
        if text.contains(',') {
            return text.split(',').try_for_each(|one| action(&format!("[{}]", one.trim_matches(' '))).map(drop));
        }
        let key = text.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).filter(|key| !key.contains('\''));
        if let Some(key) = key {
            self.descends = action(&format!(".{key}"))?;
            return Ok(());
        }
        let numbers = SLICE.captures(if text == "*" { ":" } else { text });
        let numbers = numbers.ok_or_else(|| format!("invalid array index {text}"))?;
        for part in numbers.iter().skip(1).flatten() {
            let number = part.as_str().trim_start_matches(':');
            if !number.is_empty() && number.parse::<i64>().is_err() {
                return Err(format!("array index {number} is not a number"));
            }
        }
        Ok(())
    }

    fn filter(&mut self) -> Result<(), String> {
        self.at += "[?(".len();
        self.taken();
        let (mut quote, mut is_closed) = (None, false);
        loop {
            match (self.next(), quote) {
                (None | Some('\n'), _) => return Err("unterminated filter".to_owned()),
                (Some(c @ ('"' | '\'')), None) => quote = Some(c),
                (Some(c @ ('"' | '\'')), Some(open)) => is_closed |= c == open && !self.is_escaped(),
                (Some(')'), _) if quote.is_some() == is_closed => break,
                _ => {}
            }
        }
        if self.next() != Some(']') {
            return Err("unclosed array expect ]".to_owned());
        }
        let text = self.taken();
        match compared(&text[..text.len() - 2]) {
            None => drop(action(&text[..text.len() - 2])?),
            Some((left, right)) => drop((action(left)?, action(right)?)),
        }
        self.descends = false;
        Ok(())
    }

    fn quoted(&mut self, quote: char) -> Result<(), String> {
        self.next();
        loop {
            match self.next() {
                None | Some('\n') => return Err("unterminated quoted string".to_owned()),
                Some(c) if c == quote && !self.is_escaped() => break,
                Some(_) => {}
            }
        }
        let text = self.taken();
        let inner = &text[1..text.len() - 1];
        if unquotes(inner, quote) { Ok(()) } else { Err(format!("unquote string {text} error invalid syntax")) }
    }
}

/// Returns the two sides of a filter that is a comparison. The right side has at least one character.
fn compared(filter: &str) -> Option<(&str, &str)> {
    let is_operator = |c: char| matches!(c, '!' | '<' | '>' | '=');
    let from = filter.find(is_operator).filter(|at| *at > 0)?;
    let (left, rest) = filter.split_at(from);
    let length = rest.find(|c| !is_operator(c)).unwrap_or(rest.len() - 1);
    (length > 0).then(|| (left, &rest[length..]))
}

/// Returns true if Go can unquote the string.
fn unquotes(inner: &str, quote: char) -> bool {
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        let is_read = match c {
            '\\' => escape(&mut rest, quote),
            _ => c != quote,
        };
        if !is_read {
            return false;
        }
    }
    true
}

/// Returns true if the text after a backslash is an escape.
fn escape(rest: &mut std::str::Chars<'_>, quote: char) -> bool {
    let Some(first) = rest.next() else { return false };
    let mut number = |from: u32, count: usize, base: u32| {
        (0..count).try_fold(from, |sum, _| Some(sum.wrapping_mul(base) + rest.next()?.to_digit(base)?))
    };
    match first {
        'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '\\' => true,
        '"' | '\'' => first == quote,
        'x' => number(0, 2, 16).is_some(),
        'u' => number(0, 4, 16).is_some_and(|code| char::from_u32(code).is_some()),
        'U' => number(0, 8, 16).is_some_and(|code| char::from_u32(code).is_some()),
        '0'..='7' => number(u32::from(first) - u32::from('0'), 2, 8).is_some_and(|code| code <= 255),
        _ => false,
    }
}

fn ends_word(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

/// Returns a character as `U+002F '/'`, without the part in quotes if it cannot be printed.
fn quoted_character(c: char) -> String {
    let number = format!("U+{:04X}", u32::from(c));
    if c.is_control() || c.is_whitespace() { number } else { format!("{number} '{c}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Message of client-go for each.
    #[test]
    fn paths_are_refused_in_the_words_of_client_go() {
        for (path, why) in [
            ("spec.validations[0].expression", ""),
            (".a[?(@.b==\"c\")].d", ""),
            ("['a', \"b\"]", "invalid array index \"b\""),
            ("..a..", ""),
            ("....", "invalid multiple recursive descent"),
            ("/a/../b", "unrecognized character in action: U+002F '/'"),
            ("\t", "unrecognized character in action: U+0009"),
            ("a\nb", "unclosed action"),
            ("[1:-:2]", "array index - is not a number"),
            ("[a]", "invalid array index a"),
            ("[1", "unterminated array"),
            ("-1.5", ""),
            ("+.", "cannot parse number +."),
            ("'a", "unterminated quoted string"),
            ("'\\q'", "unquote string '\\q' error invalid syntax"),
            ("'\\u0041\\x41\\101'", ""),
            ("[?(@.a", "unterminated filter"),
            ("[?(@.a)", "unclosed array expect ]"),
            ("[?(@.a==)]", "unrecognized character in action: U+003D '='"),
            ("a} {b", ""),
        ] {
            assert_eq!(check(path).err().unwrap_or_default(), why, "{path}");
        }
    }
}
