//! Claims of an export that a binding accepts.

use serde_json::{Value, json};

use crate::GroupResource;

/// Any verb.
const ANY: &str = "*";

/// Returns the claims of an export.
pub fn claims_of(object: &Value) -> &[Value] {
    object.pointer("/spec/permissionClaims").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the resource of a claim.
pub fn claimed_resource(claim: &Value) -> GroupResource {
    GroupResource::new(text(claim, "group"), text(claim, "resource"))
}

/// Returns true if two claims are of the same resource of the same identity.
pub fn is_same_claim(one: &Value, other: &Value) -> bool {
    ["group", "resource", "identityHash"].iter().all(|key| text(one, key) == text(other, key))
}

/// Returns the claims that both an export and a binding want, each with the verbs and the selector of the binding,
/// as `status.appliedPermissionClaims` has them. Verbs that the export does not claim are left out.
pub fn applied_claims(export: &Value, binding: &Value) -> Vec<Value> {
    let accepted = claims_of(binding).iter().filter(|claim| text(claim, "state") == "Accepted");
    let applied = accepted.filter_map(|claim| {
        let claimed = claims_of(export).iter().find(|claimed| is_same_claim(claimed, claim))?;
        let verbs = common_verbs(claimed, claim);
        (!verbs.is_empty()).then(|| {
            json!({
                "group": text(claim, "group"),
                "resource": text(claim, "resource"),
                "verbs": verbs,
                "identityHash": text(claim, "identityHash"),
                "selector": claim.get("selector").cloned().unwrap_or_else(|| json!({})),
            })
        })
    });
    applied.collect()
}

/// Returns true if a claim has a verb.
pub fn has_verb(claim: &Value, verb: &str) -> bool {
    verbs(claim).any(|own| own == ANY || own == verb)
}

fn common_verbs<'a>(one: &'a Value, other: &'a Value) -> Vec<&'a str> {
    if verbs(one).any(|verb| verb == ANY) {
        return verbs(other).collect();
    }
    if verbs(other).any(|verb| verb == ANY) {
        return verbs(one).collect();
    }
    verbs(one).filter(|verb| verbs(other).any(|also| also == *verb)).collect()
}

fn verbs(claim: &Value) -> impl Iterator<Item = &str> {
    claim.get("verbs").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_both_sides_want_is_applied() {
        let claim = |verbs: Value, state: &str| json!({"resource": "secrets", "verbs": verbs, "state": state, "selector": {"matchAll": true}});
        for (what, export, binding, expected) in [
            ("verbs of both", json!(["get", "list"]), claim(json!(["list", "create"]), "Accepted"), vec!["list"]),
            ("any verb of the export", json!(["*"]), claim(json!(["get"]), "Accepted"), vec!["get"]),
            ("any verb of the binding", json!(["get"]), claim(json!(["*"]), "Accepted"), vec!["get"]),
            ("a rejected claim", json!(["*"]), claim(json!(["*"]), "Rejected"), vec![]),
            ("no common verb", json!(["get"]), claim(json!(["list"]), "Accepted"), vec![]),
        ] {
            let export = json!({"spec": {"permissionClaims": [{"resource": "secrets", "verbs": export}]}});
            let binding = json!({"spec": {"permissionClaims": [binding]}});
            let applied = applied_claims(&export, &binding);
            let found: Vec<_> = applied.iter().flat_map(verbs).collect();
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn a_claim_that_the_export_does_not_make_is_not_applied() {
        let binding = json!({"spec": {"permissionClaims": [{
            "resource": "secrets", "verbs": ["*"], "state": "Accepted", "selector": {"matchAll": true},
        }]}});
        for claimed in [
            json!([]),
            json!([{"resource": "configmaps", "verbs": ["*"]}]),
            json!([{
                "resource": "secrets", "verbs": ["*"], "identityHash": "x",
            }]),
        ] {
            let export = json!({"spec": {"permissionClaims": claimed}});
            assert_eq!(applied_claims(&export, &binding), Vec::<Value>::new(), "{export}");
        }
    }
}
