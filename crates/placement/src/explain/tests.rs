use serde_json::json;

use super::*;
use crate::fixtures::{PlacementCase, cluster, constraint, deployment, policy, workload};

#[test]
fn why_it_is_where_it_is() {
    let facts = vec![
        cluster("eu-1 region=eu").holding("20").using("4"),
        cluster("eu-2 region=eu").holding("20").using("2").cordoned(),
        cluster("eu-3 region=eu").holding("20").using("2"),
        cluster("us-1 region=us").holding("4").using("3"),
        cluster("us-2 region=us").down(),
        cluster("us-3 region=us").tainted("gpu", "NoSchedule", 0),
        cluster("ap-1 region=ap"),
        cluster("lab"),
    ];
    let divided = json!({"count": 2, "spread": [{"topologyKey": "region"}], "replicas": {"mode": "Divide"}});
    let case = PlacementCase::new(deployment(6), facts)
        .by(policy(1, "web-everywhere", divided))
        .by(policy(2, "anywhere", json!({"overrides": [{"labels": {"a": "b"}}]})))
        .by(policy(1, "jobs", json!({"resources": [{"apiGroup": "batch", "kinds": ["Job"]}]})))
        .by(constraint(2, "not-asia", json!({"clusters": {"exclude": ["ap-1"]}})));
    insta::assert_snapshot!(explain(&case.question()).to_text());
}

#[test]
fn why_it_is_nowhere() {
    let facts = vec![cluster("eu-1").cordoned(), cluster("eu-2").down(), cluster("us-1").down()];
    let case = PlacementCase::new(deployment(1), facts);
    assert_eq!(case.decide().summary(), "0/3 physical clusters fit: 2 not ready, 1 cordoned");
    insta::assert_snapshot!(explain(&case.question()).to_text());
}

#[test]
fn why_it_stays() {
    let set = workload("apps", "StatefulSet", json!({"metadata": {"name": "db"}, "spec": {"replicas": 1}}));
    let case = PlacementCase::new(set, vec![cluster("east"), cluster("west")])
        .by(policy(1, "west-only", json!({"clusters": {"names": ["west"]}})))
        .on("east");
    insta::assert_snapshot!(explain(&case.question()).to_text());
}

#[test]
fn the_same_as_json() {
    let case = PlacementCase::new(deployment(1), vec![cluster("east").cordoned(), cluster("west")]);
    let value = explain(&case.question()).to_value();
    assert_eq!(value["clusters"][1]["chosen"], true);
    assert_eq!(value["clusters"][0]["reason"], "Cordoned");
    assert_eq!(value["clusters"][0]["message"], "it is cordoned");
    let cordon = value["clusters"][0]["verdicts"].as_array().unwrap().iter().find(|v| v["filter"] == "cordon").unwrap();
    assert_eq!(
        *cordon,
        json!({"filter": "cordon", "passed": false, "reason": "Cordoned", "message": "it is cordoned"})
    );
}
