//! JSON of physical clusters, changed without a tree: values keep their original text.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// Most fields of an object that is rewritten.
const MAX_FIELDS: usize = 4096;

/// Fields of a JSON object, in order. Values are unparsed.
pub(super) struct RawFields<'a>(Vec<(String, RawField<'a>)>);

enum RawField<'a> {
    Same(&'a RawValue),
    New(String),
}

impl RawField<'_> {
    fn text(&self) -> &str {
        match self {
            Self::Same(value) => value.get(),
            Self::New(text) => text,
        }
    }
}

impl<'a> RawFields<'a> {
    /// Returns an object without fields.
    pub(super) fn empty() -> Self {
        Self(Vec::new())
    }

    /// Parses the text of an object.
    ///
    /// # Errors
    /// Text that is not an object, or has more than 4096 fields.
    pub(super) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns the text of a field.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.text())
    }

    /// Returns a field that is a string; `None` if it is missing or another type.
    pub(super) fn string(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.get(name)?).ok()
    }

    /// Sets the text of a field.
    pub(super) fn set(&mut self, name: &str, text: String) {
        self.0.retain(|(key, _)| key != name);
        self.0.push((name.to_owned(), RawField::New(text)));
    }

    /// Returns the text of the object.
    pub(super) fn text(&self) -> String {
        let mut out = String::with_capacity(self.0.iter().map(|(key, value)| key.len() + value.text().len() + 6).sum());
        out.push('{');
        for (at, (key, value)) in self.0.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            out.push_str(&quoted(key));
            out.push(':');
            out.push_str(value.text());
        }
        out.push('}');
        out
    }
}

/// Returns a text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl<'de: 'a, 'a> Deserialize<'de> for RawFields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = RawFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    if fields.len() == MAX_FIELDS {
                        return Err(A::Error::custom("an object with too many fields"));
                    }
                    fields.push((key, RawField::Same(value)));
                }
                Ok(RawFields(fields))
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_text_and_order() {
        let mut fields = RawFields::parse(r#"{"a": 1.50, "b":{"x":[1, 2]},"é\"":"t"}"#).unwrap();
        assert_eq!(
            (fields.get("b"), fields.string("é\""), fields.string("a")),
            (Some(r#"{"x":[1, 2]}"#), Some("t".into()), None)
        );
        fields.set("a", "2".into());
        assert_eq!(fields.text(), r#"{"b":{"x":[1, 2]},"é\"":"t","a":2}"#);
        assert!(RawFields::parse("[]").is_err() && RawFields::parse("null").is_err());
        let many: Vec<String> = (0..=MAX_FIELDS).map(|n| format!("\"{n}\":0")).collect();
        assert!(RawFields::parse(&format!("{{{}}}", many.join(","))).is_err());
    }
}
