//! Comparison of outputs by shape: numbers, durations, ids, times and addresses count as equal.

/// Stands for the rest of a line, or for any number of lines.
const ANYTHING: &str = "…";
/// Letters of the suffixes that Kubernetes gives to names.
const SUFFIX: &str = "bcdfghjklmnpqrstvwxz2456789";

/// Compares an output with that of a page. `None` if they have the same shape, otherwise the first line that differs.
pub(super) fn difference(expected: &str, actual: &str) -> Option<String> {
    let shapes = |text: &str| text.lines().map(line).filter(|line| !line.is_empty()).collect::<Vec<String>>();
    let (expected, actual) = (shapes(expected), shapes(actual));
    (!lines_fit(&expected, &actual)).then(|| first_difference(&expected, &actual))
}

fn lines_fit(expected: &[String], actual: &[String]) -> bool {
    match expected.split_first() {
        None => actual.is_empty(),
        Some((first, rest)) if first == ANYTHING => {
            (0..=actual.len()).any(|skipped| lines_fit(rest, &actual[skipped..]))
        }
        Some((first, rest)) => {
            actual.first().is_some_and(|line| line_fits(first, line)) && lines_fit(rest, &actual[1..])
        }
    }
}

/// Compares two lines; each ellipsis stands for any text.
fn line_fits(expected: &str, actual: &str) -> bool {
    let parts: Vec<&str> = expected.split(ANYTHING).collect();
    let [first, .., last] = parts[..] else { return expected == actual };
    if actual.len() < first.len() + last.len() || !actual.starts_with(first) || !actual.ends_with(last) {
        return false;
    }
    let mut rest = &actual[first.len()..actual.len() - last.len()];
    parts[1..parts.len() - 1].iter().all(|part| {
        let found = rest.find(part);
        rest = found.map_or("", |at| &rest[at + part.len()..]);
        found.is_some()
    })
}

fn first_difference(expected: &[String], actual: &[String]) -> String {
    let end = "(end)".to_owned();
    let fits = |index: &usize| match (expected.get(*index), actual.get(*index)) {
        (Some(expected), Some(actual)) => line_fits(expected, actual),
        _ => false,
    };
    let index = (0..expected.len().max(actual.len())).find(|index| !fits(index)).unwrap_or_default();
    let shown = |lines: &[String]| lines.get(index).unwrap_or(&end).clone();
    format!("line {} should be\n  {}\nbut is\n  {}", index + 1, shown(expected), shown(actual))
}

/// Returns the shape of a line: its words with one space between them, masked.
fn line(text: &str) -> String {
    let words: Vec<String> = text.split_whitespace().map(word).collect();
    let rule = |word: &String| !word.is_empty() && word.chars().all(|c| matches!(c, '─' | '-' | '='));
    // A number before its unit: `12 ms`, `3 MiB`.
    let units = ["ms", "µs", "s", "KiB", "MiB", "GiB"];
    let mut shaped: Vec<String> = Vec::new();
    for word in words.into_iter().map(|word| if rule(&word) { "--".to_owned() } else { word }) {
        let is_unit = units.contains(&word.as_str()) && shaped.last().is_some_and(|last| last == "0");
        if !is_unit {
            shaped.push(word);
        }
    }
    shaped.join(" ")
}

fn word(text: &str) -> String {
    let bare = text.trim_matches(|c: char| !c.is_alphanumeric() && !matches!(c, '<' | '>'));
    if is_duration(bare) {
        return text.replacen(bare, "0", 1);
    }
    let pieces = text.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '…');
    masked_numbers(&pieces.map(piece).collect::<String>())
}

/// Masks hashes, and the suffixes of generated names.
fn piece(text: &str) -> String {
    let bare = text.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '…');
    let has_digit = bare.bytes().any(|byte| byte.is_ascii_digit());
    // Digits alone are a number.
    let has_letter = bare.bytes().any(|byte| byte.is_ascii_alphabetic());
    let is_hash = bare.len() >= 8 && has_digit && bare.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_suffix = (5..=10).contains(&bare.len()) && bare.chars().all(|letter| SUFFIX.contains(letter));
    if has_letter && (is_hash || is_suffix) { text.replacen(bare, "id", 1) } else { text.to_owned() }
}

/// Replaces each number by 0, except those of names such as `eu-1`.
fn masked_numbers(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let at = |index: usize| letters.get(index).copied().unwrap_or(' ');
    let (mut masked, mut index) = (String::new(), 0);
    while index < letters.len() {
        let is_named = index >= 2 && at(index - 1) == '-' && at(index - 2).is_ascii_alphabetic();
        if !at(index).is_ascii_digit() {
            masked.push(at(index));
            index += 1;
            continue;
        }
        let start = index;
        // A point belongs to a number when a digit follows.
        while at(index).is_ascii_digit() || (at(index) == '.' && at(index + 1).is_ascii_digit()) {
            index += 1;
        }
        if is_named {
            masked.extend(&letters[start..index]);
        } else {
            masked.push('0');
        }
    }
    masked
}

/// Returns true for `12s`, `3m4s`, `1.5h`, `2d`, `<unknown>`.
fn is_duration(text: &str) -> bool {
    let units = ["ms", "µs", "ns", "s", "m", "h", "d", "y"];
    let mut rest = text;
    let mut parts = 0;
    while !rest.is_empty() {
        let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        if digits.len() == rest.len() {
            return false;
        }
        let Some(unit) = units.iter().find(|unit| digits.starts_with(**unit)) else { return false };
        rest = &digits[unit.len()..];
        parts += 1;
    }
    parts > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_one_shape_are_equal() {
        for (case, expected, actual) in [
            ("columns may be wider", "NAME   READY\nweb    3/3\n", "NAME     READY\nweb      6/6\n"),
            ("durations", "web 12s", "web 3m4s"),
            ("durations with a unit of their own", "opened   3 ms", "opened 12 ms"),
            ("durations with another unit", "opened   3 ms", "opened 1.4 s"),
            ("suffixes of pods", "web-7d9f5c6b8-x2x4z 1/1", "web-6b8f7c9d5-q7v9b 1/1"),
            ("hashes", "plan 6f3a0c5d1e2b7a984c10", "plan 0c5d1e2b7a984c106f3a"),
            ("addresses", "https://127.0.0.1:6443/ui", "https://127.0.0.1:40123/ui"),
            ("long numbers", "36864 MiB at :6443", "4279 MiB at :44699"),
            ("the rest of a line", "deployment/web: …", "deployment/web: is here"),
            ("the middle of a line", "a … c", "a b b c"),
            ("lines that are left out", "a\n…\nd", "a\nb\nc\nd"),
            ("no lines that are left out", "a\n…\nd", "a\nd"),
        ] {
            assert_eq!(difference(expected, actual), None, "{case}");
        }
    }

    #[test]
    fn other_outputs_differ() {
        for (case, expected, actual) in [
            ("another word", "web Running", "web Pending"),
            ("another physical cluster", "web eu-1", "web eu-2"),
            ("a line more", "a", "a\nb"),
            ("a line less", "a\nb", "a"),
            ("the end of a line", "a … c", "a b"),
        ] {
            assert!(difference(expected, actual).is_some(), "{case}");
        }
    }
}
