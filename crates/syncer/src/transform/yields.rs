//! Fields that a policy lets the physical cluster own, by paths such as `spec.replicas`. Pure.

use serde_json::Value;

fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.trim_start_matches('.').split('.')
}

/// Returns the value at `path`.
pub(super) fn get<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    steps(path).try_fold(object, |at, step| at.get(step))
}

/// Sets the value at `path`, or removes it. Parents are not created.
pub(super) fn set(object: &mut Value, path: &str, value: Option<&Value>) {
    let (around, last) = path.rsplit_once('.').unwrap_or(("", path));
    let around = steps(around).filter(|step| !step.is_empty()).try_fold(object, |at, step| at.get_mut(step));
    let Some(around) = around.and_then(Value::as_object_mut) else { return };
    match value {
        Some(value) => drop(around.insert(last.to_owned(), value.clone())),
        None => drop(around.remove(last)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_is_found_set_and_taken_away() {
        let mut object = json!({"spec": {"replicas": 1, "strategy": {"type": "Recreate"}}});
        assert_eq!(get(&object, "spec.strategy.type"), Some(&json!("Recreate")));
        assert_eq!(get(&object, ".spec.missing.type"), None);
        set(&mut object, "spec.replicas", Some(&json!(5)));
        set(&mut object, "spec.strategy.type", None);
        set(&mut object, "spec.missing.type", Some(&json!("x")));
        assert_eq!(object, json!({"spec": {"replicas": 5, "strategy": {}}}));
    }
}
