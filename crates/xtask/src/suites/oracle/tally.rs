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
    grouped(outcomes, |_, first| shape(first))
}

/// As [`groups`], told apart also by what the two servers said.
fn causes<'o>(outcomes: &[&'o Outcome]) -> Vec<Group<'o>> {
    grouped(outcomes, |outcome, first| {
        let [kube, portolan] = words(outcome, first).map(|text| general(&text));
        format!("`{}`\n\n- kube: `{kube}`\n- portolan: `{portolan}`", shape(first))
    })
}

fn grouped<'o>(outcomes: &[&'o Outcome], key: impl Fn(&Outcome, &Difference) -> String) -> Vec<Group<'o>> {
    let mut by_shape: BTreeMap<String, Vec<&Outcome>> = BTreeMap::new();
    for &outcome in outcomes {
        if let Some(first) = outcome.differences.first() {
            by_shape.entry(key(outcome, first)).or_default().push(outcome);
        }
    }
    let mut groups: Vec<Group<'_>> = by_shape.into_iter().map(|(shape, outcomes)| Group { shape, outcomes }).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.outcomes.len()));
    groups
}

/// What the servers said where they first differ: values, and messages where the status already differs.
fn words(outcome: &Outcome, first: &Difference) -> [String; 2] {
    if first.at == "/status" {
        return [said(&outcome.kube), said(&outcome.portolan)];
    }
    [short(first.kube.as_ref()), short(first.portolan.as_ref())]
}

/// A text without names: what is quoted, and words with dots, digits or capitals within.
fn general(text: &str) -> String {
    let quoted: Vec<&str> = text.split("\\\"").step_by(2).collect();
    let particular = |word: &str| {
        let inner = word.trim_matches(|edge: char| !edge.is_alphanumeric());
        inner.contains(|c: char| c == '.' || c == '/' || c == '[' || c.is_ascii_digit())
            || inner.chars().skip(1).any(char::is_uppercase) && inner.contains(char::is_lowercase)
    };
    let words = quoted.join("…");
    let words: Vec<&str> = words.split(' ').map(|word| if particular(word) { "…" } else { word }).collect();
    words.join(" ").chars().take(160).collect()
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

/// The causes as Markdown: each with its count and examples.
pub(super) fn markdown(requests: usize, outcomes: &[&Outcome]) -> String {
    let mut text = format!("# Differences by cause\n\n{requests} requests, {} different.\n", outcomes.len());
    for group in causes(outcomes) {
        let _ = writeln!(text, "\n## {} × {}", group.outcomes.len(), group.shape);
        for outcome in group.outcomes.iter().take(3) {
            let [kube, portolan] =
                outcome.differences.first().map_or_else(Default::default, |first| words(outcome, first));
            let _ = writeln!(text, "- {}: {}\n  - {kube}\n  - {portolan}", outcome.script, outcome.step);
        }
        let mut scripts: Vec<&str> = group.outcomes.iter().map(|outcome| outcome.script.as_str()).collect();
        scripts.dedup();
        let _ = writeln!(text, "- in {} scripts: {}", scripts.len(), scripts.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_shape_leaves_out_what_is_particular() {
        for (at, kube, portolan, expected) in [
            ("/status", Some(422), Some(201), "/status 422 → 201"),
            ("/body/spec/containers/0/image", Some(1), None, "/body/spec/containers/*/image missing"),
            ("/body/items/2", None, Some(1), "/body/items/* too much"),
        ] {
            let difference =
                Difference { at: at.to_owned(), kube: kube.map(|v| json!(v)), portolan: portolan.map(|v| json!(v)) };
            assert_eq!(shape(&difference), expected);
        }
    }

    #[test]
    fn causes_leave_out_names() {
        let text = r#""Deployment.apps \"web\" is invalid: spec.replicas: Invalid value: -1: must be at least""#;
        assert_eq!(general(text), "… … is invalid: … Invalid value: … must be at least\"");
    }
}
