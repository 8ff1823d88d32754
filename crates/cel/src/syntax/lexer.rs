//! Lexer, by the rules of CEL's grammar.

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LexerToken {
    Int,
    Uint,
    Float,
    String,
    Bytes,
    Ident,
    /// Field name in backticks.
    Escaped,
    /// An operator, a bracket, or one of the words `in`, `true`, `false`, `null`.
    Fixed(&'static str),
    End,
}

/// Token with its position in code points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lexeme {
    pub(super) token: LexerToken,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Longest first, so that the first match is the right one.
const FIXED: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*",
    "/", "%",
];
const WORDS: [&str; 4] = ["in", "true", "false", "null"];

/// Splits the text into tokens. Other characters are skipped and passed to `unknown` with their position.
pub(super) fn tokens(text: &[char], mut unknown: impl FnMut(usize, String)) -> Vec<Lexeme> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if let Some(length) = blank(rest) {
            at += length;
        } else if let Some((token, length)) = token(rest) {
            found.push(Lexeme { token, start: at, end: at + length });
            at += length;
        } else {
            let length = unrecognized(rest);
            unknown(at, rest[..length].iter().collect());
            at += length;
        }
    }
    found.push(Lexeme { token: LexerToken::End, start: text.len(), end: text.len() });
    found
}

/// Skips a string without an end, as far as its rule read.
fn unrecognized(rest: &[char]) -> usize {
    match rest[0] {
        quote @ ('"' | '\'') => {
            let stop = rest[1..].iter().position(|character| matches!(character, '\n' | '\r') || *character == quote);
            stop.map_or(rest.len(), |stop| stop + 2).min(rest.len())
        }
        '=' | '&' | '|' => 2.min(rest.len()),
        _ => 1,
    }
}

/// Skips white space and comments.
fn blank(rest: &[char]) -> Option<usize> {
    let space = rest.iter().take_while(|character| matches!(character, '\t' | ' ' | '\r' | '\n' | '\u{c}')).count();
    if space > 0 {
        return Some(space);
    }
    rest.starts_with(&['/', '/']).then(|| rest.iter().take_while(|character| **character != '\n').count())
}

fn token(rest: &[char]) -> Option<(LexerToken, usize)> {
    if let Some(length) = bytes_or_string(rest) {
        return Some(length);
    }
    let first = rest[0];
    if first.is_ascii_digit() || (first == '.' && rest.get(1).is_some_and(char::is_ascii_digit)) {
        return Some(number(rest));
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let length =
            rest.iter().take_while(|character| character.is_ascii_alphanumeric() || **character == '_').count();
        let word: String = rest[..length].iter().collect();
        let token =
            WORDS.iter().find(|fixed| **fixed == word).map_or(LexerToken::Ident, |fixed| LexerToken::Fixed(fixed));
        return Some((token, length));
    }
    if first == '`' {
        return escaped(rest).map(|length| (LexerToken::Escaped, length));
    }
    FIXED.iter().find(|fixed| starts_with(rest, fixed)).map(|fixed| (LexerToken::Fixed(fixed), fixed.len()))
}

fn starts_with(rest: &[char], text: &str) -> bool {
    text.chars().enumerate().all(|(index, character)| rest.get(index) == Some(&character))
}

fn escaped(rest: &[char]) -> Option<usize> {
    let inner = rest[1..]
        .iter()
        .take_while(|character| character.is_ascii_alphanumeric() || "_.-/ ".contains(**character))
        .count();
    (inner > 0 && rest.get(inner + 1) == Some(&'`')).then_some(inner + 2)
}

fn digits(rest: &[char]) -> usize {
    rest.iter().take_while(|character| character.is_ascii_digit()).count()
}

fn number(rest: &[char]) -> (LexerToken, usize) {
    if rest.starts_with(&['0', 'x']) {
        let hex = rest[2..].iter().take_while(|character| character.is_ascii_hexdigit()).count();
        if hex > 0 {
            return suffixed(rest, hex + 2);
        }
    }
    let whole = digits(rest);
    let mut length = whole;
    let mut float = false;
    if rest.get(length) == Some(&'.') && rest.get(length + 1).is_some_and(char::is_ascii_digit) {
        float = true;
        length += 1 + digits(&rest[length + 1..]);
    }
    if let Some(exponent) = exponent(&rest[length..]) {
        float = true;
        length += exponent;
    }
    if float { (LexerToken::Float, length) } else { suffixed(rest, length) }
}

fn exponent(rest: &[char]) -> Option<usize> {
    if !matches!(rest.first(), Some('e' | 'E')) {
        return None;
    }
    let sign = usize::from(matches!(rest.get(1), Some('+' | '-')));
    let count = digits(rest.get(1 + sign..)?);
    (count > 0).then_some(1 + sign + count)
}

fn suffixed(rest: &[char], length: usize) -> (LexerToken, usize) {
    if matches!(rest.get(length), Some('u' | 'U')) { (LexerToken::Uint, length + 1) } else { (LexerToken::Int, length) }
}

fn bytes_or_string(rest: &[char]) -> Option<(LexerToken, usize)> {
    if let Some(length) = string(rest) {
        return Some((LexerToken::String, length));
    }
    if matches!(rest[0], 'b' | 'B') {
        return string(&rest[1..]).map(|length| (LexerToken::Bytes, length + 1));
    }
    None
}

fn string(rest: &[char]) -> Option<usize> {
    let raw = usize::from(matches!(rest.first(), Some('r' | 'R')));
    let quote = *rest.get(raw).filter(|character| matches!(character, '"' | '\''))?;
    let body = &rest[raw..];
    if body.starts_with(&[quote; 3])
        && let Some(end) = triple(&body[3..], quote, raw == 1)
    {
        return Some(raw + 3 + end);
    }
    single(&body[1..], quote, raw == 1).map(|end| raw + 1 + end)
}

/// Returns the position after a string in three quotes.
fn triple(rest: &[char], quote: char, raw: bool) -> Option<usize> {
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with(&[quote; 3]) {
            return Some(at + 3);
        }
        at += if rest[at] == '\\' && !raw { escape(&rest[at..])? } else { 1 };
    }
    None
}

/// Returns the position after a string in one quote.
fn single(rest: &[char], quote: char, raw: bool) -> Option<usize> {
    let mut at = 0;
    while at < rest.len() {
        match rest[at] {
            character if character == quote => return Some(at + 1),
            '\n' | '\r' => return None,
            '\\' if !raw => at += escape(&rest[at..])?,
            _ => at += 1,
        }
    }
    None
}

/// Returns the length of an escape sequence.
fn escape(rest: &[char]) -> Option<usize> {
    let hex = |count: usize| rest.get(2..2 + count)?.iter().all(char::is_ascii_hexdigit).then_some(2 + count);
    match rest.get(1)? {
        'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`' => Some(2),
        'x' | 'X' => hex(2),
        'u' => hex(4),
        'U' => hex(8),
        '0'..='3' => rest.get(2..4)?.iter().all(|digit| ('0'..='7').contains(digit)).then_some(4),
        _ => None,
    }
}
