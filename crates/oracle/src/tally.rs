//! Differences of a run, grouped and formatted.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::diff::AnswerDifference;
use super::listed::KnownDifferences;
use super::replay::StepOutcome;

/// Answer of Portolan that differs from that of kube-apiserver, with the differences that no listed reason explains.
pub(super) struct OpenDifference<'o> {
    outcome: &'o StepOutcome,
    differences: Vec<&'o AnswerDifference>,
}

impl<'o> OpenDifference<'o> {
    /// `None` if listed reasons explain all differences.
    pub(super) fn of(listed: &KnownDifferences, outcome: &'o StepOutcome) -> Option<Self> {
        let open = |difference: &&AnswerDifference| listed.explanation(outcome, difference).is_none();
        let differences: Vec<&AnswerDifference> = outcome.differences.iter().filter(open).collect();
        (!differences.is_empty()).then_some(Self { outcome, differences })
    }
}

/// Differences of one shape.
pub(super) struct DifferenceGroup<'o> {
    pub(super) shape: String,
    pub(super) outcomes: Vec<&'o OpenDifference<'o>>,
}

impl DifferenceGroup<'_> {
    pub(super) fn example(&self) -> String {
        self.outcomes
            .first()
            .map_or_else(String::new, |first| format!("{}: {}", first.outcome.script, first.outcome.step))
    }
}

/// Groups answers by the shape of their first difference, the most frequent first.
pub(super) fn groups<'o>(open: &'o [OpenDifference<'o>]) -> Vec<DifferenceGroup<'o>> {
    grouped(open, |_, first| shape(first))
}

/// Groups like [`groups`], and also by the messages of the two servers.
fn causes<'o>(open: &'o [OpenDifference<'o>]) -> Vec<DifferenceGroup<'o>> {
    grouped(open, |outcome, first| {
        let [kube, portolan] = words(outcome, first).map(|text| general(&text));
        format!("`{}`\n\n- kube: `{kube}`\n- portolan: `{portolan}`", shape(first))
    })
}

fn grouped<'o>(
    open: &'o [OpenDifference<'o>],
    key: impl Fn(&StepOutcome, &AnswerDifference) -> String,
) -> Vec<DifferenceGroup<'o>> {
    let mut by_shape: BTreeMap<String, Vec<&OpenDifference<'_>>> = BTreeMap::new();
    for one in open {
        if let Some(first) = one.differences.first() {
            by_shape.entry(key(one.outcome, first)).or_default().push(one);
        }
    }
    let mut groups: Vec<DifferenceGroup<'_>> =
        by_shape.into_iter().map(|(shape, outcomes)| DifferenceGroup { shape, outcomes }).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.outcomes.len()));
    groups
}

/// Formats every difference as a line: its position and both values.
pub(super) fn places(open: &[OpenDifference<'_>]) -> String {
    let mut text = String::new();
    for OpenDifference { outcome, differences } in open {
        for difference in differences {
            let [kube, portolan] = words(outcome, difference);
            let line = json!({
                "script": outcome.script, "step": outcome.step, "request": outcome.request,
                "at": difference.at, "shape": shape(difference), "kube": kube, "portolan": portolan,
            });
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// Formats every explained difference as a line: the reason, the position and both values.
pub(super) fn explained(listed: &KnownDifferences, outcomes: &[StepOutcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        for difference in &outcome.differences {
            let Some(reason) = listed.explanation(outcome, difference) else { continue };
            let (StepOutcome { script, step, .. }, [kube, portolan]) = (outcome, words(outcome, difference));
            let shape = shape(difference);
            let line = json!({
                "reason": reason, "script": script, "step": step, "at": difference.at, "shape": shape,
                "kube": kube, "portolan": portolan,
            });
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// Formats every request with both answers as a line.
pub(super) fn answers(outcomes: &[StepOutcome]) -> String {
    let line = |outcome: &StepOutcome| {
        let StepOutcome { script, step, request, kube, portolan, .. } = outcome;
        json!({"script": script, "step": step, "request": request, "kube": kube, "portolan": portolan})
    };
    outcomes.iter().map(|outcome| format!("{}\n", line(outcome))).collect()
}

/// Returns the values at the first difference, or the messages if the status differs.
fn words(outcome: &StepOutcome, first: &AnswerDifference) -> [String; 2] {
    if first.at == "/status" {
        return [answer_text(&outcome.kube), answer_text(&outcome.portolan)];
    }
    lines(first)
}

/// Removes names from a text: quoted parts, and words with inner dots, digits or capitals.
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

/// Returns the shape of a difference: `/status 422 → 201`, `/body/spec/containers/*/image missing`.
pub(super) fn shape(difference: &AnswerDifference) -> String {
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

/// Longest part of a value that a report shows, in characters.
const SHOWN: usize = 240;
/// Characters that it shows before the first difference.
const BEFORE: usize = 60;

/// Formats the value at a position.
fn whole(value: Option<&Value>) -> String {
    value.map_or_else(|| "(nothing)".to_owned(), Value::to_string)
}

/// Returns the beginning of a value as one line.
pub(super) fn short(value: Option<&Value>) -> String {
    part(&whole(value), 0)
}

/// Formats both sides of a difference. Of long texts it shows the part that differs.
fn lines(difference: &AnswerDifference) -> [String; 2] {
    let texts = [&difference.kube, &difference.portolan].map(|value| whole(value.as_ref()));
    let [kube, portolan] = &texts;
    let equal = kube.chars().zip(portolan.chars()).take_while(|(left, right)| left == right).count();
    let fits = texts.iter().all(|text| text.chars().count() <= SHOWN);
    let start = if fits { 0 } else { equal.saturating_sub(BEFORE) };
    texts.map(|text| part(&text, start))
}

/// Returns the characters of a text from `start` on, with marks for omitted parts.
fn part(text: &str, start: usize) -> String {
    let shown: String = text.chars().skip(start).take(SHOWN).collect();
    let is_cut = text.chars().nth(start + SHOWN).is_some();
    format!("{}{shown}{}", if start > 0 { "…" } else { "" }, if is_cut { "…" } else { "" })
}

/// Formats one request with all its differences.
pub(super) fn show(outcome: &StepOutcome) -> String {
    let mut text = format!("{}: {}\n  {}\n", outcome.script, outcome.step, outcome.request);
    for difference in &outcome.differences {
        let [kube, portolan] = lines(difference);
        let _ = writeln!(text, "  {}\n    kube     {kube}\n    portolan {portolan}", difference.at);
    }
    if outcome.differences.first().is_some_and(|first| first.at == "/status") {
        for (name, answer) in [("kube", &outcome.kube), ("portolan", &outcome.portolan)] {
            let _ = writeln!(text, "  {name} said {}", answer_text(answer));
        }
    }
    text
}

/// Returns the message of a Status; otherwise the body.
pub(super) fn answer_text(answer: &Value) -> String {
    let message = answer.pointer("/body/message").or_else(|| answer.get("error"));
    short(message.or_else(|| answer.get("body")))
}

/// Formats the groups as Markdown: each with its count and examples.
pub(super) fn markdown(requests: usize, open: &[OpenDifference<'_>]) -> String {
    let mut text = format!("# Differences by cause\n\n{requests} requests, {} different.\n", open.len());
    for group in causes(open) {
        let _ = writeln!(text, "\n## {} × {}", group.outcomes.len(), group.shape);
        for OpenDifference { outcome, differences } in group.outcomes.iter().take(3) {
            let [kube, portolan] = differences.first().map_or_else(Default::default, |first| words(outcome, first));
            let _ = writeln!(text, "- {}: {}\n  - {kube}\n  - {portolan}", outcome.script, outcome.step);
        }
        let mut scripts: Vec<&str> = group.outcomes.iter().map(|open| open.outcome.script.as_str()).collect();
        scripts.dedup();
        let _ = writeln!(text, "- in {} scripts: {}", scripts.len(), scripts.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_shown_where_they_differ() {
        let same = "x".repeat(1_000);
        let text = |end: &str| Some(Value::from(format!("{same}{end}")));
        let [kube, portolan] =
            lines(&AnswerDifference { at: "/body".to_owned(), kube: text("one"), portolan: text("two") });
        assert_eq!(kube, format!("…{}one\"", "x".repeat(BEFORE)));
        assert_eq!(portolan, format!("…{}two\"", "x".repeat(BEFORE)));
        let [kube, portolan] = lines(&AnswerDifference { at: "/body".to_owned(), kube: text(""), portolan: None });
        assert_eq!(kube, format!("\"{}…", "x".repeat(SHOWN - 1)));
        assert_eq!(portolan, "(nothing)");
    }

    #[test]
    fn a_shape_omits_names_and_values() {
        for (at, kube, portolan, expected) in [
            ("/status", Some(422), Some(201), "/status 422 → 201"),
            ("/body/spec/containers/0/image", Some(1), None, "/body/spec/containers/*/image missing"),
            ("/body/items/2", None, Some(1), "/body/items/* too much"),
        ] {
            let difference = AnswerDifference {
                at: at.to_owned(),
                kube: kube.map(|v| json!(v)),
                portolan: portolan.map(|v| json!(v)),
            };
            assert_eq!(shape(&difference), expected);
        }
    }

    #[test]
    fn causes_leave_out_names() {
        let text = r#""Deployment.apps \"web\" is invalid: spec.replicas: Invalid value: -1: must be at least""#;
        assert_eq!(general(text), "… … is invalid: … Invalid value: … must be at least\"");
    }
}
