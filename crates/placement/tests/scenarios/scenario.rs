//! Scenario: objects, and a sequence of events.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::world::World;

/// Most steps until nothing changes any more.
const MAX_STEPS: usize = 20;

/// Scenario as written in a file.
pub(crate) struct Scenario {
    name: String,
    title: String,
    world: World,
    /// Events, in order.
    events: Vec<Value>,
}

impl Scenario {
    /// Reads the documents of a file. The first line is a comment with the title.
    pub(crate) fn parse(name: &str, text: &str) -> Self {
        let title = text.lines().next().unwrap_or_default().trim_start_matches('#').trim().to_owned();
        assert!(!title.is_empty(), "{name}: the first line is a comment with the title");
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (mut world, mut events) = (World::default(), Vec::new());
        for document in documents.into_iter().flat_map(|document| match document {
            Value::Array(all) => all,
            one => vec![one],
        }) {
            match document["kind"].as_str() {
                Some("Then") => events.push(document),
                Some("Given") => world.given(&document),
                Some(_) => world.put(document),
                None => panic!("{name}: a document without a kind: {document}"),
            }
        }
        Self { name: name.to_owned(), title, world, events }
    }

    /// Plays the scenario to its end, and returns its log.
    pub(crate) fn play(mut self) -> String {
        let mut text = format!("{}\n", self.title);
        self.settle("at first", &mut text);
        for event in std::mem::take(&mut self.events) {
            self.world.apply(&event);
            let what = event["that"].as_str().unwrap_or_else(|| panic!("{}: Then needs `that`", self.name)).to_owned();
            self.settle(&what, &mut text);
        }
        text
    }

    /// Takes steps until nothing changes.
    fn settle(&mut self, what: &str, text: &mut String) {
        writeln!(text, "\n{what}:").expect("a string takes it");
        let mut waiting = None;
        for at in 0.. {
            assert!(at < MAX_STEPS, "{}: it does not settle after {what}:\n{text}", self.name);
            let taken = self.world.step(&self.name);
            waiting = taken.waiting;
            match taken.line {
                Some(line) => writeln!(text, "  {line}").expect("a string takes it"),
                None => break,
            }
        }
        if let Some(waiting) = waiting {
            writeln!(text, "  {waiting}").expect("a string takes it");
        }
        let explained = self.world.explain();
        explained.lines().for_each(|line| writeln!(text, "  | {line}").expect("a string takes it"));
    }
}

/// Merges a change into a value, as a JSON merge patch (RFC 7396).
pub(crate) fn merge(into: &mut Value, change: &Value) {
    let Value::Object(change) = change else {
        *into = change.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let fields = into.as_object_mut().expect("it is an object");
    for (key, value) in change {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), value);
        }
    }
}
