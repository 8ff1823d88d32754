//! Objects in the output formats of kubectl.

use anyhow::bail;
use portolan_types::object;
use serde_json::{Value, json};

use super::{
    flags::{OutputFlags, OutputFormat},
    terminal::Terminal,
    text_table::TextTable,
};

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
    match flags.output {
        None | Some(OutputFormat::Table | OutputFormat::Wide) => terminal.print(&table().text(!flags.no_headers)),
        Some(format) => print_object(terminal, format, objects),
    }
}

/// Prints an object or a list as JSON, as YAML or by its name.
///
/// # Errors
/// As for [`print`].
pub(crate) fn print_object(terminal: &mut Terminal, format: OutputFormat, object: &Value) -> anyhow::Result<()> {
    terminal.print(&object_text(format, object)?)
}

/// Formats an object or a list as JSON, as YAML or by its name.
///
/// # Errors
/// `name` for objects without a name; a format of tables.
pub(crate) fn object_text(format: OutputFormat, object: &Value) -> anyhow::Result<String> {
    Ok(match format {
        OutputFormat::Json => format!("{}\n", serde_json::to_string_pretty(object)?),
        OutputFormat::Yaml => serde_saphyr::to_string(object)?,
        OutputFormat::Name => {
            let items = object["items"].as_array().map_or(std::slice::from_ref(object), Vec::as_slice);
            items.iter().map(|item| Ok(format!("{}\n", named(item)?))).collect::<anyhow::Result<_>>()?
        }
        OutputFormat::Table | OutputFormat::Wide => bail!("there is no table of it"),
    })
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
    fn only_a_single_requested_object_is_no_list() {
        let (a, b) = (json!({"a": 1}), json!({"b": 1}));
        assert_eq!(list_of(vec![a.clone()], true), a);
        assert_eq!(list_of(vec![a.clone()], false)["items"], json!([a]));
        assert_eq!(list_of(vec![a.clone(), b.clone()], true)["items"], json!([a, b]));
        assert_eq!(list_of(vec![], true)["items"], json!([]));
    }
}
