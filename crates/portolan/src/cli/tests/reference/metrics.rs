//! Reference of Portolan's own metrics, from the places in the sources that make them.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use super::cell;

/// Crates whose sources make metrics.
const CRATES: [&str; 7] = ["apiserver", "store", "control-plane", "controllers", "scheduler", "syncer", "portolan"];
/// Most bytes before a name among which its help is, where it does not follow the name.
const HELP_BEFORE: usize = 900;

/// Returns the page.
pub(super) fn page() -> String {
    let mut found = BTreeMap::new();
    for name in CRATES {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"), &mut found);
    }
    let mut page = "`/metrics` also has kube-apiserver's metrics under their own names ([monitoring](../operating.md#metrics)). \
                    These are Portolan's. None has a label that names a logical cluster.\n\n| metric | type | meaning |\n\
                    |---|---|---|\n"
        .to_owned();
    for (name, help) in &found {
        assert!(!help.is_empty(), "{name} has no help that is found");
        let _ = writeln!(page, "| `{name}` | {} | {} |", kind(name), cell(help));
    }
    page
}

fn kind(name: &str) -> &'static str {
    if name.ends_with("_total") {
        "counter"
    } else if name.ends_with("duration_seconds") || name.ends_with("sync_seconds") {
        "histogram"
    } else {
        "gauge"
    }
}

fn collect(folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            collect(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            scan(
                fs::read_to_string(&path).unwrap().split("#[cfg(test)]\nmod tests {").next().unwrap_or_default(),
                found,
            );
        }
    }
}

/// Adds the metrics that a source makes: a name as a literal, with its help behind it, in a variable, or before it.
fn scan(source: &str, found: &mut BTreeMap<String, String>) {
    for (at, _) in source.match_indices("\"portolan_") {
        let rest = &source[at + 1..];
        let Some(end) = rest.find('"') else { continue };
        let name = &rest[..end];
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        // Log filters and the readers of metrics name them without help.
        let after = rest[end + 1..].trim_start_matches([',', ' ', '\n']);
        if !is_name || after.starts_with(';') {
            continue;
        }
        let follows = || after.strip_prefix('"').map(literal).filter(|help| help.ends_with('.'));
        let in_variable = || variable(&source[..at], after.split(|c: char| !c.is_alphanumeric()).next()?);
        let of_tuple = || help_of_tuple(source, at, name);
        if let Some(help) = follows().or_else(in_variable).or_else(of_tuple).or_else(|| before(source, at, after)) {
            found.entry(name.to_owned()).or_insert(help);
        }
    }
}

/// Returns the text of the last variable of a name.
fn variable(source: &str, name: &str) -> Option<String> {
    let (_, text) = source.rsplit_once(&format!("let {name} = \""))?;
    Some(literal(text)).filter(|help| help.ends_with('.') && !name.is_empty())
}

/// Returns the help of a name that stands in `let (a, b) = ("portolan_…", "portolan_…")`: it follows the variable.
fn help_of_tuple(source: &str, at: usize, name: &str) -> Option<String> {
    let line = source[..at].rfind("let (").map(|start| source[start..].lines().next().unwrap_or_default())?;
    let (variables, names) = line.split_once(") = (")?;
    let index = names.split(',').position(|text| text.contains(&format!("\"{name}\"")))?;
    let variable = variables.trim_start_matches("let (").split(',').nth(index)?.trim();
    let (_, text) = source.split_once(&format!("new({variable}, \""))?;
    Some(literal(text))
}

/// Returns the help of a name that ends a call, as a variable of another function's argument.
fn before(source: &str, at: usize, after: &str) -> Option<String> {
    let texts = source[at.saturating_sub(HELP_BEFORE)..at].rsplit('"');
    texts.filter(|_| after.starts_with("help")).find(|text| is_help(text)).map(str::to_owned)
}

fn is_help(text: &str) -> bool {
    text.len() > 20 && text.ends_with('.') && text.starts_with(|c: char| c.is_ascii_uppercase()) && !text.contains(';')
}

/// Reads a string literal behind its opening quote; a backslash at the end of a line continues it.
fn literal(text: &str) -> String {
    let (mut read, mut letters) = (String::new(), text.chars());
    while let Some(letter) = letters.next() {
        match letter {
            '"' => break,
            '\\' => match letters.next() {
                Some('\n') => read.push(' '),
                Some(escaped) => read.push(escaped),
                None => break,
            },
            letter => read.push(letter),
        }
    }
    read
}
