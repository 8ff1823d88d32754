use super::*;
use crate::fixtures::{constraint, deployment, policy};

#[test]
fn resources_of_a_policy() {
    // A Deployment of apps named web, with the label tier=web.
    let web = deployment(1);
    let one = |spec| policy(1, "p", json!({"resources": [spec]})).policy.is_about(&web);
    for (case, spec, expected) in [
        ("its group and kind", json!({"apiGroup": "apps", "kinds": ["Deployment"]}), true),
        ("any kind of its group", json!({"apiGroup": "apps"}), true),
        ("any kind of any group", json!({"apiGroup": "*", "kinds": ["*"]}), true),
        ("another group", json!({"apiGroup": "batch"}), false),
        ("the core group, which is named by nothing", json!({"kinds": ["Deployment"]}), false),
        ("another kind", json!({"apiGroup": "apps", "kinds": ["StatefulSet"]}), false),
        ("its name among others", json!({"apiGroup": "apps", "names": ["api", "web"]}), true),
        ("other names", json!({"apiGroup": "apps", "names": ["api"]}), false),
        ("its label", json!({"apiGroup": "apps", "selector": {"matchLabels": {"tier": "web"}}}), true),
        ("another label", json!({"apiGroup": "apps", "selector": {"matchLabels": {"tier": "db"}}}), false),
        (
            "its name, but another label",
            json!({"apiGroup": "apps", "names": ["web"], "selector": {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}}),
            false,
        ),
    ] {
        assert_eq!(one(spec), expected, "{case}");
    }
    let either = json!({"resources": [{"apiGroup": "batch"}, {"apiGroup": "apps"}]});
    assert!(policy(1, "p", either).policy.is_about(&web), "any entry is enough");
    assert!(!CompiledPolicy::compile(PlacementPolicySpec::default()).is_about(&web), "none is about nothing");
}

#[test]
fn a_policy_that_is_too_large_to_be_looked_at_each_time_is_set_aside() {
    let names: Vec<String> = (0..20_000).map(|n| format!("cluster-{n}")).collect();
    let large = policy(1, "p", json!({"clusters": {"names": names}}));
    assert_eq!(large.policy.fault(), Some("the spec is larger than 131072 bytes"));
}

#[test]
fn a_policy_that_cannot_be_read_is_set_aside() {
    for (enforcement, is_constraint) in [("Default", false), ("Constraint", true)] {
        let spec = json!({"resources": [{"apiGroup": "apps"}], "count": 5_000_000_000_u64, "enforcement": enforcement});
        let error = serde_json::from_value::<PlacementPolicySpec>(spec.clone()).unwrap_err();
        let found = CompiledPolicy::unreadable(&spec, &error);
        assert!(found.fault().is_some_and(|fault| fault.starts_with("the spec cannot be read: ")));
        assert!(found.is_about(&deployment(1)));
        assert_eq!(found.is_constraint(), is_constraint);
    }
}

#[test]
fn a_selector_that_cannot_be_read_proposes_nothing_and_forbids_everything() {
    let broken = json!({"resources": [{"apiGroup": "apps", "selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}]});
    let web = deployment(1);
    let proposal = policy(1, "p", broken.clone());
    assert!(proposal.policy.fault().is_some() && !proposal.policy.is_about(&web));
    assert!(constraint(1, "c", broken).policy.is_about(&web), "what it meant to forbid is not known");
}
