//! Objects that are encrypted at rest, as clients see them.

use std::sync::Arc;

use portolan_apiserver::ApiServerConfig;
use portolan_store::{
    DynStore, EncryptedStore, EncryptionKey, EncryptionProvider, EncryptionRule, Keyring, ResourcePattern,
};
use portolan_types::Seams;
use serde_json::json;

use crate::common::{Plane, config_map};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn keyring(name: &str) -> Keyring {
    let provider = EncryptionProvider::AesGcm(vec![EncryptionKey::new(name, [7; 32])]);
    let resources = vec![ResourcePattern::parse("secrets").unwrap()];
    Keyring::new(vec![EncryptionRule { resources, providers: vec![provider] }]).unwrap()
}

async fn plane(raw: &DynStore, keyring: Keyring) -> Plane {
    let store = Arc::new(EncryptedStore::new(raw.clone(), keyring, Seams::system()));
    let mut config = ApiServerConfig::in_memory(Seams::system());
    config.stored = Some(raw.clone());
    Plane::on(store, config).await
}

#[tokio::test]
async fn clients_see_plain_secrets_and_snapshots_none() {
    let raw = portolan_store::memory();
    let plane = plane(&raw, keyring("one")).await;
    let admin = plane.admin();
    let secret = json!({"metadata": {"name": "s", "labels": {"app": "web"}}, "stringData": {"password": "hunter2"}});
    admin.post(SECRETS, secret).await.expect(201);
    assert_eq!(admin.get(&format!("{SECRETS}/s")).await.expect(200).json()["data"]["password"], "aHVudGVyMg==");
    let selected = admin.get(&format!("{SECRETS}?labelSelector=app%3Dweb&fieldSelector=type%3DOpaque")).await;
    assert_eq!(selected.expect(200).json()["items"].as_array().unwrap().len(), 1);
    let mut watch = admin.watch(&format!("{SECRETS}?watch=1&resourceVersion=1"), &[]).await;
    assert_eq!(watch.next().await.unwrap()["object"]["data"]["password"], "aHVudGVyMg==");
    admin.merge(&format!("{SECRETS}/s"), json!({"data": {"more": "eA=="}})).await.expect(200);
    assert_eq!(watch.next().await.unwrap()["object"]["data"]["more"], "eA==");
    let snapshot = admin.get("/snapshot").await.expect(200);
    let holds = |bytes: &[u8]| snapshot.bytes.windows(bytes.len()).any(|window| window == bytes);
    assert!(holds(b"portolan:enc:aesgcm:v1:one:") && !holds(b"aHVudGVyMg"));
}

#[tokio::test]
async fn without_the_key_errors_name_the_object_and_the_rest_is_served() {
    let raw = portolan_store::memory();
    let before = plane(&raw, keyring("one")).await;
    before.admin().post(SECRETS, json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}})).await.expect(201);
    for (case, keyring) in [("another key", keyring("two")), ("no configuration", Keyring::default())] {
        let plane = plane(&raw, keyring).await;
        let admin = plane.admin();
        let got = admin.get(&format!("{SECRETS}/s")).await.expect(500).json();
        assert_eq!(got["reason"], "InternalError", "{case}");
        let message = got["message"].as_str().unwrap();
        assert!(message.contains("secrets/default/s") && message.contains("key that is not configured"), "{message}");
        let listed = admin.get(SECRETS).await.expect(500).json();
        assert_eq!((&listed["reason"], &listed["details"]["kind"]), (&json!("StorageReadError"), &json!("secrets")));
        assert_eq!(listed["details"]["causes"][0]["field"], "secrets/default/s", "{case}");
        let written = admin.merge(&format!("{SECRETS}/s"), json!({"data": {}})).await;
        assert_eq!(written.code, 500, "{case}: it is not overwritten unread");
        let map = config_map(&format!("m-{}", case.len()), json!({}));
        admin.post(crate::common::MAPS, map).await.expect(201);
    }
    let gone = plane(&raw, keyring("two")).await;
    let path = format!("{SECRETS}/s?ignoreStoreReadErrorWithClusterBreakingPotential=true");
    gone.admin().delete(&path).await.expect(200);
    gone.admin().get(SECRETS).await.expect(200);
}
