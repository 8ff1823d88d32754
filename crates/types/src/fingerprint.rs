//! Hashes of JSON trees that do not depend on the order of keys.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Returns 80 bits of a hash of `value` in 20 hexadecimal digits. Equal trees have equal hashes, in any order of keys.
pub fn fingerprint(value: &Value) -> String {
    let mut hasher = Sha256::new();
    feed(&mut hasher, value);
    hasher.finalize()[..10].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes each value after a tag and its length, so that different trees give different bytes.
fn feed(hasher: &mut Sha256, value: &Value) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            head(hasher, b'{', entries.len());
            for (key, value) in entries {
                text(hasher, key);
                feed(hasher, value);
            }
        }
        Value::Array(items) => {
            head(hasher, b'[', items.len());
            items.iter().for_each(|item| feed(hasher, item));
        }
        Value::String(content) => text(hasher, content),
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            head(hasher, b'=', 0);
            text(hasher, &value.to_string());
        }
    }
}

fn head(hasher: &mut Sha256, tag: u8, len: usize) {
    hasher.update([tag]);
    hasher.update((len as u64).to_be_bytes());
}

fn text(hasher: &mut Sha256, content: &str) {
    head(hasher, b'"', content.len());
    hasher.update(content.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tree_determines_the_value() {
        let read = |text: &str| fingerprint(&serde_json::from_str(text).unwrap());
        assert_eq!(read(r#"{"a":1,"b":[true,null]}"#), read(r#"{"b":[true,null],"a":1}"#), "the order of keys");
        for (case, one, other) in [
            ("the order of items", r#"[1,2]"#, r#"[2,1]"#),
            ("what a text looks like", r#"["1"]"#, r#"[1]"#),
            ("where a list ends", r#"[["a"],"b"]"#, r#"[["a","b"]]"#),
            ("a key without a value", r#"{"a":null}"#, r#"{}"#),
        ] {
            assert_ne!(read(one), read(other), "{case}");
        }
    }
}
