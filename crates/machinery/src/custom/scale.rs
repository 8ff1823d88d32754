//! Where the subresource `scale` finds what it is about.

use serde_json::Value;

use crate::{
    decode::{go_print, go_type},
    validation::Errors,
};

/// Places of what `scale` reads and writes.
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
    /// A path from its text.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The path as a definition writes it.
    pub fn written(&self) -> &str {
        &self.0
    }

    /// The names of the fields on the way.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.strip_prefix('.').unwrap_or(&self.0).split('.')
    }

    /// The way to its first `count` fields, as errors tell it.
    fn start(&self, count: usize) -> String {
        self.names().take(count).map(|name| format!(".{name}")).collect()
    }

    /// What is there in an object.
    ///
    /// # Errors
    /// When something on the way is no object, in Go's words.
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

    /// The integer that is there.
    ///
    /// # Errors
    /// When something else is.
    pub fn integer(&self, object: &Value) -> Result<Option<i64>, String> {
        let Some(value) = self.find(object)? else { return Ok(None) };
        value.as_i64().map(Some).ok_or_else(|| unexpected(&self.start(usize::MAX), value, "int64"))
    }

    /// The text that is there.
    ///
    /// # Errors
    /// When something else is.
    pub fn text<'v>(&self, object: &'v Value) -> Result<Option<&'v str>, String> {
        let Some(value) = self.find(object)? else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| unexpected(&self.start(usize::MAX), value, "string"))
    }
}

fn unexpected(path: &str, value: &Value, wanted: &str) -> String {
    format!("{path} accessor error: {} is of the type {}, expected {wanted}", go_print(value), go_type(value))
}

impl ScalePaths {
    /// Reads them from what a definition says of the subresource.
    pub(super) fn read(scale: &Value) -> Option<Self> {
        let path = |name: &str| {
            let text = scale.get(name).and_then(Value::as_str);
            text.filter(|text| !text.is_empty()).map(JsonPath::new)
        };
        let (spec, status) = path("specReplicasPath").zip(path("statusReplicasPath"))?;
        Some(Self { spec, status, selector: path("labelSelectorPath") })
    }

    /// What is wrong with the numbers of an object, and with its selector.
    pub(super) fn check(&self, object: &Value, errors: &mut Errors) {
        check_count(&self.spec, object, errors);
        self.check_status(object, errors);
    }

    /// What is wrong with what is in the status.
    pub(super) fn check_status(&self, object: &Value, errors: &mut Errors) {
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
