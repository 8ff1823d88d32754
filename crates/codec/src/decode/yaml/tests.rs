use serde_json::{Value, json};

use super::*;
use crate::decode::MAX_READ_DEPTH;

/// Results of Go for documents: made by `e2e/codegen/yamlcases`, and compared by the suite `tables`.
const GO: &str = include_str!("../../../testdata/yaml.jsonl");

#[test]
fn documents_become_the_json_that_go_makes() {
    let mut wrong = Vec::new();
    for line in GO.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let text = case["yaml"].as_str().unwrap();
        let expected = case["error"].as_str().map_or_else(|| Ok(case["json"].clone()), |error| Err(error.to_owned()));
        let found = read(text.as_bytes()).map(|read| read.tree);
        if found != expected {
            wrong.push(format!("{text:?}\n  is {found:?}\n  not {expected:?}"));
        }
        let expected: Vec<String> = serde_json::from_value(case["repeated"].clone()).unwrap_or_default();
        let repeated = if found.is_ok() { repeated(text.as_bytes()) } else { Vec::new() };
        if repeated != expected {
            wrong.push(format!("{text:?}\n  repeats {repeated:?}\n  not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn json_is_read_as_yaml() {
    for (text, expected, repeats) in [
        ("{\"a\":1.0,\"b\":[1e3,0.5]}", json!({"a": 1, "b": [1000, 0.5]}), false),
        ("{\"a\":{\"b\":1,\"b\":2}}", json!({"a": {"b": 2}}), true),
        ("{\"a\":\t\"\\ud83d\\ude00\"}", json!({"a": "😀"}), false),
        // Numbers that JSON cannot have in Rust are texts in Go.
        ("{\"a\":1e999}", json!({"a": "1e999"}), false),
        ("{\"a\":18446744073709551616}", json!({"a": 18_446_744_073_709_551_616.0}), false),
    ] {
        assert_eq!(read(text.as_bytes()), Ok(ParsedYaml { tree: expected, repeats }), "{text}");
    }
}

#[test]
fn broken_yaml_has_gos_errors() {
    for (body, expected) in [
        (&b"a: [1"[..], "yaml: line 1: did not find expected ',' or ']'"),
        (b"a: \xff", "yaml: invalid leading UTF-8 octet"),
        (b"a: \xc3(", "yaml: invalid trailing UTF-8 octet"),
        (b"a: \xc3", "yaml: incomplete UTF-8 octet sequence"),
        (b"a: *x", "yaml: unknown anchor 'x' referenced"),
    ] {
        assert_eq!(read(body), Err(expected.to_owned()), "{:?}", String::from_utf8_lossy(body));
    }
}

#[test]
fn syntax_errors_of_yaml_precede_errors_of_content() {
    let text = read(b"a: !!int x\nb: *a\n").unwrap_err();
    assert_eq!(text, "yaml: unknown anchor 'a' referenced");
}

#[test]
fn depth_is_bounded_in_every_form() {
    let deep = |levels: usize| {
        [
            "[".repeat(levels) + &"]".repeat(levels),
            "- ".repeat(levels) + "a",
            (0..levels).map(|level| format!("{}a:\n", " ".repeat(level))).collect::<String>()
                + &" ".repeat(levels)
                + "1",
            // Half of the document is behind an alias.
            format!(
                "[&a {}1{}, {}*a{}]",
                "[".repeat(levels / 2),
                "]".repeat(levels / 2),
                "[".repeat(levels - levels / 2),
                "]".repeat(levels - levels / 2)
            ),
        ]
    };
    for text in deep(MAX_READ_DEPTH - 2) {
        assert!(read(text.as_bytes()).is_ok(), "{}", &text[..20]);
    }
    let deepest = ["[".repeat(20_000), "- ".repeat(20_000)];
    for text in deep(MAX_READ_DEPTH + 2).into_iter().chain(deepest) {
        assert_eq!(read(text.as_bytes()), Err("yaml: exceeded max depth of 128".into()), "{}", &text[..20]);
    }
}

#[test]
fn a_chain_of_merges_does_not_fill_the_stack() {
    let link = |at: usize| format!("a{at}: &a{at} {{<<: *a{}}}\n", at - 1);
    let chain: String = (1..2000).map(link).collect();
    let refused = read(format!("a0: &a0 {{x: 1}}\n{chain}").as_bytes()).unwrap_err();
    assert!(refused == words::EXCESSIVE || refused.contains("max depth"), "{refused}");
}

#[test]
fn aliases_cost_their_expansion() {
    let many = |text: &str, times: usize| format!("a: &a {text}\nb: [{}]", "*a,".repeat(times));
    // Half of the maximum number of nodes without aliases, and lists of two aliases.
    let full = |text: &str, nodes: usize| {
        format!("{{t: {text}, l: [{}], a: &a [x], b: [{}]}}", "x,".repeat(MAX_NODES / 2), "*a,".repeat(nodes / 2))
    };
    for (case, text, is_fine) in [
        ("a word a hundred times", many("x", 100), true),
        ("a long text a thousand times", many(&"x".repeat(10_000), 1000), false),
        ("a short number a hundred times", many("01", 100), true),
        ("a long octal number a thousand times", many(&format!("0{}1", "0".repeat(10_000)), 1000), false),
        ("a long float a thousand times", many(&format!("0.{}1", "0".repeat(10_000)), 1000), false),
        ("bytes that are all line breaks", many(&format!("!!binary \"{}\"", "\\n".repeat(10_000)), 1000), false),
        ("bytes that are longer as text", many(&format!("!!binary {}", "/".repeat(10_000)), 6), false),
        ("a list of many a hundred times", many(&format!("[{}]", "x,".repeat(1000)), 100), false),
        ("fewer nodes than the document has", full(&"x".repeat(300_000), 100_000), true),
        ("a tree of more nodes than a document", full(&"x".repeat(300_000), 300_000), false),
        (
            "a map of many, merged",
            format!("a: &a {{{}}}\nb:\n  <<: [{}]", "x: 1,".repeat(1000), "*a,".repeat(100)),
            false,
        ),
    ] {
        let read = read(text.as_bytes());
        assert_eq!(read.as_ref().err().map(String::as_str), (!is_fine).then_some(words::EXCESSIVE), "{case}");
    }
}

#[test]
fn documents_have_a_bounded_number_of_nodes() {
    let list = |open: &str, items: usize, close: &str| format!("{open}{}1{close}", "1,".repeat(items - 1));
    let map = |entries: usize| {
        let entries: Vec<String> = (0..entries).map(|n| format!("\"{n}\":1")).collect();
        format!("{{{}}}", entries.join(","))
    };
    for (case, most, more) in [
        ("a list in a map", list("a: [", MAX_NODES - 3, "]"), list("a: [", MAX_NODES - 2, "]")),
        ("JSON", list("{\"a\":[", MAX_NODES - 3, "]}"), list("{\"a\":[", MAX_NODES - 2, "]}")),
        ("JSON of many keys", map(MAX_NODES / 2 - 1), map(MAX_NODES / 2)),
    ] {
        assert!(read(most.as_bytes()).is_ok(), "{case}");
        assert_eq!(read(more.as_bytes()), Err("yaml: document has more than 786432 nodes".into()), "{case}");
    }
}

#[test]
fn documents_have_a_bounded_number_of_anchors() {
    let anchors = |many: usize| format!("[{}]", "&a 1,".repeat(many));
    assert!(read(anchors(document::MAX_ANCHORS).as_bytes()).is_ok());
    let refused = read(anchors(document::MAX_ANCHORS + 1).as_bytes());
    assert_eq!(refused, Err("yaml: document has more than 50000 anchors".into()));
}

#[test]
fn tags_cost_their_expansion() {
    let tagged = |prefix: &str, node: &str| format!("%TAG !t! {prefix}\n---\n[{}]", node.repeat(10_000));
    let long = "x".repeat(1000);
    for (case, text, is_fine) in [
        ("none", format!("[{}]", "!!int 1,".repeat(10_000)), true),
        ("a directive of YAML's own", tagged("tag:yaml.org,2002:", "!t!int 1,"), true),
        ("a long one, of scalars", tagged(&long, "!t!x 1,"), false),
        ("a long one, of maps", tagged(&long, "!t!x {},"), false),
        ("a long one, of lists", tagged(&long, "!t!x [],"), false),
    ] {
        let read = read(text.as_bytes());
        assert_eq!(read.as_ref().err().map(String::as_str), (!is_fine).then_some(words::LONG_TAGS), "{case}");
    }
}

#[test]
fn a_tag_is_the_same_however_it_is_spelled() {
    for (text, expected) in [
        ("!!int '1'", json!(1)),
        ("!<tag:yaml.org,2002:int> '1'", json!(1)),
        ("%TAG !t! tag:yaml.org,2002:i\n---\n!t!nt '1'", json!(1)),
        ("%TAG !t! tag:yaml.org,\n---\n!t!2002:int '1'", json!(1)),
        ("! 1", json!("1")),
        ("!int 1", json!("1")),
        ("!!other 1", json!("1")),
        ("{! <<: {a: 1}}", json!({"a": 1})),
        ("{!!merge <<: {a: 1}}", json!({"a": 1})),
        ("{!!str <<: {a: 1}}", json!({"<<": {"a": 1}})),
    ] {
        assert_eq!(read(text.as_bytes()).map(|read| read.tree), Ok(expected), "{text}");
    }
}
