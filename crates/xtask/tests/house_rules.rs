//! House rules over the text of the sources: comments, names of types, and the order of the folders of a crate.

#[path = "house_rules/folders.rs"]
mod folders;
#[path = "house_rules/sources.rs"]
mod sources;

use std::collections::{BTreeMap, BTreeSet};

use sources::{Source, TypeName};

/// Type names that several modules of one crate may share.
const GENERIC_TYPES: [&str; 8] = ["Error", "Config", "Options", "State", "Entry", "Key", "Step", "Builder"];

/// Bare participles, pronouns and adverbs, which do not describe a type.
const BARE_TYPES: [&str; 58] = [
    "After", "Again", "Apart", "Asked", "Before", "Begun", "Bound", "Called", "Changed", "Checked", "Chosen",
    "Counted", "Done", "Ended", "Expected", "Followed", "Found", "Gathered", "Given", "Gone", "Held", "Hidden", "Kept",
    "Known", "Left", "Listed", "Lost", "Made", "Meant", "Merged", "Missing", "Named", "Next", "Noted", "Opened",
    "Passed", "Past", "Placed", "Planned", "Read", "Ready", "Said", "Seen", "Sent", "Shown", "Spread", "Standing",
    "Stored", "Taken", "Tied", "Together", "Told", "Tried", "Waiting", "Wanted", "Whose", "Within", "Written",
];

/// Words that have a better one in Kubernetes' vocabulary, and the better one.
const BANNED_WORDS: [(&str, &str); 12] = [
    ("whoever", "the client, the user, the caller"),
    ("lets go of", "releases"),
    ("let go of", "release"),
    ("is told", "receives, is reported"),
    ("are told", "receive, are reported"),
    ("told apart", "distinguished"),
    ("none of ours", "an object of another control plane"),
    ("in vain", "without success"),
    ("anew", "again"),
    ("put up with", "tolerated"),
    ("in its stead", "instead of it"),
    ("makes no sense", "is invalid"),
];

/// Openers of a headless clause, which name neither the thing nor its action.
const OPENERS: [&str; 8] = ["What", "Who", "Whose", "Whom", "How", "Whether", "Where", "Which"];

/// Words for an actor that name none.
const ACTORS: [&str; 4] = ["nobody", "somebody", "whoever", "whatever"];

/// Columns of a comment line.
const COMMENT_COLUMNS: usize = 120;

/// Share of all types whose name occurs more than once in the workspace, in percent.
const SHARED_NAMES_PERCENT: usize = 25;

fn assert_none(rule: &str, violations: &[String]) {
    let shown = violations.iter().take(40).map(|line| format!("\n  {line}")).collect::<String>();
    assert!(violations.is_empty(), "{} places break the rule: {rule}{shown}", violations.len());
}

#[test]
fn doc_comments_start_with_a_noun_or_a_verb() {
    let breaks = |source: &Source| {
        let docs = source.doc_openings().filter(|(_, text)| {
            text.split(|c: char| !c.is_alphanumeric()).next().is_some_and(|word| OPENERS.contains(&word))
        });
        docs.map(|(line, text)| format!("{}:{line}: {text}", source.name)).collect::<Vec<_>>()
    };
    let violations: Vec<String> = sources::all().iter().flat_map(breaks).collect();
    assert_none("a type's doc starts with the noun it is, a function's with the verb it does", &violations);
}

#[test]
fn functions_are_named_for_an_effect() {
    let breaks = |source: &Source| {
        let names = source.lines().filter_map(function_name).filter(|name| is_headless(name));
        names.map(|name| format!("{}: {name}", source.name)).collect::<Vec<_>>()
    };
    let violations: Vec<String> = sources::all().iter().flat_map(breaks).collect();
    assert_none("no name of a function or test opens with a question word or names an unspecified actor", &violations);
}

/// Returns the name of the function that a line of code begins.
fn function_name(line: &str) -> Option<&str> {
    let (before, name) = line.split_once("fn ")?;
    let is_item = before.trim().is_empty()
        || ["pub", "async", "const", "pub(crate)", "pub(super)"].contains(&before.split_whitespace().last()?);
    is_item.then(|| name.split(['(', '<']).next().unwrap_or_default())
}

fn is_headless(name: &str) -> bool {
    let mut words = name.split('_');
    let opens = words.next().is_some_and(|first| OPENERS.iter().any(|opener| opener.eq_ignore_ascii_case(first)));
    (opens && name.contains('_')) || name.split('_').any(|word| ACTORS.contains(&word))
}

#[test]
fn comment_lines_fit_the_page() {
    let breaks = |source: &Source| {
        let lines = source.comments().filter(|(_, text)| text.chars().count() > COMMENT_COLUMNS);
        lines.map(|(line, _)| format!("{}:{line}", source.name)).collect::<Vec<_>>()
    };
    let violations: Vec<String> = sources::all().iter().flat_map(breaks).collect();
    assert_none("comment lines have at most 120 columns", &violations);
}

#[test]
fn comments_use_the_words_of_the_field() {
    let mut violations = Vec::new();
    for source in sources::all() {
        for (line, text) in source.comments() {
            let lower = text.to_lowercase();
            for (banned, better) in BANNED_WORDS {
                if lower.contains(banned) {
                    violations.push(format!("{}:{line}: \"{banned}\": say {better}", source.name));
                }
            }
        }
    }
    assert_none("comments use Kubernetes' vocabulary", &violations);
}

#[test]
fn types_are_named_for_what_they_are() {
    let types = type_names();
    let bare = types.iter().filter(|found| BARE_TYPES.contains(&found.name.as_str()));
    let violations: Vec<String> = bare.map(|found| format!("{}: {}", found.file, found.name)).collect();
    assert_none("no type is named by a bare participle, pronoun or adverb", &violations);
}

#[test]
fn visible_type_names_are_unique_in_their_crate() {
    let mut files: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for found in type_names() {
        if found.is_visible && !GENERIC_TYPES.contains(&found.name.as_str()) {
            files.entry((found.crate_name, found.name)).or_default().push(found.file);
        }
    }
    let repeated = files.into_iter().filter(|(_, files)| files.len() > 1);
    let violations: Vec<String> =
        repeated.map(|((package, name), files)| format!("{package}: {name} in {}", files.join(", "))).collect();
    assert_none("a crate-visible type name is unique in its crate", &violations);
}

#[test]
fn few_type_names_are_shared_in_the_workspace() {
    let types = type_names();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    types.iter().for_each(|found| *counts.entry(&found.name).or_default() += 1);
    let shared: usize = counts.values().filter(|count| **count > 1).sum();
    let percent = shared * 100 / types.len();
    let mut most: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 1).collect();
    most.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    most.truncate(40);
    assert!(percent <= SHARED_NAMES_PERCENT, "{percent} % of {} types share their name: {most:?}", types.len());
}

#[test]
fn folders_of_a_crate_use_each_other_in_one_direction_only() {
    let mut violations = Vec::new();
    for package in folders::ORDERED {
        violations
            .extend(folders::cycles(package).into_iter().map(|cycle| format!("{package}: {}", cycle.join(" → "))));
    }
    assert_none("the folders of a crate form no import cycle", &violations);
}

#[test]
fn each_folder_of_the_store_imports_only_those_before_it() {
    let files = sources::all().iter().filter(|source| source.name.starts_with("store/src/")).count();
    assert!(files > 50, "{files} files");
    let violations = folders::upward_imports("store", &folders::STORE_FLOORS);
    assert_none("each folder of the store imports only those before it", &violations);
}

#[test]
fn only_entry_points_name_the_whole_api_server() {
    let is_entry = |source: &Source| {
        let inner = source.name.strip_prefix("apiserver/src/").and_then(|inner| inner.split('/').next());
        inner.is_none_or(|part| ["handlers", "http", "lib.rs", "pipeline", "server"].contains(&part))
    };
    let is_named = |line: &str| {
        let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        words.any(|word| word == "ApiServer")
    };
    let sources = sources::all().iter().filter(|source| !source.is_test() && !is_entry(source));
    let violations: Vec<String> =
        sources.filter(|source| source.code().any(is_named)).map(|source| source.name.clone()).collect();
    assert_none("a function takes the narrowest context that it needs, not the whole API server", &violations);
}

/// Returns the types of all sources but those of tests.
fn type_names() -> Vec<TypeName> {
    let unique: BTreeSet<TypeName> = sources::all().iter().flat_map(Source::types).collect();
    unique.into_iter().collect()
}
