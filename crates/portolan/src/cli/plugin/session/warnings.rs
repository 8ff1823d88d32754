//! `Warning` headers of the server, as kubectl prints them.

/// Most warnings of one command.
pub(crate) const MAX: usize = 64;

/// Returns the text of a header `299 - "text"`; `None` for another code.
pub(super) fn text(header: &str) -> Option<String> {
    let rest = header.strip_prefix("299 ")?;
    let (_, quoted) = rest.split_once(' ')?;
    let mut text = String::new();
    let mut chars = quoted.strip_prefix('"')?.chars();
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '\\' => text.push(chars.next()?),
            c if c.is_control() => {}
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_taken_off() {
        for (header, expected) in [
            (r#"299 - "plain""#, Some("plain")),
            (r#"299 - "did you mean \"east\"?""#, Some(r#"did you mean "east"?"#)),
            (r#"299 - "back\\slash" "date""#, Some(r"back\slash")),
            (r#"199 - "other""#, None),
            (r#"299 - "open"#, None),
            ("299", None),
        ] {
            assert_eq!(text(header).as_deref(), expected, "{header}");
        }
    }
}
