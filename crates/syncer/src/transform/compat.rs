//! Fields that the API of an older physical cluster lacks.

use serde_json::Value;

/// Fields of an object that the API of the physical cluster does not have, as JSON pointers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingFields {
    /// Fields that are left out: their value is the default.
    pub defaults: Vec<String>,
    /// Fields that have a meaning.
    pub meant: Vec<String>,
}

/// First minor version whose fields are all known. Older clusters are queried for theirs.
const OWN_MINOR: u32 = 36;

/// Returns true when a physical cluster of this version (`v1.33.2`) may lack fields.
pub(crate) fn may_lack_fields(version: &str) -> bool {
    let minor = version.trim_start_matches('v').split('.').nth(1);
    let minor =
        minor.map(|text| text.trim_end_matches(|c: char| !c.is_ascii_digit())).and_then(|text| text.parse().ok());
    minor.is_none_or(|minor: u32| minor < OWN_MINOR)
}

/// Removes the field that a pointer names.
pub(super) fn remove(object: &mut Value, pointer: &str) {
    let Some((parent, field)) = pointer.rsplit_once('/') else { return };
    if let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        parent.remove(&field.replace("~1", "/").replace("~0", "~"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_older_physical_clusters_are_asked_for_their_fields() {
        for (version, asked) in [
            ("v1.33.2", true),
            ("v1.35.0-rc.1", true),
            ("v1.36.3", false),
            ("v1.36+", false),
            ("v1.37.0", false),
            ("", true),
        ] {
            assert_eq!(may_lack_fields(version), asked, "{version:?}");
        }
    }

    #[test]
    fn a_field_is_taken_out_wherever_it_is() {
        let mut object = json!({"spec": {"containers": [{"a/b": 1, "c": 2}]}});
        remove(&mut object, "/spec/containers/0/a~1b");
        remove(&mut object, "/spec/nothing/there");
        assert_eq!(object, json!({"spec": {"containers": [{"c": 2}]}}));
    }
}
