//! OpenAPI documents as protobuf: the messages `Document` of gnostic, whose fields [`v2`] and [`v3`] list. client-go
//! reads version 2 only in this form, and may ask for version 3 in it. Arbitrary values are encoded as YAML; JSON is
//! YAML.

mod v2;
mod v3;

use std::convert::Infallible;

use portolan_gocompat::protowire::{bytes, double, message, number};
use serde_json::Value;

/// The media type of version 2. Clients ask for it with `v2@v1.0`, which is not a valid media type to answer with.
pub const SWAGGER_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// Media type of OpenAPI v3 documents in protobuf, `v3@v1.0`.
pub const DOCUMENT_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// Encodes a document of [`super::swagger`].
pub fn swagger_protobuf(document: &Value) -> Vec<u8> {
    v2::DOCUMENT.encode(document)
}

/// Encodes a document of [`super::document`].
pub fn document_protobuf(document: &Value) -> Vec<u8> {
    v3::DOCUMENT.encode(document)
}

/// Encoding of a value as a field.
enum Form {
    Text,
    Flag,
    Count,
    Double,
    /// Whatever it is.
    Any,
    Message(&'static Message),
    /// The field of this number in a message without other fields.
    Within(u32, &'static Form),
    /// Repeated: once for each item of a list.
    Each(&'static Form),
    /// One of several fields of a message, chosen by the value.
    Choice(fn(&Value) -> Option<(u32, &'static Form)>),
}

/// Message of gnostic: the fields that are written for a JSON object.
struct Message {
    /// Names of JSON with their numbers, in the order of these.
    fields: &'static [(&'static str, u32, Form)],
    rest: Rest,
}

/// Treatment of entries that are not among the fields.
enum Rest {
    /// They are not written.
    None,
    /// Those called `x-…` are pairs of name and value.
    Extensions(u32),
    /// All of them are.
    Pairs(u32, &'static Form),
}

impl Message {
    fn encode(&self, own: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out, own);
        out
    }

    fn write(&self, out: &mut Vec<u8>, own: &Value) {
        for (name, at, form) in self.fields {
            // A message that lacks a number, a truth or a text has zero, no or none.
            if let Some(value) = own.get(*name).filter(|value| !form.is_plain() || !is_zero(value)) {
                form.write(out, *at, value);
            }
        }
        let entries = own.as_object().into_iter().flatten();
        match self.rest {
            Rest::None => {}
            Rest::Extensions(at) => {
                entries.filter(|(name, _)| name.starts_with("x-")).for_each(|(name, value)| {
                    pair(out, at, name, value, &Form::Any);
                });
            }
            Rest::Pairs(at, form) => {
                let is_field = |name: &str| self.fields.iter().any(|(field, ..)| *field == name);
                entries.filter(|(name, _)| !is_field(name)).for_each(|(name, value)| pair(out, at, name, value, form));
            }
        }
    }
}

impl Form {
    fn is_plain(&self) -> bool {
        matches!(self, Self::Text | Self::Flag | Self::Count | Self::Double)
    }

    /// Writes a value; one of another type is left out.
    fn write(&self, out: &mut Vec<u8>, at: u32, value: &Value) {
        match self {
            Self::Text => value.as_str().into_iter().for_each(|text| bytes(out, at, text.as_bytes())),
            Self::Flag => value.as_bool().into_iter().for_each(|truth| number(out, at, u64::from(truth))),
            Self::Count => value.as_u64().into_iter().for_each(|count| number(out, at, count)),
            Self::Double => value.as_f64().into_iter().for_each(|value| double(out, at, value)),
            Self::Any => part(out, at, |out| bytes(out, 2, value.to_string().as_bytes())),
            Self::Message(message) if value.is_object() => part(out, at, |out| message.write(out, value)),
            Self::Message(_) => {}
            Self::Within(inner, form) => part(out, at, |out| form.write(out, *inner, value)),
            Self::Each(form) => value.as_array().into_iter().flatten().for_each(|item| form.write(out, at, item)),
            Self::Choice(choose) => part(out, at, |out| {
                choose(value).into_iter().for_each(|(chosen, form)| form.write(out, chosen, value));
            }),
        }
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(truth) => !truth,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

/// Writes a message within a message.
fn part(out: &mut Vec<u8>, at: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let Ok(()) = message(out, at, |out| {
        write(out);
        Ok::<(), Infallible>(())
    });
}

/// Writes an entry of a JSON object as a pair of name and value.
fn pair(out: &mut Vec<u8>, at: u32, name: &str, value: &Value, form: &Form) {
    part(out, at, |out| {
        bytes(out, 1, name.as_bytes());
        form.write(out, 2, value);
    });
}
