use serde_json::{Value, json};

use super::*;
use crate::decode::MAX_READ_DEPTH;

/// What Go makes of documents: made by `e2e/yamlcases`, and held to it by the suite `tables`.
const GO: &str = include_str!("../../../testdata/yaml.jsonl");

#[test]
fn documents_are_what_go_makes_of_them() {
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
        assert_eq!(read(text.as_bytes()), Ok(Read { tree: expected, repeats }), "{text}");
    }
}

#[test]
fn broken_yaml_is_told_in_gos_words() {
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
fn broken_yaml_is_told_before_what_has_no_meaning() {
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
            // Half of it is behind an alias.
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
fn aliases_cost_what_they_stand_for() {
    let many = |text: &str, times: usize| format!("a: &a {text}\nb: [{}]", "*a,".repeat(times));
    for (case, text, is_fine) in [
        ("a word a hundred times", many("x", 100), true),
        ("a long text a thousand times", many(&"x".repeat(10_000), 1000), false),
        ("a list of many a hundred times", many(&format!("[{}]", "x,".repeat(1000)), 100), false),
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
