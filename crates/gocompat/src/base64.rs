//! Base64 as Go's `base64.StdEncoding` reads it: it passes over breaks of lines, and over bits that are left in the
//! last letter.

/// Decodes a text.
///
/// # Errors
/// The offset that Go reports as corrupt.
pub fn read(text: &str) -> Result<Vec<u8>, usize> {
    let (text, mut at, mut bytes) = (text.as_bytes(), 0, Vec::new());
    // Four letters are three bytes.
    let (mut letters, mut bits) = (0, 0);
    while let Some(letter) = text.get(at) {
        at += 1;
        match (sextet(*letter), letter) {
            (Some(value), _) => {
                (letters, bits) = (letters + 1, bits << 6 | value);
                if letters == 4 {
                    bytes.extend(&bits.to_be_bytes()[1..]);
                    (letters, bits) = (0, 0);
                }
            }
            (None, b'\n' | b'\r') => {}
            (None, b'=') if letters >= 2 => {
                check_end(text, at, letters)?;
                bits <<= 6 * (4 - letters);
                bytes.extend(&bits.to_be_bytes()[1..letters]);
                return Ok(bytes);
            }
            (None, _) => return Err(at - 1),
        }
    }
    if letters == 0 { Ok(bytes) } else { Err(at - letters) }
}

/// Decodes a text.
///
/// # Errors
/// Go's message for text that is not base64.
pub fn decode(text: &str) -> Result<Vec<u8>, String> {
    read(text).map_err(|at| format!("illegal base64 data at input byte {at}"))
}

/// Returns true if only padding follows its first letter.
fn check_end(text: &[u8], mut at: usize, letters: usize) -> Result<(), usize> {
    if letters == 2 {
        at = after_breaks(text, at);
        match text.get(at) {
            Some(b'=') => at += 1,
            Some(_) => return Err(at - 1),
            None => return Err(at),
        }
    }
    at = after_breaks(text, at);
    if at == text.len() { Ok(()) } else { Err(at) }
}

fn after_breaks(text: &[u8], at: usize) -> usize {
    at + text[at..].iter().take_while(|letter| matches!(letter, b'\n' | b'\r')).count()
}

fn sextet(letter: u8) -> Option<u32> {
    let value = match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_as_go_reads_it() {
        for (text, expected) in [
            ("", Ok("")),
            ("YQ==", Ok("a")),
            ("YR==", Ok("a")),
            ("YWI=", Ok("ab")),
            ("YW\nJj\r\n", Ok("abc")),
            ("YQ\n=\n=\n", Ok("a")),
            ("YWJjZA==", Ok("abcd")),
            ("!!", Err(0)),
            ("YQ", Err(0)),
            ("YWJjYQ", Err(4)),
            ("YWJ", Err(0)),
            ("Y", Err(0)),
            ("=", Err(0)),
            ("Y===", Err(1)),
            ("YQ=", Err(3)),
            ("YQ=a", Err(2)),
            ("YQ==a", Err(4)),
            ("YWI=\nYQ==", Err(5)),
            ("YWJ-", Err(3)),
            ("YQ\n", Err(1)),
        ] {
            let read = read(text).map(|bytes| String::from_utf8(bytes).unwrap());
            assert_eq!(read, expected.map(str::to_owned), "{text:?}");
        }
    }
}
