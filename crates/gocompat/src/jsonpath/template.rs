//! Templates of `kubectl -o jsonpath=…`: text, and paths in braces (client-go `util/jsonpath`).

use serde_json::Value;

use super::{JsonPathQuery, check};
use crate::{
    json::escaped,
    print::{go_double, go_print},
};

/// Nesting limit of ranges.
const MAX_RANGES: usize = 16;

/// Template of text and paths, evaluated on one object.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPathTemplate(Vec<Node>);

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Text(Value),
    Path(JsonPathQuery),
    /// Nodes that are evaluated on each value of a path.
    Range(JsonPathQuery, Vec<Node>),
}

/// Content of one pair of braces.
enum Action {
    Text(String),
    Path(JsonPathQuery),
    Range(JsonPathQuery),
    End,
}

impl JsonPathTemplate {
    /// Reads a template such as `{range .items[*]}{.metadata.name}{"\n"}{end}`.
    ///
    /// # Errors
    /// The error of client-go's parser; a range that is not closed, or nested deeper than any that people write.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut open: Vec<(Option<JsonPathQuery>, Vec<Node>)> = vec![(None, Vec::new())];
        let mut rest = text;
        while !rest.is_empty() {
            let (node, left) = match rest.strip_prefix('{') {
                None => {
                    let end = rest.find('{').unwrap_or(rest.len());
                    (Some(Node::Text(rest[..end].into())), &rest[end..])
                }
                Some(inner) => {
                    let end = closing_brace(inner)?;
                    (evaluated(action(&inner[..end])?, &mut open)?, &inner[end + 1..])
                }
            };
            if let Some((_, nodes)) = open.last_mut() {
                nodes.extend(node);
            }
            rest = left;
        }
        match (open.pop(), open.is_empty()) {
            (Some((None, nodes)), true) => Ok(Self(nodes)),
            _ => Err("a range has no {end}".to_owned()),
        }
    }

    /// Evaluates the template. Missing parts print nothing, and there is no line end behind the text.
    pub fn text(&self, object: &Value) -> String {
        let values = |values: Vec<&Value>| values.into_iter().map(printed).collect::<Vec<_>>().join(" ");
        self.values(object).into_iter().map(values).collect()
    }

    /// Returns the values of each text and each path of the template, in order; a range gives them once for each of its
    /// values.
    pub fn values<'v>(&'v self, object: &'v Value) -> Vec<Vec<&'v Value>> {
        let mut found = Vec::new();
        collect(&self.0, object, &mut found);
        found
    }
}

/// Opens or closes a range, or returns the node of another action.
fn evaluated(action: Action, open: &mut Vec<(Option<JsonPathQuery>, Vec<Node>)>) -> Result<Option<Node>, String> {
    match action {
        Action::Text(text) => Ok(Some(Node::Text(text.into()))),
        Action::Path(path) => Ok(Some(Node::Path(path))),
        Action::Range(_) if open.len() > MAX_RANGES => Err(format!("more than {MAX_RANGES} nested ranges")),
        Action::Range(path) => {
            open.push((Some(path), Vec::new()));
            Ok(None)
        }
        Action::End => match open.pop() {
            Some((Some(path), nodes)) => Ok(Some(Node::Range(path, nodes))),
            _ => Err("not in range, nothing to end".to_owned()),
        },
    }
}

fn collect<'v>(nodes: &'v [Node], on: &'v Value, found: &mut Vec<Vec<&'v Value>>) {
    for node in nodes {
        match node {
            Node::Text(text) => found.push(vec![text]),
            Node::Path(path) => found.push(path.find_all(on)),
            Node::Range(path, inner) => path.find_all(on).into_iter().for_each(|value| collect(inner, value, found)),
        }
    }
}

/// Formats a value: objects and lists as JSON, all else as Go prints it.
fn printed(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => escaped(&value.to_string()),
        Value::Number(number) if !number.is_i64() => number.as_f64().map_or_else(|| number.to_string(), go_double),
        Value::Null => "null".to_owned(),
        leaf => go_print(leaf),
    }
}

/// Returns the end of an action, past quotes.
fn closing_brace(text: &str) -> Result<usize, String> {
    let (mut quote, mut is_escaped) = (None, false);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if is_escaped => is_escaped = false,
            (_, '\\') => is_escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '}') => return Ok(at),
            (None, _) => {}
        }
    }
    Err(if quote.is_some() { "unterminated quoted string" } else { "unclosed action" }.to_owned())
}

fn action(text: &str) -> Result<Action, String> {
    let text = text.trim_matches(' ');
    if text == "end" {
        return Ok(Action::End);
    }
    if let Some(quoted) = quoted(text) {
        return Ok(Action::Text(unescaped(quoted)));
    }
    match text.strip_prefix("range").filter(|rest| rest.starts_with([' ', '.', '[', '@', '$'])) {
        Some(path) => Ok(Action::Range(path_of(path)?)),
        None => Ok(Action::Path(path_of(text)?)),
    }
}

fn path_of(text: &str) -> Result<JsonPathQuery, String> {
    check(text)?;
    JsonPathQuery::parse(text).ok_or_else(|| format!("the path {{{text}}} cannot be evaluated"))
}

/// Returns the inside of a text that is one quoted string.
fn quoted(text: &str) -> Option<&str> {
    ['\'', '"'].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote))
}

fn unescaped(text: &str) -> String {
    let (mut out, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        let shown = if c == '\\' { chars.next() } else { Some(c) };
        out.extend(match shown {
            Some('n') if c == '\\' => Some('\n'),
            Some('t') if c == '\\' => Some('\t'),
            Some('r') if c == '\\' => Some('\r'),
            other => other,
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_prints_what_kubectl_prints() {
        let list = json!({"kind": "List", "items": [
            {"metadata": {"name": "a", "labels": {"x.y/z": "1"}}, "ready": true, "n": 3, "share": 0.5},
            {"metadata": {"name": "b"}, "n": 40, "tags": ["<p>", "q"], "none": null},
        ]});
        for (template, expected) in [
            ("{.kind}", "List"),
            ("plain", "plain"),
            (".kind", ".kind"),
            ("{.items[*].metadata.name}", "a b"),
            ("{.items[0].metadata}", r#"{"labels":{"x.y/z":"1"},"name":"a"}"#),
            ("{.items[1].tags}", r#"["\u003cp\u003e","q"]"#),
            ("{.items[0].metadata.labels.x\\.y/z}", "1"),
            ("{.items[0].ready} {.items[0].n}/{.items[1].n}", "true 3/40"),
            ("{.items[0].share}", "0.5"),
            ("{.items[?(@.n>5)].metadata.name}", "b"),
            ("{.items[?(@.metadata.name==\"a\")].n}", "3"),
            ("{range .items[*]}{.metadata.name}{\"\\t\"}{.n}{'\\n'}{end}", "a\t3\nb\t40\n"),
            ("{range .items[*]}[{range .tags[*]}{@}{\"}\"}{end}]{end}!", "[][<p>}q}]!"),
            ("{.items[1].none}", "null"),
            ("{.nothing}", ""),
            ("{range .nothing[*]}x{end}y", "y"),
            ("{@.kind}{$.kind}", "ListList"),
            ("{.items[1]['metadata.name', 'n']}", "b 40"),
        ] {
            let read = JsonPathTemplate::parse(template).unwrap_or_else(|error| panic!("{template}: {error}"));
            assert_eq!(read.text(&list), expected, "{template}");
        }
    }

    #[test]
    fn a_wrong_template_is_refused() {
        let nested = |depth: usize| format!("{}{}", "{range .a}".repeat(depth), "{end}".repeat(depth));
        assert!(JsonPathTemplate::parse(&nested(MAX_RANGES)).is_ok());
        for (template, expected) in [
            ("{.a", "unclosed action"),
            ("{\"a}", "unterminated quoted string"),
            ("{.a[}", "unterminated array"),
            ("{end}", "not in range, nothing to end"),
            ("{range .a}", "a range has no {end}"),
            (&nested(MAX_RANGES + 1), "more than 16 nested ranges"),
        ] {
            assert_eq!(JsonPathTemplate::parse(template).unwrap_err(), expected, "{template}");
        }
    }

    #[test]
    fn long_lists_are_printed_to_the_end() {
        let list = json!({"items": vec![json!({"name": "x"}); 30_000]});
        let read = JsonPathTemplate::parse("{.items[*].name}").unwrap();
        assert_eq!(read.text(&list).len(), 2 * 30_000 - 1);
    }
}
