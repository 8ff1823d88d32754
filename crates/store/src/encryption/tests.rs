use std::sync::Arc;

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Seams};
use serde_json::{Value, json};

use super::*;
use crate::api::{
    DynStore, Expect, OnDamage, RangeRequest, RangeScope, StoreError, Transaction, WatchScope,
    damage::{self, Damage},
};

const ROOT: LogicalClusterId = LogicalClusterId::ROOT;

fn secrets() -> GroupResource {
    GroupResource::new("", "secrets")
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced(ROOT, secrets(), "shop".parse().unwrap(), name.parse().unwrap())
}

fn secret(name: &str, value: &str) -> Value {
    json!({"kind": "Secret", "metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}"),
        "labels": {"app": "web"}}, "data": {"password": value}})
}

fn aes(name: &str, byte: u8) -> EncryptionProvider {
    EncryptionProvider::AesGcm(vec![EncryptionKey::new(name, vec![byte; 32])])
}

fn secretbox(name: &str, byte: u8) -> EncryptionProvider {
    EncryptionProvider::Secretbox(vec![EncryptionKey::new(name, vec![byte; 32])])
}

fn keyring(providers: Vec<EncryptionProvider>) -> Keyring {
    let rule = EncryptionRule { resources: vec![ResourcePattern::parse("secrets").unwrap()], providers };
    Keyring::new(vec![rule]).unwrap()
}

fn encrypted_over(store: &DynStore, keyring: Keyring) -> (DynStore, EncryptedStore) {
    let layer = EncryptedStore::new(store.clone(), keyring, Seams::system());
    (Arc::new(layer.clone()), layer)
}

async fn put(store: &DynStore, name: &str, value: &str) {
    let record = Record::of(&secret(name, value));
    store.commit(Transaction::one(key(name), Expect::Anything, Some(record))).await.unwrap();
}

async fn body(store: &DynStore, name: &str) -> Vec<u8> {
    store.get(&key(name)).await.unwrap().unwrap().record.body().to_vec()
}

async fn damage_of(store: &DynStore, name: &str) -> Option<Damage> {
    match store.get(&key(name)).await {
        Err(StoreError::Damaged { why, .. }) => Some(why),
        Ok(Some(_)) => None,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn objects_are_sealed_below_and_plain_above() {
    for provider in [aes("k", 1), secretbox("k", 2)] {
        let raw = crate::memory();
        let (store, layer) = encrypted_over(&raw, keyring(vec![provider.clone()]));
        let mut watch = store.watch(WatchScope::Resource(secrets(), None), None).await.unwrap();
        put(&store, "a", "hunter2").await;
        put(&store, "a", "hunter3").await;
        let stored = store.get(&key("a")).await.unwrap().unwrap();
        assert_eq!(stored.to_value().unwrap()["data"]["password"], "hunter3", "{provider:?}");
        assert_eq!(&*stored.record, &Record::of(&secret("a", "hunter3")), "header, body and offset come back");
        let sealed = body(&raw, "a").await;
        assert!(sealed.starts_with(b"portolan:enc:") && !String::from_utf8_lossy(&sealed).contains("hunter"));
        let below = raw.get(&key("a")).await.unwrap().unwrap();
        assert_eq!(below.record.header.label("app"), Some("web"), "headers stay readable");
        let scope = RangeScope::Cluster(ROOT, secrets());
        let page = store.range(RangeRequest::all(scope)).await.unwrap();
        assert_eq!(page.objects[0].to_value().unwrap()["data"]["password"], "hunter3");
        let mut events = Vec::new();
        while events.len() < 2 {
            events.extend(watch.next().await.unwrap().events);
        }
        let text = |record: &Record| String::from_utf8_lossy(record.body()).into_owned();
        assert!(text(&events[1].record).contains("hunter3"));
        assert!(text(events[1].previous.as_ref().unwrap()).contains("hunter2"));
        assert_eq!(layer.failure(), None);
    }
}

#[tokio::test]
async fn keys_are_rotated_without_a_gap() {
    let raw = crate::memory();
    let (old, _) = encrypted_over(&raw, keyring(vec![aes("one", 1)]));
    put(&raw, "plain", "p").await;
    put(&old, "a", "x").await;
    for (case, providers, name, expected) in [
        ("another first key still opens what an older one sealed", vec![aes("two", 2), aes("one", 1)], "a", None),
        ("another provider, too", vec![secretbox("two", 2), aes("one", 1)], "a", None),
        ("plain objects need the identity provider", vec![aes("one", 1)], "plain", Some(Damage::Unencrypted)),
        ("and are read with it", vec![aes("one", 1), EncryptionProvider::Identity], "plain", None),
        ("a key that is gone", vec![aes("two", 2), EncryptionProvider::Identity], "a", Some(Damage::KeyMissing)),
        ("a key of the same name and other bytes", vec![aes("one", 9)], "a", Some(Damage::Decryption)),
        ("a key of the same name for another cipher", vec![secretbox("one", 1)], "a", Some(Damage::KeyMissing)),
    ] {
        let (store, layer) = encrypted_over(&raw, keyring(providers));
        assert_eq!(damage_of(&store, name).await, expected, "{case}");
        assert_eq!(layer.failure().is_some(), expected.is_some(), "{case}");
    }
    let (without, layer) = encrypted_over(&raw, Keyring::default());
    assert_eq!(damage_of(&without, "a").await, Some(Damage::KeyMissing), "a server without a configuration");
    assert!(layer.failure().unwrap().contains("key \"one\" of aesgcm is not configured"), "{:?}", layer.failure());
    layer.set_keys(keyring(vec![aes("one", 1)]));
    assert_eq!((damage_of(&without, "a").await, layer.failure()), (None, None), "keys can be replaced");
}

#[tokio::test]
async fn sealed_bodies_hold_for_their_own_object_only() {
    for provider in [aes("k", 1), secretbox("k", 2)] {
        let keyring = keyring(vec![provider]);
        let (own, seams) = (Record::of(&secret("a", "x")), Seams::system());
        let sealed = keyring.seal(&key("a"), own.clone(), &seams);
        let with = |change: &dyn Fn(&mut Record)| {
            let mut record = sealed.clone();
            change(&mut record);
            record
        };
        let foreign = ObjectKey { cluster: LogicalClusterId::new(7), ..key("a") };
        let other_resource = ObjectKey { resource: GroupResource::new("", "configmaps"), ..key("a") };
        let moved = with(&|record| record.header.uid = "another".into());
        for (case, key, record) in [
            ("another name", key("b"), &sealed),
            ("another logical cluster", foreign, &sealed),
            ("another resource", other_resource, &sealed),
            ("another uid", key("a"), &moved),
        ] {
            assert_eq!(keyring.open(&key, record).err(), Some(Damage::Decryption), "{case}");
        }
        for at in 0..sealed.body().len() {
            let mut bytes = sealed.body().to_vec();
            bytes[at] ^= 1;
            let changed = Record::from_parts(sealed.header.clone(), bytes.into(), 0).unwrap();
            assert!(keyring.open(&key("a"), &changed).is_err(), "byte {at}");
            let cut = Record::from_parts(sealed.header.clone(), sealed.body().slice(..at), 0).unwrap();
            assert!(keyring.open(&key("a"), &cut).is_err(), "cut at {at}");
        }
        assert_eq!(*keyring.open(&key("a"), &sealed).unwrap().unwrap(), own);
        let again = keyring.seal(&key("a"), own.clone(), &seams);
        assert_ne!(again.body(), sealed.body(), "equal objects do not look equal");
    }
}

#[tokio::test]
async fn lists_name_objects_that_cannot_be_opened_and_these_can_be_deleted() {
    let raw = crate::memory();
    let (old, _) = encrypted_over(&raw, keyring(vec![aes("one", 1)]));
    put(&old, "a", "x").await;
    let (store, _) = encrypted_over(&raw, keyring(vec![aes("two", 2)]));
    put(&store, "b", "y").await;
    let scope = RangeScope::Cluster(ROOT, secrets());
    let failed = store.range(RangeRequest::all(scope.clone())).await.unwrap_err();
    assert!(matches!(&failed, StoreError::Damaged { key: found, .. } if *found == key("a")), "{failed}");
    let request = RangeRequest { on_damage: OnDamage::Skip, ..RangeRequest::all(scope) };
    let page = store.range(request).await.unwrap();
    assert_eq!((page.objects.len(), page.damaged.len()), (1, 1));
    assert_eq!(page.damaged[0], damage::DamagedObject { key: key("a"), why: Damage::KeyMissing });
    store.commit(Transaction::one(key("a"), Expect::Damaged, None)).await.unwrap();
    assert!(store.get(&key("a")).await.unwrap().is_none());
    let readable = store.commit(Transaction::one(key("b"), Expect::Damaged, None)).await;
    assert!(matches!(readable, Err(StoreError::NotDamaged { .. })), "{readable:?}");
}

#[test]
fn rules_are_checked_and_the_first_one_counts() {
    for (pattern, fits) in [
        ("secrets", true),
        ("deployments.apps", true),
        ("*.apps", true),
        ("*.", true),
        ("*.*", true),
        ("*", false),
        ("", false),
        ("se*", false),
        ("secrets.*", false),
        ("Secrets", false),
        ("pods/log", false),
    ] {
        assert_eq!(ResourcePattern::parse(pattern).is_ok(), fits, "{pattern}");
    }
    let rule = |pattern: &str, provider| EncryptionRule {
        resources: vec![ResourcePattern::parse(pattern).unwrap()],
        providers: vec![provider],
    };
    let rules = vec![rule("secrets", EncryptionProvider::Identity), rule("*.*", aes("all", 1))];
    let keyring = Keyring::new(rules).unwrap();
    let map = ObjectKey { resource: GroupResource::new("", "configmaps"), ..key("a") };
    let system = ObjectKey { cluster: LogicalClusterId::SYSTEM, ..map.clone() };
    let seal = |key: &ObjectKey| keyring.seal(key, Record::of(&secret("a", "x")), &Seams::system());
    assert!(!Keyring::is_encrypted(&seal(&key("a"))) && Keyring::is_encrypted(&seal(&map)));
    assert!(!Keyring::is_encrypted(&seal(&system)), "restores read records of the system without keys");
    for (provider, words) in [
        (EncryptionProvider::AesGcm(Vec::new()), "keys: Required value"),
        (EncryptionProvider::AesGcm(vec![EncryptionKey::new("a", [1; 31])]), "31 bytes where 16, 24 or 32"),
        (EncryptionProvider::Secretbox(vec![EncryptionKey::new("a", [1; 16])]), "16 bytes where 32"),
        (EncryptionProvider::AesGcm(vec![EncryptionKey::new("a:b", [1; 32])]), "without ':'"),
        (EncryptionProvider::AesGcm(vec![EncryptionKey::new("a", [1; 32]); 2]), "Duplicate value"),
    ] {
        let why = Keyring::new(vec![rule("secrets", provider)]).unwrap_err();
        assert!(why.starts_with("resources[0].providers[0]") && why.contains(words), "{why}");
    }
    assert_eq!(format!("{:?}", EncryptionKey::new("a", [7; 32])), "EncryptionKey(a)", "keys are not printed");
}

#[tokio::test]
async fn the_history_of_resources_without_objects_is_examined() {
    let store = crate::open::memory();
    let (sealing, layer) = encrypted_over(&store, keyring(vec![aes("old", 1)]));
    put(&sealing, "sealed", "one").await;
    put(&store, "plain", "two").await;
    for name in ["sealed", "plain"] {
        store.commit(Transaction::one(key(name), Expect::Anything, None)).await.unwrap();
    }
    drop(layer);
    let all = |provider| {
        let rule = EncryptionRule { resources: vec![ResourcePattern::All], providers: vec![provider] };
        Keyring::new(vec![rule]).unwrap()
    };
    let report = examine_encryption(&*store, &all(aes("old", 1))).await.unwrap();
    assert!(
        report.plain.first.iter().all(|found| found.contains("shop/plain\" of logical cluster root, in the history")),
        "{report:?}"
    );
    assert!(!report.plain.is_empty() && report.unreadable.is_empty(), "{report:?}");
    let report = examine_encryption(&*store, &all(aes("new", 2))).await.unwrap();
    assert!(
        report
            .unreadable
            .first
            .iter()
            .all(|found| found.contains("shop/sealed\" of logical cluster root, in the history")),
        "{report:?}"
    );
    assert!(!report.unreadable.is_empty(), "{report:?}");
}
