//! Functions of Kubernetes 1.36's environment, from a table that `e2e/codegen/celtable` prints.

use crate::types::CelType;
use std::collections::HashMap;
use std::sync::LazyLock;

/// Overload of a function.
#[derive(Debug)]
pub(crate) struct Overload {
    /// Id of the overload, as in cel-go; costs depend on it.
    pub(crate) id: &'static str,
    /// True for a method: its target is the first of `args`.
    pub(crate) member: bool,
    pub(crate) result: CelType,
    pub(crate) args: Vec<CelType>,
}

/// Functions of mutating policies only.
const JSON_PATCH: &str = "jsonpatch.escapeKey jsonpatch_escapeKey global string string";

static TABLE: LazyLock<HashMap<&'static str, Vec<Overload>>> =
    LazyLock::new(|| read(include_str!("functions.txt").lines()));
static MUTATION: LazyLock<HashMap<&'static str, Vec<Overload>>> = LazyLock::new(|| read(std::iter::once(JSON_PATCH)));

fn read(lines: impl Iterator<Item = &'static str>) -> HashMap<&'static str, Vec<Overload>> {
    let mut functions: HashMap<&'static str, Vec<Overload>> = HashMap::new();
    for line in lines {
        let mut words = line.split_ascii_whitespace();
        let (Some(name), Some(id), Some(style), Some(result)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let overload = Overload {
            id,
            member: style == "member",
            result: CelType::parse(result),
            args: words.map(CelType::parse).collect(),
        };
        functions.entry(name).or_default().push(overload);
    }
    functions
}

/// Returns the overloads of a function; with `mutation`, also those for mutating policies.
pub(crate) fn find(name: &str, mutation: bool) -> Option<&'static [Overload]> {
    let name = name.strip_prefix('.').unwrap_or(name);
    let extra = if mutation { MUTATION.get(name) } else { None };
    extra.or_else(|| TABLE.get(name)).map(Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_the_table_is_understood() {
        for (name, overloads) in TABLE.iter() {
            for overload in overloads {
                for one in overload.args.iter().chain([&overload.result]) {
                    assert!(!one.to_string().contains("!error!"), "{name} {}: {one}", overload.id);
                }
            }
        }
    }

    #[test]
    fn functions_of_mutating_policies_are_unknown_elsewhere() {
        assert!(find("jsonpatch.escapeKey", false).is_none());
        assert!(find("jsonpatch.escapeKey", true).is_some());
        assert!(find(".size", false).is_some());
    }
}
