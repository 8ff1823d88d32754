//! Reference of Portolan's own kinds: a section per type, with a row per field.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use serde::Deserialize;
use serde_json::Value;

use super::cell;

const TABLE: &str = include_str!("../../../../../kinds/data/portolan.json");
const TEXTS: &str = include_str!("../../../../../kinds/data/portolan-texts.json");
/// Start of the names of Portolan's own types.
const OWN: &str = "dev.portolan.v1alpha1.";

#[derive(Deserialize)]
struct KindsData {
    types: BTreeMap<String, TypeData>,
    objects: Vec<KindName>,
}

#[derive(Deserialize)]
struct KindName {
    kind: String,
    #[serde(rename = "type")]
    type_name: String,
}

#[derive(Deserialize, Clone)]
struct TypeData {
    #[serde(default)]
    fields: Vec<FieldData>,
}

#[derive(Deserialize, Clone)]
struct FieldData {
    name: String,
    #[serde(rename = "type")]
    type_name: String,
    #[serde(default)]
    flags: String,
    #[serde(default, rename = "enum")]
    values: Vec<String>,
}

/// Returns the page of all kinds, each followed by the types that it uses first.
pub(super) fn page() -> String {
    let data: KindsData = serde_json::from_str(TABLE).unwrap();
    let texts: BTreeMap<String, Value> = serde_json::from_str(TEXTS).unwrap();
    let (mut page, mut seen) = (String::new(), BTreeSet::new());
    for object in data.objects.iter().filter(|object| object.type_name.starts_with(OWN)) {
        if object.kind.ends_with("List") || !seen.insert(object.type_name.clone()) {
            continue;
        }
        let _ = writeln!(page, "## {}\n", object.kind);
        section(&data, &texts, &object.type_name, &mut page);
        let mut queue: Vec<String> = own_types(&data, &object.type_name);
        while !queue.is_empty() {
            let name = queue.remove(0);
            if seen.insert(name.clone()) {
                let _ = writeln!(page, "### {}\n", short(&name));
                section(&data, &texts, &name, &mut page);
                queue.extend(own_types(&data, &name));
            }
        }
    }
    page
}

/// Returns the name of a type without brackets: `[]` is a list, `{}` a map.
fn inner(name: &str) -> &str {
    name.trim_start_matches(['[', ']', '{', '}'])
}

fn short(name: &str) -> String {
    let marks = &name[..name.len() - inner(name).len()];
    let last = inner(name).rsplit('.').next().unwrap_or_default();
    match marks {
        "" => last.to_owned(),
        marks if marks.starts_with('[') => format!("{}[]", short(&name[2..])),
        _ => format!("map of {}", short(&name[2..])),
    }
}

fn own_types(data: &KindsData, name: &str) -> Vec<String> {
    let fields = data.types.get(name).map(|found| found.fields.clone()).unwrap_or_default();
    fields.iter().map(|field| inner(&field.type_name).to_owned()).filter(|name| name.starts_with(OWN)).collect()
}

fn section(data: &KindsData, texts: &BTreeMap<String, Value>, name: &str, page: &mut String) {
    let text = |field: &str| {
        let own = texts.get(name).and_then(|texts| texts.get(field));
        own.or_else(|| texts.get("*")?.get(field)).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let _ = writeln!(page, "{}\n\n| field | type | meaning |\n|---|---|---|", cell(&text("")));
    for field in data.types.get(name).map(|found| &found.fields[..]).unwrap_or_default() {
        let values = field.values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
        let values = if values.is_empty() { values } else { format!(" One of {values}.") };
        let required = if field.flags.contains('r') { ", required" } else { "" };
        let kind = short(&field.type_name);
        let is_linked = inner(&field.type_name).starts_with(OWN);
        let anchor = inner(&field.type_name).rsplit('.').next().unwrap_or_default().to_lowercase();
        let kind = if is_linked { format!("[{kind}](#{anchor})") } else { kind };
        let _ = writeln!(page, "| `{}` | {kind}{required} | {}{values} |", field.name, cell(&text(&field.name)));
    }
    page.push('\n');
}
