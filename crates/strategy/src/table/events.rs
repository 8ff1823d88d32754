//! Events, in both of their forms.

use serde_json::Value;

use super::column::{Column, NAME, Row, text};

pub(super) const EVENT: &[Column] = &[
    text("Last Seen", "Time since it happened last.", |row| last_seen(row).into()),
    text("Type", "Normal or Warning.", |row| row.text("/type").into()),
    text("Reason", "Reason of the event.", |row| row.text("/reason").into()),
    text("Object", "Object that the event is about.", |row| {
        let kind = row.first_text(&["/involvedObject/kind", "/regarding/kind"]).to_lowercase();
        match row.first_text(&["/involvedObject/name", "/regarding/name"]) {
            "" => kind.into(),
            name => format!("{kind}/{name}").into(),
        }
    }),
    text("Subobject", "The part that it happened to.", |row| {
        row.first_text(&["/involvedObject/fieldPath", "/regarding/fieldPath"]).into()
    })
    .wide(),
    text("Source", "Component that reports the event.", |row| source(row).into()).wide(),
    text("Message", "Message of the event.", |row| row.first_text(&["/message", "/note"]).trim().into()),
    text("First Seen", "Time since it happened first.", |row| first_seen(row).into()).wide(),
    text("Count", "Number of occurrences.", |row| count(row).into()).wide(),
    NAME.wide(),
];

fn first_seen(row: &Row<'_>) -> String {
    let paths = ["/firstTimestamp", "/deprecatedFirstTimestamp", "/eventTime"];
    row.age(paths.into_iter().find(|path| !row.text(path).is_empty()).unwrap_or(paths[2]))
}

fn last_seen(row: &Row<'_>) -> String {
    let paths = ["/lastTimestamp", "/deprecatedLastTimestamp"];
    match paths.into_iter().find(|path| !row.text(path).is_empty()) {
        _ if row.at("/series").is_some() => row.age("/series/lastObservedTime"),
        Some(path) => row.age(path),
        None => first_seen(row),
    }
}

fn count(row: &Row<'_>) -> i64 {
    let at = |path: &str| row.at(path).and_then(Value::as_i64).filter(|count| *count != 0);
    match row.at("/series") {
        Some(_) => row.int("/series/count"),
        None => at("/count").or_else(|| at("/deprecatedCount")).unwrap_or(1),
    }
}

fn source(row: &Row<'_>) -> String {
    let component = row.first_text(&[
        "/source/component",
        "/deprecatedSource/component",
        "/reportingComponent",
        "/reportingController",
    ]);
    match row.first_text(&["/source/host", "/deprecatedSource/host", "/reportingInstance"]) {
        "" => component.into(),
        instance => format!("{component}, {instance}"),
    }
}
