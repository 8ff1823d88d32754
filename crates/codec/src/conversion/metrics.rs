//! Metrics as autoscaling/v1 writes them into annotations (`pkg/apis/autoscaling/v1/conversion.go`): flat, with fields
//! in the order of the Go types.

use serde_json::{Map, Value, json};

use portolan_gocompat::json::escaped;

/// Metrics that are wanted, or those that are measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Wanted,
    Measured,
}

impl Side {
    /// Returns the prefix of a field in autoscaling/v1, which in autoscaling/v2 is the field that holds the amounts.
    fn prefix(self) -> &'static str {
        match self {
            Self::Wanted => "target",
            Self::Measured => "current",
        }
    }

    fn named(self, amount: &str) -> String {
        format!("{}{amount}", self.prefix())
    }
}

const SOURCES: [&str; 5] = ["object", "pods", "resource", "containerResource", "external"];

/// Returns a JSON object with its fields in this order, without absent ones.
fn fields(all: &[(String, Option<String>)]) -> String {
    let there = all.iter().filter_map(|(name, value)| Some(format!("{name:?}:{}", value.as_ref()?)));
    format!("{{{}}}", there.collect::<Vec<_>>().join(","))
}

fn text(value: Option<&Value>) -> Option<String> {
    value.filter(|value| !value.is_null()).map(|value| escaped(&value.to_string()))
}

fn text_or_zero(value: Option<&Value>) -> Option<String> {
    text(value).or_else(|| Some("\"0\"".to_owned()))
}

/// Returns autoscaling/v1's text of a list of metrics.
pub(super) fn written(metrics: &[Value], side: Side) -> String {
    format!("[{}]", metrics.iter().map(|metric| one(metric, side)).collect::<Vec<_>>().join(","))
}

fn one(metric: &Value, side: Side) -> String {
    let sources = SOURCES.map(|name| (name.to_owned(), metric.get(name).map(|at| source(name, at, side))));
    let kind = ("type".to_owned(), text(metric.get("type")).or_else(|| Some("\"\"".to_owned())));
    fields(&std::iter::once(kind).chain(sources).collect::<Vec<_>>())
}

fn source(name: &str, at: &Value, side: Side) -> String {
    let amount = |field: &str| at.get(side.prefix()).and_then(|amounts| amounts.get(field));
    // The measured value is always present, if only as zero.
    let measured = |field: &str| match side {
        Side::Wanted => text(amount(field)),
        Side::Measured => text_or_zero(amount(field)),
    };
    let metric = text(at.pointer("/metric/name")).or_else(|| Some("\"\"".to_owned()));
    let selector = at.pointer("/metric/selector").map(selector);
    let own = |name: &str| (name.to_owned(), text(at.get(name)));
    let utilization = (side.named("AverageUtilization"), text(amount("averageUtilization")));
    let all = match name {
        "object" => vec![
            ("target".to_owned(), Some(reference(at.get("describedObject").unwrap_or(&Value::Null)))),
            ("metricName".to_owned(), metric),
            (side.named("Value"), text_or_zero(amount("value"))),
            ("selector".to_owned(), selector),
            ("averageValue".to_owned(), text(amount("averageValue"))),
        ],
        "pods" => vec![
            ("metricName".to_owned(), metric),
            (side.named("AverageValue"), text_or_zero(amount("averageValue"))),
            ("selector".to_owned(), selector),
        ],
        "external" => vec![
            ("metricName".to_owned(), metric),
            ("metricSelector".to_owned(), selector),
            (side.named("Value"), measured("value")),
            (side.named("AverageValue"), text(amount("averageValue"))),
        ],
        "resource" => vec![own("name"), utilization, (side.named("AverageValue"), measured("averageValue"))],
        _ => vec![own("name"), utilization, (side.named("AverageValue"), measured("averageValue")), own("container")],
    };
    fields(&all)
}

fn reference(at: &Value) -> String {
    let required = |name: &str| (name.to_owned(), text(at.get(name)).or_else(|| Some("\"\"".to_owned())));
    fields(&[required("kind"), required("name"), ("apiVersion".to_owned(), text(at.get("apiVersion")))])
}

fn selector(at: &Value) -> String {
    fields(&["matchLabels", "matchExpressions"].map(|name| (name.to_owned(), text(at.get(name)))))
}

/// Returns a list of conditions in the order of the Go type.
pub(super) fn conditions(all: &[Value]) -> String {
    let names = ["type", "status", "lastTransitionTime", "reason", "message"];
    let one = |condition: &Value| {
        fields(&names.map(|name| {
            let value = text(condition.get(name));
            let always = name == "lastTransitionTime";
            (name.to_owned(), value.or_else(|| always.then(|| "null".to_owned())))
        }))
    };
    format!("[{}]", all.iter().map(one).collect::<Vec<_>>().join(","))
}

/// Converts the metrics that autoscaling/v1 wrote to autoscaling/v2. Other values stay, and fail validation.
pub(super) fn read(metrics: Vec<Value>, side: Side) -> Vec<Value> {
    let is_read = |metric: &Value| metric.is_object() || metric.is_null();
    metrics.into_iter().map(|metric| if is_read(&metric) { read_one(&metric, side) } else { metric }).collect()
}

fn read_one(metric: &Value, side: Side) -> Value {
    let mut read = Map::new();
    read.extend(metric.get("type").map(|kind| ("type".to_owned(), kind.clone())));
    for name in SOURCES {
        if let Some(at) = metric.get(name).filter(|at| !at.is_null()) {
            let source = if at.is_object() { read_source(name, at, side) } else { at.clone() };
            read.insert(name.to_owned(), source);
        }
    }
    read.into()
}

fn read_source(name: &str, at: &Value, side: Side) -> Value {
    let given = |field: &str| at.get(field).filter(|value| !value.is_null()).cloned();
    let amount = |field: &str| given(&side.named(field));
    let zero = || Some(json!("0"));
    let wanted = side == Side::Wanted;
    let (value, average, utilization) = match name {
        "object" => {
            let average = given("averageValue");
            let is_zero = |value: &Value| value.as_str().is_none_or(|text| text.trim_matches('0').is_empty());
            let value = amount("Value").or_else(zero);
            (value.filter(|value| !(wanted && average.is_some() && is_zero(value))), average, None)
        }
        "pods" => (None, amount("AverageValue").or_else(zero), None),
        "external" if wanted => (amount("Value"), amount("AverageValue"), None),
        "external" => (amount("Value").or_else(zero), amount("AverageValue"), None),
        _ if wanted => (None, amount("AverageValue"), amount("AverageUtilization")),
        _ => (None, amount("AverageValue").or_else(zero), amount("AverageUtilization")),
    };
    let mut amounts = Map::new();
    if wanted {
        let kind = match name {
            "object" if average.is_none() => "Value",
            "external" if value.is_some() => "Value",
            _ if utilization.is_some() => "Utilization",
            _ => "AverageValue",
        };
        amounts.insert("type".to_owned(), kind.into());
    }
    let all = [("value", value), ("averageValue", average), ("averageUtilization", utilization)];
    amounts.extend(all.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))));
    let mut read = Map::from_iter([(side.prefix().to_owned(), Value::Object(amounts))]);
    if matches!(name, "resource" | "containerResource") {
        read.extend(["name", "container"].into_iter().filter_map(|field| Some((field.to_owned(), given(field)?))));
        return read.into();
    }
    let selector = given(if name == "external" { "metricSelector" } else { "selector" });
    let mut metric = Map::from_iter([("name".to_owned(), given("metricName").unwrap_or_else(|| json!("")))]);
    metric.extend(selector.map(|selector| ("selector".to_owned(), selector)));
    read.insert("metric".to_owned(), metric.into());
    if name == "object" {
        read.insert("describedObject".to_owned(), given("target").unwrap_or_else(|| json!({"kind": "", "name": ""})));
    }
    read.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_written_flat_and_read_back() {
        let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "Exists"}]});
        for (metric, expected) in [
            (
                json!({"type": "Pods", "pods": {"metric": {"name": "m", "selector": selector}, "target": {"type": "AverageValue", "averageValue": "1"}}}),
                r#"[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"1","selector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"k","operator":"Exists"}]}}}]"#,
            ),
            (
                json!({"type": "Object", "object": {"describedObject": {"kind": "S", "name": "s", "apiVersion": "v1"},
                    "metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "2"}}}),
                r#"[{"type":"Object","object":{"target":{"kind":"S","name":"s","apiVersion":"v1"},"metricName":"m","targetValue":"0","averageValue":"2"}}]"#,
            ),
            (
                json!({"type": "External", "external": {"metric": {"name": "q"}, "target": {"type": "Value", "value": "3"}}}),
                r#"[{"type":"External","external":{"metricName":"q","targetValue":"3"}}]"#,
            ),
            (
                json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "target": {"type": "Utilization", "averageUtilization": 60}}}),
                r#"[{"type":"ContainerResource","containerResource":{"name":"cpu","targetAverageUtilization":60,"container":"c"}}]"#,
            ),
        ] {
            let text = written(std::slice::from_ref(&metric), Side::Wanted);
            assert_eq!(text, expected);
            assert_eq!(read(serde_json::from_str(&text).unwrap(), Side::Wanted), [metric]);
        }
        let measured = json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 33, "averageValue": "100m"}}});
        let text = written(std::slice::from_ref(&measured), Side::Measured);
        assert_eq!(
            text,
            r#"[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":33,"currentAverageValue":"100m"}}]"#
        );
        assert_eq!(read(serde_json::from_str(&text).unwrap(), Side::Measured), [measured]);
    }
}
