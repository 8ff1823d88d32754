use serde_json::{Value, json};

use crate::{
    decide::DecisionOutcome,
    fixtures::{PlacementCase, chosen, cluster, deployment, policy},
};

/// Three physical clusters in eu, two in us, one in ap.
fn spread_over(spread: Value, count: Value, on: &str) -> PlacementCase {
    let regions =
        ["ap-1 region=ap", "eu-1 region=eu", "eu-2 region=eu", "eu-3 region=eu", "us-1 region=us", "us-2 region=us"];
    let clusters = regions.map(cluster).to_vec();
    let spec = json!({"count": count, "spread": [spread]});
    PlacementCase::new(deployment(6), clusters).by(policy(1, "p", spec)).on(on)
}

#[test]
fn groups_of_a_spread_are_bounded() {
    let of = |bounds: Value| {
        let mut spread = json!({"topologyKey": "region"});
        spread.as_object_mut().unwrap().extend(bounds.as_object().unwrap().clone());
        spread
    };
    for (case, bounds, count, on, expected) in [
        ("at most one value", json!({"maxGroups": 1, "maxSkew": 9}), json!(2), "", "eu-1 eu-2"),
        (
            "one that offers enough, though another is first",
            json!({"maxGroups": 1, "maxSkew": 9}),
            json!(3),
            "",
            "eu-1 eu-2 eu-3",
        ),
        ("two that are even", json!({"maxGroups": 2}), json!(4), "", "eu-1 eu-2 us-1 us-2"),
        ("the present one comes first", json!({"maxGroups": 1, "maxSkew": 9}), json!(1), "us-2", "us-2"),
        ("all of two values", json!({"maxGroups": 2, "maxSkew": 9}), json!("All"), "", "eu-1 eu-2 eu-3 us-1 us-2"),
        (
            "at least two values in spite of the skew",
            json!({"minGroups": 2, "maxSkew": 9}),
            json!(2),
            "eu-1 eu-2",
            "ap-1 eu-1",
        ),
        ("at least three", json!({"minGroups": 3, "maxSkew": 9}), json!(4), "", "ap-1 eu-1 eu-2 us-1"),
    ] {
        let case_ = spread_over(of(bounds), count, on);
        assert_eq!(chosen(&case_.decide()), expected, "{case}");
    }
}

#[test]
fn with_too_few_groups_nothing_comes_and_nothing_leaves() {
    let spread = json!({"topologyKey": "region", "minGroups": 3, "maxSkew": 9});
    let mut case = spread_over(spread, json!(3), "");
    case.clusters.retain(|c| c.info.name != "ap-1");
    let nowhere = case.decide();
    assert_eq!((chosen(&nowhere).as_str(), &nowhere.outcome), ("", &DecisionOutcome::Unplaced));
    let counts: Vec<_> = nowhere.counts().into_iter().map(|(reason, n)| format!("{reason}={n}")).collect();
    assert_eq!(counts, ["SpreadSkew=3", "SpreadGroups=2"]);
    let stays = case.on("eu-1 eu-2").decide();
    assert_eq!(chosen(&stays), "eu-1 eu-2");
    assert_eq!(stays.outcome, DecisionOutcome::Partly("only 2 of at least 3 values of region fit".into()));
}
