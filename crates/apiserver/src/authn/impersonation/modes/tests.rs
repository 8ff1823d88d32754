//! Tests of constrained impersonation.

use portolan_strategy::rbac::bootstrap;

use super::*;

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.into(), groups: groups.iter().map(|group| (*group).to_owned()).collect(), ..User::default() }
}

#[test]
fn impersonated_users_are_either_authenticated_or_not() {
    let (yes, no) = ("system:authenticated", "system:unauthenticated");
    let account = "system:serviceaccount:ns:a";
    for (mode, name, groups, expected) in [
        (ImpersonationMode::UserInfo, "ann", vec![], vec![yes]),
        (ImpersonationMode::UserInfo, "ann", vec!["a"], vec!["a", yes]),
        (ImpersonationMode::Legacy, "ann", vec![yes], vec![yes]),
        (ImpersonationMode::Legacy, "ann", vec![no], vec![no]),
        (ImpersonationMode::UserInfo, "system:anonymous", vec![], vec![no]),
        (ImpersonationMode::UserInfo, "system:anonymous", vec![yes], vec![yes, no]),
        (
            ImpersonationMode::ServiceAccount,
            account,
            vec![],
            vec!["system:serviceaccounts", "system:serviceaccounts:ns", yes],
        ),
        (ImpersonationMode::Legacy, account, vec!["a"], vec!["a", yes]),
        (ImpersonationMode::ArbitraryNode, "system:node:n", vec![], vec![NODES, yes]),
        (ImpersonationMode::Legacy, "system:node:n", vec![], vec![yes]),
    ] {
        assert_eq!(groups_of(mode, &user(name, &groups)), expected, "{mode:?} {name} {groups:?}");
    }
}

#[test]
fn impersonated_nodes_get_no_rights_from_shared_bindings() {
    let bindings = &bootstrap().cluster_role_bindings;
    let subjects = bindings.iter().flat_map(|binding| binding["subjects"].as_array().into_iter().flatten());
    let names: Vec<&str> = subjects.map(|subject| subject["name"].as_str().unwrap()).collect();
    assert!(names.contains(&AUTHENTICATED), "{names:?}");
    assert!(!names.iter().any(|name| *name == NODES || node_of(name).is_some()), "{names:?}");
}

#[test]
fn each_mode_covers_one_type_of_users() {
    let (node, account) = ("system:node:n", "system:serviceaccount:ns:a");
    let agent = User { extra: [(NODE_NAME.to_owned(), vec!["n".to_owned()])].into(), ..user(account, &[]) };
    for (wanted, asker, expected) in [
        (user("ann", &["a"]), user("eve", &[]), vec![ImpersonationMode::UserInfo, ImpersonationMode::Legacy]),
        (user(account, &[]), user("eve", &[]), vec![ImpersonationMode::ServiceAccount, ImpersonationMode::Legacy]),
        (user(account, &["a"]), user("eve", &[]), vec![ImpersonationMode::Legacy]),
        (
            user("system:serviceaccount:ns:a:b", &[]),
            user("eve", &[]),
            vec![ImpersonationMode::UserInfo, ImpersonationMode::Legacy],
        ),
        (user(node, &[]), user("eve", &[]), vec![ImpersonationMode::ArbitraryNode, ImpersonationMode::Legacy]),
        (user(node, &["a"]), user("eve", &[]), vec![ImpersonationMode::Legacy]),
        (user("system:node:N!", &[]), user("eve", &[]), vec![ImpersonationMode::UserInfo, ImpersonationMode::Legacy]),
        (
            user(node, &[]),
            agent.clone(),
            vec![ImpersonationMode::AssociatedNode, ImpersonationMode::ArbitraryNode, ImpersonationMode::Legacy],
        ),
        (user("system:node:other", &[]), agent, vec![ImpersonationMode::ArbitraryNode, ImpersonationMode::Legacy]),
    ] {
        let modes: Vec<ImpersonationMode> = MODES.into_iter().filter(|mode| mode.covers(&wanted, &asker)).collect();
        assert_eq!(modes, expected, "{wanted:?} by {}", asker.name);
    }
}

#[test]
fn attributes_have_keys_with_domains_and_values() {
    let fault = |key: &str, values: &[&str]| {
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        extra_fault(key, &values)
    };
    assert_eq!(fault("example.com/a", &["x"]), None);
    for (key, values, expected) in [
        ("", vec!["x"], "impersonating the empty string key in extra is not allowed"),
        ("a", vec!["x"], "extra.key: Invalid value: \"a\": must be a domain-prefixed path (such as \"acme.io/foo\")"),
        ("a_b/c", vec!["x"], "extra.key: Invalid value: \"a_b\": a lowercase RFC 1123 subdomain must consist of"),
        ("a.b/c d", vec!["x"], "extra.key: Invalid value: \"c d\": Invalid path"),
        ("a.b/C", vec!["x"], "impersonating a non-lowercase key in extra is not allowed: \"a.b/C\""),
        ("a.b/c", vec![], "impersonating empty values in extra is not allowed"),
        ("a.b/c", vec!["x", ""], "impersonating the empty string value in extra is not allowed"),
    ] {
        let found = fault(key, &values).unwrap();
        assert!(found.contains(expected), "{key}: {found}");
    }
}
