//! Namespaces, configuration, accounts, roles, quotas.

use serde_json::Value;

use super::{
    column::{AGE, CLUSTERS, Column, NAME, Row, number, text},
    format,
};

pub(super) const NAMESPACE: &[Column] = &[NAME, text("Status", "Phase.", |row| row.text("/status/phase").into()), AGE];

pub(super) const CONFIG_MAP: &[Column] = &[
    NAME,
    text("Data", "Number of keys.", |row| (row.entries("/data") + row.entries("/binaryData")).into()),
    AGE,
    CLUSTERS,
];

pub(super) const SECRET: &[Column] = &[
    NAME,
    text("Type", "Type of the secret.", |row| row.text("/type").into()),
    text("Data", "Number of keys.", |row| row.entries("/data").into()),
    AGE,
    CLUSTERS,
];

pub(super) const SERVICE_ACCOUNT: &[Column] = &[NAME, AGE, CLUSTERS];

pub(super) const COMPONENT_STATUS: &[Column] = &[
    NAME,
    text("Status", "Health of the component.", |row| {
        match healthy(row).map(|condition| condition["status"] == "True") {
            Some(true) => "Healthy".into(),
            Some(false) => "Unhealthy".into(),
            None => "Unknown".into(),
        }
    }),
    text("Message", "Message.", |row| healthy(row).map(|c| c["message"].clone()).unwrap_or_else(|| "".into())),
    text("Error", "Error.", |row| healthy(row).and_then(|c| c["error"].as_str()).unwrap_or_default().into()),
];

fn healthy<'a>(row: &Row<'a>) -> Option<&'a Value> {
    row.list("/conditions").iter().find(|condition| condition["type"] == "Healthy")
}

pub(super) const RESOURCE_QUOTA: &[Column] = &[
    NAME,
    text("Request", "Used requests, of their limits.", |row| quota(row, false).into()),
    text("Limit", "Used limits, of their maximum.", |row| quota(row, true).into()),
    AGE,
];

fn quota(row: &Row<'_>, limits: bool) -> String {
    let hard = row.at("/status/hard").and_then(Value::as_object).into_iter().flatten();
    let used = |name: &str| row.at("/status/used").and_then(|used| used.get(name));
    let lines = hard
        .filter(|(name, _)| name.starts_with("limits.") == limits)
        .map(|(name, hard)| format!("{name}: {}/{}", format::amount(used(name), "0"), format::amount(Some(hard), "0")));
    lines.collect::<Vec<_>>().join(", ")
}

pub(super) const BINDING: &[Column] = &[
    NAME,
    text("Role", "Role that is granted.", |row| {
        format!("{}/{}", row.text("/roleRef/kind"), row.text("/roleRef/name")).into()
    }),
    AGE,
    text("Users", "Users that it is granted to.", |row| subjects(row, "User").into()).wide(),
    text("Groups", "Groups that it is granted to.", |row| subjects(row, "Group").into()).wide(),
    text("ServiceAccounts", "Service accounts that it is granted to.", |row| subjects(row, "ServiceAccount").into())
        .wide(),
];

fn subjects(row: &Row<'_>, kind: &str) -> String {
    let text = |subject: &Value, key: &str| subject[key].as_str().unwrap_or_default().to_owned();
    let of_kind = row.list("/subjects").iter().filter(|subject| subject["kind"] == kind);
    let name = |subject: &Value| match kind {
        "ServiceAccount" => format!("{}/{}", text(subject, "namespace"), text(subject, "name")),
        _ => text(subject, "name"),
    };
    of_kind.map(name).collect::<Vec<_>>().join(", ")
}

pub(super) const DISRUPTION_BUDGET: &[Column] = &[
    NAME,
    text("Min Available", "Pods that must stay.", |row| format::amount(row.at("/spec/minAvailable"), "N/A").into()),
    text("Max Unavailable", "Pods that may go.", |row| format::amount(row.at("/spec/maxUnavailable"), "N/A").into()),
    number("Allowed Disruptions", "Pods that may go now.", |row| row.int("/status/disruptionsAllowed").into()),
    AGE,
    CLUSTERS,
];

pub(super) const WEBHOOKS: &[Column] =
    &[NAME, number("Webhooks", "Number of webhooks.", |row| row.list("/webhooks").len().into()), AGE];

pub(super) const API_SERVICE: &[Column] = &[
    NAME,
    text("Service", "Service that answers for the API, or Local.", |row| match row.at("/spec/service") {
        Some(_) => format!("{}/{}", row.text("/spec/service/namespace"), row.text("/spec/service/name")).into(),
        None => "Local".into(),
    }),
    text("Available", "True if the API is available.", |row| available(row).into()),
    AGE,
];

fn available(row: &Row<'_>) -> String {
    let condition = row.list("/status/conditions").iter().find(|condition| condition["type"] == "Available");
    let text = |key: &str| condition.and_then(|condition| condition[key].as_str()).unwrap_or_default();
    match (text("status"), text("reason")) {
        ("", _) if condition.is_none() => "Unknown".into(),
        (status, reason) if status == "True" || reason.is_empty() => status.into(),
        (status, reason) => format!("{status} ({reason})"),
    }
}
