//! Quoted texts as Go's `%q` (`strconv.Quote`) writes them, for messages of kube-apiserver.

/// Returns `text` in double quotes, with unprintable characters escaped.
pub fn go_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        let point = u32::from(character);
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            _ if go_prints(character) => quoted.push(character),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\t' => quoted.push_str("\\t"),
            '\n' => quoted.push_str("\\n"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            '\r' => quoted.push_str("\\r"),
            '\0'..='\u{7f}' => quoted.push_str(&format!("\\x{point:02x}")),
            '\u{80}'..='\u{ffff}' => quoted.push_str(&format!("\\u{point:04x}")),
            _ => quoted.push_str(&format!("\\U{point:08x}")),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns true if Go prints the character as it is (`unicode.IsPrint`): letters, marks, numbers, punctuation, symbols
/// and the plain space. Rust prints the same, except for leading marks. Invalid bytes appear as U+FFFD, which is
/// printed.
pub fn go_prints(character: char) -> bool {
    if character.is_ascii() {
        return matches!(character, ' '..='~');
    }
    let mut text = [0; 5];
    text[0] = b'-';
    let end = 1 + character.encode_utf8(&mut text[1..]).len();
    let text = std::str::from_utf8(&text[..end]).unwrap_or_default();
    text.escape_debug().eq(text.chars())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_as_go_quotes_them() {
        for (text, expected) in [
            ("", r#""""#),
            ("it's \"a\" \\", r#""it's \"a\" \\""#),
            ("\0\u{1}\u{7}\u{8}\t\n\u{b}\u{c}\r\u{1b}\u{7f}", r#""\x00\x01\a\b\t\n\v\f\r\x1b\x7f""#),
            ("é ü 日 😀 \u{fffd} <&>", "\"é ü 日 😀 \u{fffd} <&>\""),
            ("e\u{301}\u{301}", "\"e\u{301}\u{301}\""),
            ("\u{301}", "\"\u{301}\""),
            (
                "\u{80}\u{85}\u{a0}\u{ad}\u{200b}\u{2028}\u{feff}\u{e000}",
                r#""\u0080\u0085\u00a0\u00ad\u200b\u2028\ufeff\ue000""#,
            ),
            ("\u{e0001}\u{10ffff}", r#""\U000e0001\U0010ffff""#),
        ] {
            assert_eq!(go_quoted(text), expected);
        }
    }
}
