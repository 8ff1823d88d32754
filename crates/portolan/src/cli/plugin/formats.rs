//! Objects in the output formats of kubectl.

use anyhow::bail;
use portolan_types::object;
use serde::Serialize as _;
use serde_json::{Value, json};

use super::{flags::OutputFlags, output_format::OutputFormat, terminal::Terminal, text_table::TextTable};

/// Prints an object or a list, or the table that stands for it.
///
/// # Errors
/// A failed write; `name` for objects without a name.
pub(crate) fn print(
    terminal: &mut Terminal,
    flags: &OutputFlags,
    objects: &Value,
    table: impl FnOnce() -> TextTable,
) -> anyhow::Result<()> {
    match flags.object_format() {
        None => terminal.print(&table().text(!flags.no_headers)),
        Some(format) => print_object(terminal, &format, objects),
    }
}

/// Prints an object or a list in a format of objects.
///
/// # Errors
/// As for [`print`].
pub(crate) fn print_object(terminal: &mut Terminal, format: &OutputFormat, object: &Value) -> anyhow::Result<()> {
    terminal.print(&object_text(format, object)?)
}

/// Formats an object or a list in a format of objects.
///
/// # Errors
/// `name` for objects without a name; a format of tables.
pub(crate) fn object_text(format: &OutputFormat, object: &Value) -> anyhow::Result<String> {
    Ok(match format {
        OutputFormat::Json => format!("{}\n", serde_json::to_string_pretty(object)?),
        OutputFormat::Yaml => serde_saphyr::to_string(object)?,
        OutputFormat::Name => {
            let items = object["items"].as_array().map_or(std::slice::from_ref(object), Vec::as_slice);
            items.iter().map(|item| Ok(format!("{}\n", named(item)?))).collect::<anyhow::Result<_>>()?
        }
        OutputFormat::JsonPath(template) => template.text(object),
        OutputFormat::JsonPathAsJson(template) => {
            template.values(object).iter().map(|values| indented_by_four(values)).collect::<anyhow::Result<_>>()?
        }
        OutputFormat::CustomColumns(columns) => columns.text(object),
        OutputFormat::Table | OutputFormat::Wide => bail!("there is no table of it"),
    })
}

/// Formats values as a JSON list with the indent of kubectl.
fn indented_by_four(values: &[&Value]) -> anyhow::Result<String> {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    values.serialize(&mut serde_json::Serializer::with_formatter(&mut text, formatter))?;
    Ok(format!("{}\n", String::from_utf8(text)?))
}

/// Returns `kind.group/name`, as `kubectl -o name` does.
fn named(object: &Value) -> anyhow::Result<String> {
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    let name = object::name(object);
    if kind.is_empty() || name.is_empty() {
        bail!("the result has no name");
    }
    Ok(match object["apiVersion"].as_str().and_then(|version| version.split_once('/')) {
        Some((group, _)) => format!("{kind}.{group}/{name}"),
        None => format!("{kind}/{name}"),
    })
}

/// Returns a `v1 List` of objects, or the object if a single one was requested.
pub(crate) fn list_of(mut objects: Vec<Value>, is_single: bool) -> Value {
    match objects.pop() {
        Some(object) if is_single && objects.is_empty() => object,
        last => {
            objects.extend(last);
            json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": objects})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kubectl() {
        for (object, expected) in [
            (json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}), Some("pod/a")),
            (
                json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "Drain", "metadata": {"name": "a"}}),
                Some("drain.portolan.dev/a"),
            ),
            (json!({"kind": "Pod"}), None),
            (json!({"metadata": {"name": "a"}}), None),
        ] {
            assert_eq!(named(&object).ok().as_deref(), expected, "{object}");
        }
    }

    #[test]
    fn templates_and_columns_are_those_of_the_objects() {
        let list = list_of(vec![json!({"kind": "Pod", "n": [1]}), json!({"kind": "Node"})], false);
        for (format, expected) in [
            ("jsonpath={.items[*].kind}", "Pod Node"),
            ("jsonpath-as-json={.items[*].kind}", "[\n    \"Pod\",\n    \"Node\"\n]\n"),
            ("custom-columns=KIND:.kind,N:.n", "KIND   N\nPod    [1]\nNode   <none>\n"),
        ] {
            assert_eq!(object_text(&OutputFormat::parse(format).unwrap(), &list).unwrap(), expected, "{format}");
        }
    }

    #[test]
    fn only_a_single_requested_object_is_no_list() {
        let (a, b) = (json!({"a": 1}), json!({"b": 1}));
        assert_eq!(list_of(vec![a.clone()], true), a);
        assert_eq!(list_of(vec![a.clone()], false)["items"], json!([a]));
        assert_eq!(list_of(vec![a.clone(), b.clone()], true)["items"], json!([a, b]));
        assert_eq!(list_of(vec![], true)["items"], json!([]));
    }
}
