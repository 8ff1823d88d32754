//! Values as Go's `%v` prints them: `map[a:1 b:[x y]]`.

use serde_json::Value;

/// A tree as Go prints its maps and slices; keys are sorted.
pub fn go_print(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(list) => format!("[{}]", list.iter().map(go_print).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let mut entries: Vec<(&String, &Value)> = fields.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries: Vec<String> =
                entries.iter().map(|(key, value)| format!("{key}:{}", go_print(value))).collect();
            format!("map[{}]", entries.join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn trees_are_printed_as_go_prints_maps() {
        let tree = json!({"b": [1, "x y", true], "a": {"$patch": "burn"}, "c": null, "d": {}, "e": []});
        assert_eq!(go_print(&tree), "map[a:map[$patch:burn] b:[1 x y true] c:<nil> d:map[] e:[]]");
    }
}
