//! Tables of the kinds that govern the server: admission policies, flow control, certificates, and devices.

use serde_json::Value;

use super::{
    age,
    column::{AGE, Column, NAME, NONE, Row, UNSET, number, text},
};

const PARAM_KIND: Column = text("ParamKind", "Kind of its parameters.", |row| match row.at("/spec/paramKind") {
    Some(_) => format!("{}/{}", row.text("/spec/paramKind/apiVersion"), row.text("/spec/paramKind/kind")).into(),
    None => UNSET.into(),
});

pub(super) const VALIDATING_POLICY: &[Column] = &[
    NAME,
    number("Validations", "Number of its rules.", |row| row.list("/spec/validations").len().into()),
    PARAM_KIND,
    AGE,
];

pub(super) const MUTATING_POLICY: &[Column] = &[
    NAME,
    number("Mutations", "Number of its changes.", |row| row.list("/spec/mutations").len().into()),
    PARAM_KIND,
    AGE,
];

pub(super) const POLICY_BINDING: &[Column] = &[
    NAME,
    text("PolicyName", "Policy that is bound.", |row| row.text("/spec/policyName").into()),
    text("ParamRef", "Parameters of the policy.", |row| parameters(row).into()),
    AGE,
];

fn parameters(row: &Row<'_>) -> String {
    let (name, namespace) = (row.text("/spec/paramRef/name"), row.text("/spec/paramRef/namespace"));
    match (name, row.at("/spec/paramRef/selector")) {
        ("", Some(selector)) => selector_of_go(selector),
        ("", None) => UNSET.into(),
        (name, _) => format!("{}/{name}", if namespace.is_empty() { "*" } else { namespace }),
    }
}

/// Returns a label selector as Go's generated code prints it.
fn selector_of_go(selector: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let labels: String = labels.map(|(key, value)| format!("{key}: {},", text(value))).collect();
    let expressions = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    let expression = |one: &Value| {
        let values = one["values"].as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(" ");
        let (key, operator) = (text(&one["key"]), text(&one["operator"]));
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
    };
    let expressions: String = expressions.map(expression).collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

pub(super) const SIGNING_REQUEST: &[Column] = &[
    NAME,
    AGE,
    text("SignerName", "Requested signer.", |row| row.text_or("/spec/signerName", NONE).into()),
    text("Requestor", "Requester.", |row| row.text("/spec/username").into()),
    text("RequestedDuration", "Requested duration.", |row| match row.at("/spec/expirationSeconds") {
        Some(_) => age::human(row.int("/spec/expirationSeconds")).into(),
        None => NONE.into(),
    }),
    text("Condition", "State of the request.", |row| signing_status(row).into()),
];

fn signing_status(row: &Row<'_>) -> String {
    let has = |kind: &str| row.list("/status/conditions").iter().any(|condition| condition["type"] == kind);
    let decided = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    };
    let failed = if has("Failed") { ",Failed" } else { "" };
    let issued = if row.text("/status/certificate").is_empty() { "" } else { ",Issued" };
    format!("{decided}{failed}{issued}")
}

pub(super) const FLOW_SCHEMA: &[Column] = &[
    NAME,
    text("PriorityLevel", "Level that its requests have.", |row| {
        row.text("/spec/priorityLevelConfiguration/name").into()
    }),
    text("MatchingPrecedence", "Lower values are matched first.", |row| row.int("/spec/matchingPrecedence").into()),
    text("DistinguisherMethod", "Attribute that distinguishes flows.", |row| {
        match row.at("/spec/distinguisherMethod") {
            Some(_) => row.text("/spec/distinguisherMethod/type").into(),
            None => NONE.into(),
        }
    }),
    AGE,
    text("MissingPL", "True if its priority level is missing.", |row| row.condition("Dangling").unwrap_or("?").into()),
];

pub(super) const PRIORITY_LEVEL: &[Column] = &[
    NAME,
    text("Type", "Limited or Exempt.", |row| row.text("/spec/type").into()),
    text("NominalConcurrencyShares", "Its share of concurrent requests.", |row| {
        number_below(row, "/spec/limited", "/spec/limited/nominalConcurrencyShares")
    }),
    text("Queues", "Number of its queues.", |row| {
        number_below(row, QUEUING, "/spec/limited/limitResponse/queuing/queues")
    }),
    text("HandSize", "Queues among which a flow chooses.", |row| {
        number_below(row, QUEUING, "/spec/limited/limitResponse/queuing/handSize")
    }),
    text("QueueLengthLimit", "Most requests that wait in a queue.", |row| {
        number_below(row, QUEUING, "/spec/limited/limitResponse/queuing/queueLengthLimit")
    }),
    AGE,
];
const QUEUING: &str = "/spec/limited/limitResponse/queuing";

/// Returns a number that exists only together with another field.
fn number_below(row: &Row<'_>, above: &str, path: &str) -> Value {
    match row.at(above) {
        Some(_) => row.int(path).into(),
        None => NONE.into(),
    }
}

/// Columns of kinds that show only their age.
pub(super) const ONLY_AGE: &[Column] = &[NAME, AGE];

pub(super) const RESOURCE_CLAIM: &[Column] =
    &[NAME, text("State", "State of the allocation.", |row| claim_state(row).into()), AGE];

fn claim_state(row: &Row<'_>) -> String {
    let mut states = Vec::new();
    if row.is_deleting() {
        states.push("deleted");
    }
    match row.at("/status/allocation") {
        None if !row.is_deleting() => states.push("pending"),
        None => {}
        Some(_) => states.push("allocated"),
    }
    if row.at("/status/allocation").is_some() && !row.list("/status/reservedFor").is_empty() {
        states.push("reserved");
    }
    states.join(",")
}

pub(super) const RESOURCE_SLICE: &[Column] = &[
    NAME,
    text("Node", "Node that has the devices.", |row| row.text("/spec/nodeName").into()),
    text("Driver", "Driver of the devices.", |row| row.text("/spec/driver").into()),
    text("Pool", "Pool of the devices.", |row| row.text("/spec/pool/name").into()),
    AGE,
];
