//! Paths of the subresource `scale`.

use portolan_gocompat::print::{go_print, go_type};
use serde_json::Value;

use crate::field::Errors;

/// Paths that the `scale` subresource reads and writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// `specReplicasPath`
    pub spec: JsonPath,
    /// `statusReplicasPath`
    pub status: JsonPath,
    /// `labelSelectorPath`
    pub selector: Option<JsonPath>,
}

/// A simple path, such as `.spec.replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath(Box<str>);

impl JsonPath {
    /// Parses a path.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the path as a definition writes it.
    pub fn written(&self) -> &str {
        &self.0
    }

    /// Returns the names of the fields of the path.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.strip_prefix('.').unwrap_or(&self.0).split('.')
    }

    /// Returns the path of the first `count` fields, as errors show it.
    fn start(&self, count: usize) -> String {
        self.names().take(count).map(|name| format!(".{name}")).collect()
    }

    /// Returns the value at the path in an object.
    ///
    /// # Errors
    /// Message of Go, if a parent is not an object.
    pub fn find<'v>(&self, object: &'v Value) -> Result<Option<&'v Value>, String> {
        let mut at = object;
        for (count, name) in (1..).zip(self.names()) {
            match at {
                Value::Null => return Ok(None),
                Value::Object(fields) => match fields.get(name) {
                    Some(next) => at = next,
                    None => return Ok(None),
                },
                other => return Err(unexpected(&self.start(count), other, "map[string]interface{}")),
            }
        }
        Ok(Some(at))
    }

    /// Returns the integer at the path.
    ///
    /// # Errors
    /// Fails if something else is.
    pub fn integer(&self, object: &Value) -> Result<Option<i64>, String> {
        let Some(value) = self.find(object)? else { return Ok(None) };
        value.as_i64().map(Some).ok_or_else(|| unexpected(&self.start(usize::MAX), value, "int64"))
    }

    /// Returns the text at the path.
    ///
    /// # Errors
    /// Fails if something else is.
    pub fn text<'v>(&self, object: &'v Value) -> Result<Option<&'v str>, String> {
        let Some(value) = self.find(object)? else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| unexpected(&self.start(usize::MAX), value, "string"))
    }
}

fn unexpected(path: &str, value: &Value, wanted: &str) -> String {
    format!("{path} accessor error: {} is of the type {}, expected {wanted}", go_print(value), go_type(value))
}

impl ScalePaths {
    /// Reads the paths from the definition of the subresource.
    pub(super) fn read(scale: &Value) -> Option<Self> {
        let path = |name: &str| {
            let text = scale.get(name).and_then(Value::as_str);
            text.filter(|text| !text.is_empty()).map(JsonPath::new)
        };
        let (spec, status) = path("specReplicasPath").zip(path("statusReplicasPath"))?;
        Some(Self { spec, status, selector: path("labelSelectorPath") })
    }

    /// Validates the numbers and the selector of an object.
    pub fn check(&self, object: &Value, errors: &mut Errors) {
        check_count(&self.spec, object, errors);
        self.check_status(object, errors);
    }

    /// Validates the numbers in the status.
    pub fn check_status(&self, object: &Value, errors: &mut Errors) {
        check_count(&self.status, object, errors);
        if let Some(path) = &self.selector
            && let Err(why) = path.text(object)
        {
            errors.invalid(&*path.0, &"".into(), &why);
        }
    }
}

fn check_count(path: &JsonPath, object: &Value, errors: &mut Errors) {
    let mut invalid = |value: i64, why: &str| errors.invalid(&*path.0, &value.into(), why);
    match path.integer(object) {
        Err(why) => invalid(0, &why),
        Ok(Some(count)) if count < 0 => invalid(count, "should be a non-negative integer"),
        Ok(Some(count)) if count > i64::from(i32::MAX) => {
            invalid(count, &format!("should be less than or equal to {}", i32::MAX));
        }
        Ok(_) => {}
    }
}
