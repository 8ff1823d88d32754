use super::*;

fn problems(text: &str) -> String {
    let source = SourceText::new(text);
    parse(&source).map_or_else(|problems| problems.display(&source), |_| String::new())
}

#[test]
fn syntax_errors_have_positions() {
    for (text, expected) in [
        (
            "a +",
            "ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n | a +\n | ...^",
        ),
        ("a b", "ERROR: <input>:1:3: Syntax error: extraneous input 'b' expecting <EOF>\n | a b\n | ..^"),
        (
            "",
            "ERROR: <input>:1:0: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
        ),
        ("a b !", "ERROR: <input>:1:3: Syntax error: mismatched input 'b' expecting <EOF>\n | a b !\n | ..^"),
        (
            "/a/../b",
            "ERROR: <input>:1:1: Syntax error: extraneous input '/' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n | /a/../b\n | ^\nERROR: <input>:1:5: Syntax error: no viable alternative at input '..'\n | /a/../b\n | ....^",
        ),
        ("for", "ERROR: <input>:1:1: reserved identifier: for\n | for\n | ^"),
        ("a ==\n\t1 0", "ERROR: <input>:2:4: Syntax error: extraneous input '0' expecting <EOF>\n |  1 0\n | ...^"),
        ("'ü' 1", "ERROR: <input>:1:5: Syntax error: extraneous input '1' expecting <EOF>\n | 'ü' 1\n | .．..^"),
        ("99999999999999999999", "ERROR: <input>:1:1: invalid int literal\n | 99999999999999999999\n | ^"),
        ("has(a)", "ERROR: <input>:1:5: invalid argument to has() macro\n | has(a)\n | ....^"),
        ("l.map(1, 2)", "ERROR: <input>:1:7: argument is not an identifier\n | l.map(1, 2)\n | ......^"),
        ("l.all(a, a, true)", "ERROR: <input>:1:10: duplicate variable name: a\n | l.all(a, a, true)\n | .........^"),
    ] {
        assert_eq!(problems(text), expected, "{text}");
    }
}

#[test]
fn no_text_makes_the_parser_go_too_deep() {
    for text in [
        "(".repeat(5000),
        "[".repeat(5000),
        "a".to_owned() + &".b".repeat(5000),
        "1".to_owned() + &"+1".repeat(5000),
        "!(".repeat(4000),
        "a?b:".repeat(3000),
    ] {
        let found = crate::deep::run(true, || problems(&text)).expect("a thread");
        assert!(found.contains("ERROR"), "{}", &text[..20]);
    }
    assert_eq!(problems(&("a".to_owned() + &" || a".repeat(5000))), "", "a balanced tree is not deep");
}

#[test]
fn a_text_of_any_characters_is_read_or_refused() {
    use proptest::prelude::*;
    proptest!(|(text in "[a-z.()\\[\\]{}?:'\"\\\\ 0-9+*/%!<>=&|,ux\\-\u{e9}\n]{0,60}")| {
        let _ = problems(&text);
    });
}
