//! Import cycles between the top-level folders of a crate, found in its `use` paths.

use std::collections::{BTreeMap, BTreeSet};

use super::sources::{self, Source};

/// Crates whose folders use each other in one direction only.
pub(crate) const ORDERED: [&str; 8] =
    ["store", "apiserver", "kinds", "codec", "merge", "validation", "strategy", "gocompat"];

/// Folders of the store, the lowest first. `docs/decisions/0006-floors-of-the-store.md` has the reasons.
pub(crate) const STORE_FLOORS: [&str; 17] = [
    "api",
    "layout",
    "engine",
    "metrics",
    "read",
    "integrity",
    "reader_pool",
    "watch",
    "write",
    "maintenance",
    "embedded",
    "open",
    "snapshot",
    "encryption",
    "etcd",
    "object_client",
    "workqueue",
];

/// Modules that may import any floor: those of tests, and the contents page.
const WITHOUT_FLOOR: [&str; 3] = ["fixtures", "testing", "lib"];

/// Returns the imports of the crate in the folder `package` that do not name a module of the own floor or a lower one.
pub(crate) fn upward_imports(package: &str, floors: &[&str]) -> Vec<String> {
    let prefix = format!("{package}/src/");
    let floor = |name: &str| floors.iter().position(|floor| *floor == name);
    let has_floor = |part: &str| !WITHOUT_FLOOR.contains(&part.trim_end_matches(".rs"));
    let mut wrong = Vec::new();
    for source in sources::all().iter().filter(|source| !source.is_test()) {
        let Some(inner) = source.name.strip_prefix(&prefix).filter(|inner| inner.split('/').all(has_floor)) else {
            continue;
        };
        let own = inner.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let Some(here) = floor(own) else {
            wrong.push(format!("{inner} is in no floor"));
            continue;
        };
        for name in modules_named(source) {
            match floor(&name) {
                Some(there) if there <= here => {}
                Some(_) => wrong.push(format!("{inner} imports {name}, which is above {own}")),
                None => wrong.push(format!("{inner} imports {name} from the root: name the module that defines it")),
            }
        }
    }
    wrong
}

/// Returns the cycles between the top-level modules of the crate in the folder `package`, each with all its modules.
pub(crate) fn cycles(package: &str) -> Vec<Vec<String>> {
    let uses = uses_of(package);
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        uses.keys().map(|from| (from, reachable(&uses, from))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for module in uses.keys() {
        let together: Vec<String> = reached[module]
            .iter()
            .filter(|other| reached[**other].contains(module))
            .map(|name| (*name).clone())
            .collect();
        if together.len() > 1 && !found.contains(&together) {
            found.push(together);
        }
    }
    found
}

fn reachable<'a>(uses: &'a BTreeMap<String, BTreeSet<String>>, from: &String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&String> = uses[from].iter().collect();
    while let Some(module) = open.pop() {
        if reached.insert(module) {
            open.extend(&uses[module]);
        }
    }
    reached
}

/// Returns the top-level modules of a crate and the modules that each names after `crate::`.
fn uses_of(package: &str) -> BTreeMap<String, BTreeSet<String>> {
    let prefix = format!("{package}/src/");
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources::all().iter().filter(|source| !source.is_test()) {
        let Some(inner) = source.name.strip_prefix(&prefix) else { continue };
        let module = inner.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        if !matches!(module, "lib" | "main") {
            uses.entry(module.to_owned()).or_default().extend(modules_named(source));
        }
    }
    let modules: BTreeSet<String> = uses.keys().cloned().collect();
    for (module, named) in &mut uses {
        named.retain(|name| name != module && modules.contains(name));
    }
    uses
}

/// Returns the first segment of every path after `crate::`, also inside braces.
fn modules_named(source: &Source) -> BTreeSet<String> {
    let text = source.code().collect::<Vec<_>>().join("\n");
    let mut named = BTreeSet::new();
    for rest in text.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(group) => named.extend(group_heads(group)),
            None => named.extend(head(rest)),
        }
    }
    named
}

fn head(path: &str) -> Option<String> {
    let name: String = path.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

/// Returns the first segments of the paths in a `{…}` group whose opening brace was just read.
fn group_heads(group: &str) -> Vec<String> {
    let mut depth = 0;
    let mut heads = Vec::new();
    let mut start = 0;
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                heads.extend(head(&group[start..at]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                heads.extend(head(&group[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    heads
}
