//! Tests of the parsed configuration and of the users; the API tests have an issuer.

use super::*;

#[test]
fn a_user_counts_in_its_workspace_only() {
    let cluster = LogicalClusterId::new(7);
    let extra = [("example.com/team", "a"), ("authorization.kcp.io/warrant", "{}"), (SCOPES, "cluster:root")];
    let extra = extra.map(|(key, value)| (key.to_owned(), vec![value.to_owned()])).into_iter().collect();
    let user = scoped(User { name: "ann".into(), extra, ..User::default() }, cluster);
    assert_eq!(user.extra.keys().map(String::as_str).collect::<Vec<_>>(), [SCOPES, "example.com/team"]);
    assert_eq!(user.extra[SCOPES], [format!("cluster:{cluster}")]);
}

#[test]
fn configurations_have_the_form_of_kubernetes() {
    let issuer = json!({
        "issuer": {"url": "https://login.example.com", "audiences": ["a"]},
        "claimMappings": {"username": {"claim": "sub", "prefix": ""}},
    });
    let of = |jwt: Value| parse(&json!({"metadata": {"name": "sso"}, "spec": {"jwt": jwt}}));
    assert_eq!(of(json!([issuer])).unwrap().jwt[0].issuer.url, "https://login.example.com");
    for (case, jwt, words) in [
        ("no issuer", json!([{}]), "issuer"),
        ("an unknown field", json!([{"issuer": {"url": "https://a", "audiences": ["a"], "x": 1}}]), "x"),
        ("too many", Value::Array(vec![issuer; MAX_ISSUERS + 1]), "more than 16"),
    ] {
        let refused = of(jwt).err().unwrap_or_default();
        assert!(refused.contains(words), "{case}: {refused}");
    }
}
