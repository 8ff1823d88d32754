use std::sync::Arc;

use portolan_types::GroupVersion;
use serde_json::{Value, json};

use super::*;
use crate::{Kind, KindTable};

/// Returns the answer of a real server (`e2e/codegen/kindtable -discovery`).
fn golden() -> Value {
    serde_json::from_str(include_str!("../../testdata/discovery.json")).unwrap()
}

fn kinds() -> Vec<Arc<Kind>> {
    let ours = |kind: &Kind| {
        let group = &kind.gvk.group;
        group.starts_with("portolan.") || group.ends_with("kcp.io") || group.ends_with("pinniped.dev")
    };
    KindTable::builtin().kinds().filter(|kind| !ours(kind)).cloned().collect()
}

#[test]
fn aggregated_documents_are_those_of_a_real_server() {
    let golden = golden();
    let all = golden["aggregated"].as_array().unwrap();
    let core = aggregated_core(&kinds());
    assert_eq!(core["items"], json!([all[0]]));
    let groups = aggregated_groups(&kinds());
    let ours = groups["items"].as_array().unwrap();
    assert_eq!(ours.len() + 1, all.len());
    for (ours, theirs) in ours.iter().zip(&all[1..]) {
        assert_eq!(ours, theirs);
    }
}

#[test]
fn resource_lists_are_those_of_a_real_server() {
    for (version, theirs) in golden()["lists"].as_object().unwrap() {
        let version: GroupVersion = version.parse().unwrap();
        let mut ours = api_resource_list(&kinds(), &version).unwrap();
        for entry in ours["resources"].as_array_mut().unwrap() {
            entry.as_object_mut().unwrap().remove("storageVersionHash");
        }
        assert_eq!(ours, *theirs, "{version}");
    }
    for (version, resource, hash) in [
        ("apps/v1", "controllerrevisions", "85nkx63pcBU="),
        ("autoscaling/v1", "horizontalpodautoscalers", "qwQve8ut294="),
    ] {
        let list = api_resource_list(&kinds(), &version.parse().unwrap()).unwrap();
        let entry = list["resources"].as_array().unwrap().iter().find(|entry| entry["name"] == resource).unwrap();
        assert_eq!(entry["storageVersionHash"], hash, "{version}");
    }
    assert_eq!(api_resource_list(&kinds(), &GroupVersion::new("apps", "v2")), None);
}

#[test]
fn groups_name_their_versions_and_the_preferred_one() {
    let version = |text: &str| json!({"groupVersion": format!("autoscaling/{text}"), "version": text});
    assert_eq!(
        api_group(&kinds(), "autoscaling"),
        Some(json!({
            "kind": "APIGroup", "apiVersion": "v1", "name": "autoscaling",
            "versions": [version("v2"), version("v1")], "preferredVersion": version("v2"),
        }))
    );
    assert_eq!(api_group(&kinds(), ""), None);
    let list = api_group_list(&kinds());
    assert_eq!(list["groups"][1]["name"], "apps");
    assert!(list["groups"][1].get("kind").is_none());
}

#[test]
fn versions_are_preferred_as_kubernetes_does() {
    let mut versions = ["v1alpha1", "v10", "foo1", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "foo10", "v2"];
    versions.sort_by(|a, b| version_order(a, b));
    let wanted = ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v1alpha1", "foo1", "foo10"];
    assert_eq!(versions, wanted);
}

#[test]
fn the_core_versions_name_the_server() {
    assert_eq!(api_versions("a:6443")["serverAddressByClientCIDRs"][0]["serverAddress"], "a:6443");
}
