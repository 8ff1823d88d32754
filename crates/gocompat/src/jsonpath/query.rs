//! JSONPath as far as columns and selectable fields use it (client-go `util/jsonpath`).

use serde_json::Value;

/// Maximum of values that one path may visit: each step can multiply them.
const MAX_VALUES: usize = 10_000;
/// Bytes of the longest path.
const MAX_TEXT: usize = 1024;
/// Nesting limit of filters.
const MAX_FILTERS: usize = 4;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPathQuery(Box<[Step]>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// A field of an object.
    Field(Box<str>),
    /// Elements from, to and at every n-th; a single one if only the first is given.
    Slice {
        from: Option<i64>,
        to: Option<i64>,
        step: i64,
    },
    One(i64),
    /// All fields or elements.
    All,
    /// All below, at any depth.
    Deep,
    /// Steps one behind the other, of a quoted path such as `['metadata.name']`.
    Path(JsonPathQuery),
    /// Several steps from one place.
    Union(Box<[Step]>),
    /// Elements of which something holds.
    Filter(Box<Filter>),
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    /// The operator and the right side; without one the left side only has to be there.
    compared: Option<(Operator, Operand)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(JsonPathQuery),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPathQuery {
    /// Reads a path such as `.status.conditions[?(@.type=="Ready")].status`. `None` if it is not a path, or longer or
    /// deeper than real paths are.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_TEXT {
            return None;
        }
        Self::parse_within(text, MAX_FILTERS)
    }

    fn parse_within(text: &str, filters: usize) -> Option<Self> {
        let text = text.trim();
        let mut parser = Parser { rest: text.strip_prefix(['$', '@']).unwrap_or(text), filters };
        let mut steps = Vec::new();
        while !parser.rest.is_empty() {
            steps.push(parser.step()?);
        }
        Some(Self(steps.into()))
    }

    /// Returns the values at the path, up to the limit. Missing parts have none.
    pub fn find<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        self.find_within(root, &mut MAX_VALUES.clone())
    }

    /// Returns all values at the path, without a limit: for paths of the user of a program, on objects of hers.
    pub fn find_all<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        self.find_within(root, &mut usize::MAX.clone())
    }

    fn find_within<'v>(&self, root: &'v Value, room: &mut usize) -> Vec<&'v Value> {
        self.0.iter().fold(vec![root], |found, step| {
            let mut next = Vec::new();
            found.into_iter().for_each(|value| step.follow(value, &mut next, room));
            next
        })
    }
}

/// Keeps values as long as there is room.
fn keep<'v>(values: impl IntoIterator<Item = &'v Value>, out: &mut Vec<&'v Value>, room: &mut usize) {
    for value in values {
        let Some(left) = room.checked_sub(1) else { return };
        *room = left;
        out.push(value);
    }
}

impl Step {
    fn follow<'v>(&self, value: &'v Value, out: &mut Vec<&'v Value>, room: &mut usize) {
        match (self, value) {
            (Self::Field(name), Value::Object(fields)) => keep(fields.get(&**name), out, room),
            (Self::One(at), Value::Array(items)) => {
                let count = items.len() as i64;
                let at = if *at < 0 { at + count } else { *at };
                keep(usize::try_from(at).ok().and_then(|at| items.get(at)), out, room);
            }
            (Self::Slice { from, to, step }, Value::Array(items)) => {
                let count = items.len() as i64;
                let place =
                    |at: i64| usize::try_from((if at < 0 { at + count } else { at }).clamp(0, count)).unwrap_or(0);
                let (from, to) = (from.map_or(0, place), to.map_or(items.len(), place));
                let step = usize::try_from(*step).unwrap_or(1).max(1);
                keep(items.get(from..to.max(from)).unwrap_or_default().iter().step_by(step), out, room);
            }
            (Self::All, Value::Array(items)) => keep(items, out, room),
            (Self::All, Value::Object(fields)) => keep(fields.values(), out, room),
            (Self::Deep, value) => deep(value, out, room),
            (Self::Path(path), value) => out.extend(path.find_within(value, room)),
            (Self::Union(steps), value) => steps.iter().for_each(|step| step.follow(value, out, room)),
            (Self::Filter(filter), Value::Array(items)) => {
                for item in items.iter().take(*room) {
                    if filter.holds(item, room) {
                        keep([item], out, room);
                    }
                }
            }
            _ => {}
        }
    }
}

fn deep<'v>(value: &'v Value, out: &mut Vec<&'v Value>, room: &mut usize) {
    keep([value], out, room);
    match value {
        _ if *room == 0 => {}
        Value::Array(items) => items.iter().take(*room).for_each(|item| deep(item, out, room)),
        Value::Object(fields) => fields.values().take(*room).for_each(|field| deep(field, out, room)),
        _ => {}
    }
}

impl Operand {
    fn value<'v>(&'v self, item: &'v Value, room: &mut usize) -> Option<&'v Value> {
        match self {
            Self::Literal(value) => Some(value),
            Self::Path(path) => path.find_within(item, room).first().copied(),
        }
    }
}

impl Filter {
    fn holds(&self, item: &Value, room: &mut usize) -> bool {
        let Some(left) = self.left.value(item, room) else { return false };
        let Some((operator, right)) = &self.compared else { return true };
        let Some(right) = right.value(item, room) else { return false };
        let order = match (left, right) {
            (Value::Number(left), Value::Number(right)) => left.as_f64().partial_cmp(&right.as_f64()),
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            (left, right) if left == right => Some(std::cmp::Ordering::Equal),
            _ => None,
        };
        match operator {
            Operator::Equal => order.is_some_and(|order| order.is_eq()),
            Operator::NotEqual => !order.is_some_and(|order| order.is_eq()),
            Operator::Less => order.is_some_and(|order| order.is_lt()),
            Operator::LessOrEqual => order.is_some_and(|order| order.is_le()),
            Operator::Greater => order.is_some_and(|order| order.is_gt()),
            Operator::GreaterOrEqual => order.is_some_and(|order| order.is_ge()),
        }
    }
}

struct Parser<'p> {
    rest: &'p str,
    /// Nesting that is left.
    filters: usize,
}

impl<'p> Parser<'p> {
    fn step(&mut self) -> Option<Step> {
        if let Some(rest) = self.rest.strip_prefix("..") {
            self.rest = rest;
            return Some(Step::Deep);
        }
        if let Some(rest) = self.rest.strip_prefix('[') {
            let end = closing(rest)?;
            self.rest = &rest[end + 1..];
            return bracket(rest[..end].trim(), self.filters);
        }
        let rest = self.rest.strip_prefix('.').unwrap_or(self.rest);
        if rest.is_empty() || rest.starts_with('[') {
            self.rest = rest;
            return if rest.is_empty() { None } else { self.step() };
        }
        let name = self.name(rest)?;
        Some(if name == "*" { Step::All } else { Step::Field(name.into()) })
    }

    /// Parses a name up to a character that cannot be part of one; a backslash escapes the next character.
    fn name(&mut self, rest: &'p str) -> Option<String> {
        let mut name = String::new();
        let mut chars = rest.char_indices();
        self.rest = "";
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => name.push(chars.next()?.1),
                '.' | '[' | ']' | '=' | '!' | '<' | '>' | ' ' | ',' | ')' | '(' | '{' | '}' | '|' | '&' => {
                    self.rest = &rest[at..];
                    break;
                }
                other => name.push(other),
            }
        }
        let goes_on = self.rest.is_empty() || self.rest.starts_with(['.', '[']);
        (goes_on && !name.is_empty()).then_some(name)
    }
}

/// Returns the end of a bracket, past quotes and inner brackets.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            (None, _) => {}
        }
    }
    None
}

fn bracket(inner: &str, filters: usize) -> Option<Step> {
    if let Some(filter) = inner.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return Some(Step::Filter(Box::new(filter_of(filter, filters.checked_sub(1)?)?)));
    }
    let parts: Vec<&str> = inner.split(',').map(str::trim).collect();
    if parts.len() > 1 {
        let steps = parts.into_iter().map(|part| bracket(part, filters)).collect::<Option<Vec<_>>>();
        return steps.map(|steps| Step::Union(steps.into()));
    }
    if inner == "*" {
        return Some(Step::All);
    }
    if let Some(path) = quoted(inner) {
        return JsonPathQuery::parse_within(&format!(".{path}"), filters).map(Step::Path);
    }
    if let Ok(at) = inner.parse() {
        return Some(Step::One(at));
    }
    let mut bounds = inner.split(':').map(|bound| match bound.trim() {
        "" => Some(None),
        number => number.parse::<i64>().ok().map(Some),
    });
    let (from, to) = (bounds.next()??, bounds.next()??);
    let step = bounds.next().unwrap_or(Some(None))?.unwrap_or(1);
    bounds.next().is_none().then_some(Step::Slice { from, to, step })
}

fn quoted(text: &str) -> Option<&str> {
    ['\'', '"'].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote))
}

const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

fn filter_of(text: &str, filters: usize) -> Option<Filter> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, _) => {
                if let Some((word, operator)) = OPERATORS.iter().find(|(word, _)| text[at..].starts_with(word)) {
                    let right = operand(&text[at + word.len()..], filters)?;
                    return Some(Filter { left: operand(&text[..at], filters)?, compared: Some((*operator, right)) });
                }
            }
        }
    }
    Some(Filter { left: operand(text, filters)?, compared: None })
}

fn operand(text: &str, filters: usize) -> Option<Operand> {
    let text = text.trim();
    if let Some(text) = quoted(text) {
        return Some(Operand::Literal(text.into()));
    }
    if text.starts_with(['@', '$', '.']) {
        return JsonPathQuery::parse_within(text, filters).map(Operand::Path);
    }
    match text {
        "true" => Some(Operand::Literal(true.into())),
        "false" => Some(Operand::Literal(false.into())),
        number => number.parse::<serde_json::Number>().ok().map(|number| Operand::Literal(number.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_find_the_named_values() {
        let object = json!({
            "spec": {"a.b": 1, "list": [1, 2, 3], "x-y": {"z": "deep"}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "n": 1}, {"type": "Synced", "status": "False", "n": 5}]},
        });
        for (path, expected) in [
            (".spec.list", json!([[1, 2, 3]])),
            (".spec.a\\.b", json!([1])),
            (".spec['a\\.b']", json!([1])),
            (".spec['x-y.z']", json!(["deep"])),
            (".spec['a\\.b', 'x-y.z']", json!([1, "deep"])),
            (".spec.x-y.z", json!(["deep"])),
            (".spec.list[0]", json!([1])),
            (".spec.list[-1]", json!([3])),
            (".spec.list[-1:]", json!([3])),
            (".spec.list[0:2]", json!([1, 2])),
            (".spec.list[::2]", json!([1, 3])),
            (".spec.list[0,2]", json!([1, 3])),
            (".spec.list[*]", json!([1, 2, 3])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type=='Synced')].n", json!([5])),
            (".status.conditions[?(@.n>2)].type", json!(["Synced"])),
            ("..z", json!(["deep"])),
            (".nothing.there", json!([])),
        ] {
            let found = JsonPathQuery::parse(path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(json!(found.find(&object)), expected, "{path}");
        }
        for wrong in [".spec[", ".spec[a]", ".a]b", ".a[?(b)]"] {
            assert_eq!(JsonPathQuery::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn paths_are_bounded() {
        let nested = |depth: usize| format!("{}{}", ".a[?(@".repeat(depth), ")]".repeat(depth));
        assert!(JsonPathQuery::parse(&nested(MAX_FILTERS)).is_some());
        assert_eq!(JsonPathQuery::parse(&nested(MAX_FILTERS + 1)), None);
        assert_eq!(JsonPathQuery::parse(&nested(100_000)), None);
        let object = json!({"l": vec![vec![1; 100]; 1000]});
        for (path, most) in [
            (".l[*,*,*,*,*,*,*,*,*,*,*,*,*,*,*,*,*,*]", MAX_VALUES),
            ("......................l", MAX_VALUES),
            (".l[?(@[?(@..)])]", 1000),
            (".l[*][*]", MAX_VALUES),
        ] {
            let found = JsonPathQuery::parse(path).unwrap_or_else(|| panic!("{path}")).find(&object);
            assert!(found.len() <= most, "{path}: {}", found.len());
        }
    }
}
