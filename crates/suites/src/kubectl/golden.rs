//! Complete outputs of kubectl, without the parts that differ between runs.

/// Ages and times are replaced, and runs of blanks within a line become one, as the widths of columns depend on ages.
/// Leading blanks stay, because they show the nesting.
pub(super) fn settled(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", settled_line(line))).collect()
}

fn settled_line(line: &str) -> String {
    let indent: String = line.chars().take_while(|c| *c == ' ').collect();
    let words: Vec<&str> = line.split_whitespace().map(settled_word).collect();
    format!("{indent}{}", words.join(" ")).trim_end().to_owned()
}

fn settled_word(word: &str) -> &str {
    match word {
        _ if is_age(word) => "<age>",
        _ if is_time(word) => "<time>",
        _ => word,
    }
}

/// `5s`, `3m12s`, `4d`.
fn is_age(word: &str) -> bool {
    let ends = word.ends_with(['s', 'm', 'h', 'd']) && word.starts_with(|c: char| c.is_ascii_digit());
    ends && word.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c))
}

/// `2026-01-01T00:00:00Z`, quoted or not.
fn is_time(word: &str) -> bool {
    let bare = word.trim_matches('"');
    bare.len() == 20 && bare.ends_with('Z') && bare.as_bytes().get(10) == Some(&b'T')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varying_values_are_replaced() {
        for (text, expected) in [
            ("NAME   DATA   AGE\nplain  1      5s\n", "NAME DATA AGE\nplain 1 <age>\n"),
            ("a   3m12s \n  b:  2026-11-23T07:00:00Z", "a <age>\n  b: <time>\n"),
            ("2 pods, web:1s, s", "2 pods, web:1s, s\n"),
            ("", ""),
        ] {
            assert_eq!(settled(text), expected, "{text:?}");
        }
    }
}
