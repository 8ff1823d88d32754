//! Answers of physical clusters about one type, merged. Pure.

use std::collections::BTreeMap;

use anyhow::bail;
use portolan_types::object;
use serde_json::{Map, Value, json};

use crate::cli::plugin::session::RequestError;

/// Annotation of a printed object: the physical cluster that has it.
const CLUSTER: &str = "portolan.dev/cluster";

/// Objects of one physical cluster.
#[derive(Default)]
pub(super) struct MemberObjects {
    /// Objects, lists or tables.
    pub(super) found: Vec<Value>,
    /// Names of objects that the physical cluster does not have, with its refusals.
    pub(super) absent: Vec<(String, RequestError)>,
}

/// Answer of one physical cluster.
pub(super) struct MemberAnswer {
    pub(super) member: String,
    /// `None` if the physical cluster does not have the type.
    pub(super) found: Result<Option<MemberObjects>, RequestError>,
}

/// Answers of all physical clusters.
#[derive(Default)]
pub(super) struct AcceptedAnswers {
    /// Objects, lists or tables, with the name of the physical cluster.
    pub(super) found: Vec<(String, Value)>,
    /// Lines about physical clusters that did not answer.
    pub(super) failures: Vec<String>,
    /// Refusals for objects that no physical cluster has.
    pub(super) missing: Vec<RequestError>,
}

/// Separates answers and failures.
///
/// # Errors
/// The failure of the only physical cluster; kubectl's message for a type that none has.
pub(super) fn accepted(kind: &str, answers: Vec<MemberAnswer>) -> anyhow::Result<AcceptedAnswers> {
    let (mut all, mut known) = (AcceptedAnswers::default(), 0);
    let is_only = answers.len() == 1;
    let mut absent: BTreeMap<String, Vec<RequestError>> = BTreeMap::new();
    for MemberAnswer { member, found } in answers {
        match found {
            Ok(None) => {}
            Ok(Some(objects)) => {
                known += 1;
                all.found.extend(objects.found.into_iter().map(|answer| (member.clone(), answer)));
                objects.absent.into_iter().for_each(|(name, error)| absent.entry(name).or_default().push(error));
            }
            Err(error) if is_only => return Err(error.into()),
            Err(error) => all.failures.push(format!("{member}: {error}")),
        }
    }
    if known == 0 && all.failures.is_empty() {
        bail!("the server doesn't have a resource type \"{kind}\"");
    }
    let nowhere = absent.into_values().filter(|refusals| refusals.len() == known);
    all.missing = nowhere.filter_map(|mut refusals| refusals.pop()).collect();
    Ok(all)
}

/// Returns the objects, each with the annotation [`CLUSTER`].
pub(super) fn objects(found: Vec<(String, Value)>) -> Vec<Value> {
    let mut all = Vec::new();
    for (member, mut answer) in found {
        // The items of a list lack their type.
        let item = |field: &str, answer: &Value| match field {
            "kind" => answer["kind"].as_str().map(|kind| kind.trim_end_matches("List").into()),
            field => answer.get(field).cloned(),
        };
        let types: Vec<_> = ["apiVersion", "kind"].map(|field| (field, item(field, &answer))).into();
        match answer.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => all.extend(items.into_iter().map(|mut own| {
                for (field, value) in &types {
                    if let Some(own) = own.as_object_mut().filter(|own| !own.contains_key(*field)) {
                        own.insert((*field).to_owned(), value.clone().unwrap_or_default());
                    }
                }
                marked(own, &member)
            })),
            _ => all.push(marked(answer, &member)),
        }
    }
    all
}

fn marked(mut object: Value, member: &str) -> Value {
    object::set_annotation(&mut object, CLUSTER, Some(member.to_owned()));
    object
}

/// Merges tables: a column for the physical cluster, one for the namespace if wanted, and all columns that any table
/// has, in the order in which they come.
pub(super) fn table(tables: &[(String, Value)], with_namespace: bool) -> Value {
    let list = |table: &Value, key: &str| table[key].as_array().cloned().unwrap_or_default();
    let mut columns: Vec<Value> = vec![json!({"name": "Cluster", "type": "string", "priority": 0})];
    if with_namespace {
        columns.push(json!({"name": "Namespace", "type": "string", "priority": 0}));
    }
    for column in tables.iter().flat_map(|(_, table)| list(table, "columnDefinitions")) {
        if !columns.iter().any(|known| known["name"] == column["name"]) {
            columns.push(column);
        }
    }
    let mut rows = Vec::new();
    for (member, table) in tables {
        let own = list(table, "columnDefinitions");
        for row in list(table, "rows") {
            let named = own.iter().map(|column| column["name"].as_str().unwrap_or_default().to_owned());
            let mut cells: Map<String, Value> = named.zip(list(&row, "cells")).collect();
            cells.insert("Cluster".into(), member.as_str().into());
            if with_namespace {
                cells.insert("Namespace".into(), object::namespace(&row["object"]).into());
            }
            let cell = |column: &Value| cells.get(column["name"].as_str().unwrap_or_default()).cloned();
            rows.push(
                json!({"cells": columns.iter().map(|column| cell(column).unwrap_or_default()).collect::<Vec<_>>()}),
            );
        }
    }
    json!({"columnDefinitions": columns, "rows": rows})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::plugin::{session::RefusedRequest, text_table::TextTable};

    fn answer(member: &str, found: Result<Option<Vec<Value>>, RequestError>) -> MemberAnswer {
        let objects = |found| MemberObjects { found, absent: Vec::new() };
        MemberAnswer { member: member.into(), found: found.map(|found| found.map(objects)) }
    }

    fn without(member: &str, found: Vec<Value>, absent: &[&str]) -> MemberAnswer {
        let refusal = |name: &&str| {
            let message = format!("pods \"{name}\" not found");
            let status = json!({"kind": "Status", "reason": "NotFound", "message": message});
            let read = RefusedRequest::read(404, status.to_string().as_bytes());
            ((*name).to_owned(), RequestError::Refused(read))
        };
        let absent = absent.iter().map(refusal).collect();
        MemberAnswer { member: member.into(), found: Ok(Some(MemberObjects { found, absent })) }
    }

    #[test]
    fn an_object_is_missing_if_no_cluster_has_it() {
        let missing = |answers| -> Vec<String> {
            accepted("pods", answers).unwrap().missing.iter().map(ToString::to_string).collect()
        };
        let nope = "Error from server (NotFound): pods \"nope\" not found";
        for (case, answers, expected) in [
            ("no cluster has it", vec![without("a", vec![], &["nope"]), without("b", vec![], &["nope"])], vec![nope]),
            ("one has it", vec![without("a", vec![json!({})], &[]), without("b", vec![], &["web"])], vec![]),
            (
                "one of two names",
                vec![without("a", vec![json!({})], &["nope"]), without("b", vec![], &["web", "nope"])],
                vec![nope],
            ),
            ("a cluster without the type", vec![without("a", vec![], &["nope"]), answer("b", Ok(None))], vec![nope]),
            ("the only cluster", vec![without("a", vec![], &["nope"])], vec![nope]),
        ] {
            assert_eq!(missing(answers), expected, "{case}");
        }
    }

    fn refused() -> RequestError {
        let status = json!({"kind": "Status", "code": 503, "reason": "ServiceUnavailable", "message": "no answer"});
        RequestError::Refused(RefusedRequest::read(503, status.to_string().as_bytes()))
    }

    #[test]
    fn tables_of_several_versions_share_their_columns() {
        let rows = |names: &[&str]| -> Vec<Value> {
            let row = |name: &&str| json!({"cells": [name, "1/1"], "object": {"metadata": {"namespace": "shop"}}});
            names.iter().map(row).collect()
        };
        let column = |name: &str, priority: i64| json!({"name": name, "priority": priority});
        let tables = [
            (
                "east".to_owned(),
                json!({"columnDefinitions": [column("Name", 0), column("Ready", 0)], "rows": rows(&["a", "b"])}),
            ),
            (
                "west".to_owned(),
                json!({"columnDefinitions": [column("Name", 0), column("Health", 1)], "rows": rows(&["a"])}),
            ),
        ];
        let text = TextTable::from_server(&table(&tables, true), true).text(true);
        assert_eq!(
            text,
            "CLUSTER   NAMESPACE   NAME   READY    HEALTH\neast      shop        a      1/1      <none>\neast      shop        \
             b      1/1      <none>\nwest      shop        a      <none>   1/1\n"
        );
    }

    #[test]
    fn a_physical_cluster_without_an_answer_is_named() {
        let answers =
            vec![answer("east", Ok(Some(vec![json!({})]))), answer("west", Err(refused())), answer("old", Ok(None))];
        let all = accepted("pods", answers).unwrap();
        assert_eq!(all.found.len(), 1);
        assert_eq!(all.failures, ["west: Error from server (ServiceUnavailable): no answer"]);
        assert!(accepted("pods", vec![answer("west", Err(refused()))]).is_err(), "the only one");
        let unknown = accepted("widgets", vec![answer("east", Ok(None)), answer("west", Ok(None))]);
        assert_eq!(unwrap_message(unknown), "the server doesn't have a resource type \"widgets\"");
    }

    fn unwrap_message(failed: anyhow::Result<AcceptedAnswers>) -> String {
        failed.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn objects_name_their_physical_cluster_and_their_type() {
        let list = json!({"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}}]});
        let one = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"}});
        let all = objects(vec![("east".into(), list), ("west".into(), one)]);
        let shown: Vec<_> = all
            .iter()
            .map(|own| (own["kind"].as_str().unwrap(), object::name(own), object::annotation(own, CLUSTER)))
            .collect();
        assert_eq!(shown, [("Pod", "a", Some("east")), ("Pod", "b", Some("west"))]);
    }
}
