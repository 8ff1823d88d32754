//! Tokens for the pods of copies.

use portolan_store::{Expect, Transaction};
use portolan_types::{
    Record,
    placement::{CopyPhase, PlacedCopy, PlacementRecord},
};
use serde_json::json;

use super::*;

const CLUSTER: LogicalClusterId = LogicalClusterId::ROOT;

fn key(resource: &str, group: &str, name: &str) -> ObjectKey {
    ObjectKey::namespaced(CLUSTER, GroupResource::new(group, resource), "shop".parse().unwrap(), name.parse().unwrap())
}

async fn write(store: &DynStore, key: ObjectKey, object: Option<serde_json::Value>) {
    let txn = Transaction::one(key, Expect::Anything, object.as_ref().map(Record::of));
    store.commit(txn).await.unwrap();
}

fn deployment(uid: &str, on: &str) -> serde_json::Value {
    let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "uid": uid}});
    let (name, uid) = (on.to_owned(), on.parse().unwrap());
    let copy = PlacedCopy { name, uid, phase: CopyPhase::Active, replicas: None, epoch: 1 };
    PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() }.write_to(&mut object);
    object
}

#[tokio::test]
async fn a_token_of_a_copy_ends_with_the_copy() {
    let store = portolan_store::memory();
    let signing = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let keys = TokenKeys { signing: &signing, verifying: &[] };
    let tokens = ServiceAccountTokens::new(&keys, "https://portolan".into(), store.clone(), Seams::system()).unwrap();
    let account = json!({"metadata": {"name": "builder", "namespace": "shop", "uid": "sa-1"}});
    write(&store, key("serviceaccounts", "", "builder"), Some(account.clone())).await;
    let claim = CopyClaim {
        resource: "deployments.apps".into(),
        name: "web".into(),
        uid: "d-1".into(),
        physical: "east".into(),
    };
    let issued = tokens.issue(&TokenRequest {
        cluster: CLUSTER,
        namespace: "shop".into(),
        name: "builder".into(),
        uid: "sa-1".into(),
        audiences: vec!["https://portolan".into()],
        seconds: 600,
        bound: Some(TokenBinding::Copy(claim)),
    });
    let token = issued.unwrap().token;
    let at = || key("deployments", "apps", "web");
    for (case, object, is_good) in [
        ("the object is placed there", Some(deployment("d-1", "east")), true),
        ("it has left for another physical cluster", Some(deployment("d-1", "west")), false),
        ("it is back", Some(deployment("d-1", "east")), true),
        ("another object has its name", Some(deployment("d-2", "east")), false),
        ("it is gone", None, false),
    ] {
        write(&store, at(), object).await;
        let verdict = tokens.verify(&token, &[]).await;
        assert_eq!(verdict.is_ok(), is_good, "{case}");
        if let Ok((identity, _)) = verdict {
            assert_eq!(identity.user.name, "system:serviceaccount:shop:builder", "{case}");
        }
    }
    write(&store, at(), Some(deployment("d-1", "east"))).await;
    assert!(matches!(tokens.verify(&token, &["https://elsewhere".into()]).await, Err(TokenError::Audience)));
    write(&store, key("serviceaccounts", "", "builder"), None).await;
    assert!(matches!(tokens.verify(&token, &[]).await, Err(TokenError::Gone)), "the account is gone");
}
