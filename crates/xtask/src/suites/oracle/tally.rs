//! The differences of a run, grouped and shown.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::diff::Difference;
use super::replay::Outcome;

/// Differences of one shape.
pub(super) struct Group<'o> {
    pub(super) shape: String,
    pub(super) outcomes: Vec<&'o Outcome>,
}

/// Different answers by the shape of their first difference, the most frequent first.
pub(super) fn groups<'o>(outcomes: &[&'o Outcome]) -> Vec<Group<'o>> {
    let mut by_shape: BTreeMap<String, Vec<&Outcome>> = BTreeMap::new();
    for &outcome in outcomes {
        if let Some(first) = outcome.differences.first() {
            by_shape.entry(shape(first)).or_default().push(outcome);
        }
    }
    let mut groups: Vec<Group<'_>> = by_shape.into_iter().map(|(shape, outcomes)| Group { shape, outcomes }).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.outcomes.len()));
    groups
}

/// A difference without what is particular: `/status 422 → 201`, `/body/spec/containers/*/image missing`.
pub(super) fn shape(difference: &Difference) -> String {
    if difference.at == "/status" {
        return format!("/status {} → {}", short(difference.kube.as_ref()), short(difference.portolan.as_ref()));
    }
    let general = |segment: &str| segment.parse::<usize>().is_ok() && !segment.is_empty();
    let segments: Vec<&str> =
        difference.at.split('/').map(|segment| if general(segment) { "*" } else { segment }).collect();
    let how = match (&difference.kube, &difference.portolan) {
        (Some(_), None) => "missing",
        (None, Some(_)) => "too much",
        (Some(_), Some(_)) | (None, None) => "differs",
    };
    format!("{} {how}", segments.join("/"))
}

/// One line of a value.
pub(super) fn short(value: Option<&Value>) -> String {
    let text = value.map_or_else(|| "(nothing)".to_owned(), Value::to_string);
    let mut cut: String = text.chars().take(240).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

/// One request with all its differences.
pub(super) fn show(outcome: &Outcome) -> String {
    let mut text = format!("{}: {}\n  {}\n", outcome.script, outcome.step, outcome.request);
    for difference in &outcome.differences {
        let (kube, portolan) = (short(difference.kube.as_ref()), short(difference.portolan.as_ref()));
        let _ = writeln!(text, "  {}\n    kube     {kube}\n    portolan {portolan}", difference.at);
    }
    if outcome.differences.first().is_some_and(|first| first.at == "/status") {
        for (name, answer) in [("kube", &outcome.kube), ("portolan", &outcome.portolan)] {
            let _ = writeln!(text, "  {name} said {}", said(answer));
        }
    }
    text
}

/// The message of a Status, else the body.
pub(super) fn said(answer: &Value) -> String {
    let message = answer.pointer("/body/message").or_else(|| answer.get("error"));
    short(message.or_else(|| answer.get("body")))
}

/// The groups as Markdown: each with its count and examples.
pub(super) fn markdown(requests: usize, outcomes: &[&Outcome]) -> String {
    let different = outcomes.len();
    let mut text = format!("# Differences by their first place\n\n{requests} requests, {different} different.\n");
    for group in groups(outcomes) {
        let _ = writeln!(text, "\n## {} × `{}`\n", group.outcomes.len(), group.shape);
        for outcome in group.outcomes.iter().take(6) {
            let _ = writeln!(text, "- {}: {}", outcome.script, outcome.step);
            if let Some(first) = outcome.differences.first() {
                let (kube, portolan) = if first.at == "/status" {
                    (said(&outcome.kube), said(&outcome.portolan))
                } else {
                    (short(first.kube.as_ref()), short(first.portolan.as_ref()))
                };
                let _ = writeln!(text, "  - kube: `{kube}`\n  - portolan: `{portolan}`");
            }
        }
        let mut scripts: Vec<&str> = group.outcomes.iter().map(|outcome| outcome.script.as_str()).collect();
        scripts.dedup();
        let _ = writeln!(text, "- in {} scripts: {}", scripts.len(), scripts.join(", "));
    }
    text
}
