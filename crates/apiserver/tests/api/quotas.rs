//! Quotas that many writers charge concurrently.

use std::collections::BTreeSet;

use futures::future::join_all;
use portolan_types::Seams;
use serde_json::{Value, json};

use crate::common::{Answer, Client, Faulty, MAPS, Plane, config_map};

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

/// Gives a quota its usage, as its loop would.
pub async fn quota(admin: &Client, name: &str, spec: Value, used: Value) {
    let hard = spec["hard"].clone();
    admin.post(QUOTAS, json!({"metadata": {"name": name}, "spec": spec})).await.expect(201);
    let status = json!({"status": {"hard": hard, "used": used}});
    admin.merge(&format!("{QUOTAS}/{name}/status"), status).await.expect(200);
}

pub async fn used(admin: &Client, name: &str) -> Value {
    admin.get(&format!("{QUOTAS}/{name}")).await.expect(200).json()["status"]["used"].clone()
}

/// Creates this number of ConfigMaps concurrently.
async fn make(admin: &Client, names: impl Iterator<Item = usize>) -> Vec<Answer> {
    let create = |n: usize| {
        let admin = admin.clone();
        tokio::spawn(async move { admin.post(MAPS, config_map(&format!("m{n}"), json!({}))).await })
    };
    join_all(names.map(create)).await.into_iter().map(Result::unwrap).collect()
}

fn count(answers: &[Answer], code: u16) -> usize {
    answers.iter().filter(|answer| answer.code == code).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_creates_at_once_as_many_are_let_through_as_a_quota_allows() {
    let plane = Plane::with(|config| config.limits.writes = 2000).await;
    let admin = plane.admin();
    quota(&admin, "q", json!({"hard": {"configmaps": "100"}}), json!({"configmaps": "0"})).await;
    quota(&admin, "more", json!({"hard": {"count/configmaps": "500"}}), json!({"count/configmaps": "0"})).await;
    let answers = make(&admin, 0..1000).await;
    assert_eq!((count(&answers, 201), count(&answers, 403)), (100, 900));
    let refused = answers.iter().find(|answer| answer.code == 403).unwrap().message();
    let why = "is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=100, limited: configmaps=100";
    assert!(refused.ends_with(why), "{refused}");
    assert_eq!(used(&admin, "q").await, json!({"configmaps": "100"}));
    assert_eq!(used(&admin, "more").await, json!({"count/configmaps": "100"}));
    assert_eq!(admin.get(MAPS).await.json()["items"].as_array().unwrap().len(), 100);
}

#[tokio::test]
async fn concurrent_charges_share_a_batch() {
    const MADE: usize = 200;
    let plane = Plane::with(|config| config.limits.writes = 2000).await;
    let admin = plane.admin();
    quota(&admin, "q", json!({"hard": {"configmaps": "1k"}}), json!({"configmaps": "0"})).await;
    let before = plane.store.current().get();
    let answers = make(&admin, 0..MADE).await;
    assert_eq!(count(&answers, 201), MADE);
    assert_eq!(used(&admin, "q").await, json!({"configmaps": "200"}));
    // Each write has a revision: those that do not belong to objects belong to the quota.
    let charges = plane.store.current().get() - before - MADE as u64;
    assert!((1..=100).contains(&charges), "the quota was written {charges} times");
    let mut told = BTreeSet::new();
    for answer in answers {
        let made = answer.json();
        let path = format!("{MAPS}/{}", made["metadata"]["name"].as_str().unwrap());
        assert_eq!(admin.get(&path).await.json(), made);
        assert!(told.insert(made["metadata"]["resourceVersion"].to_string()));
    }
}

#[tokio::test]
async fn a_failed_charge_affects_no_other_in_its_batch() {
    let plane = Plane::with(|config| config.limits.writes = 2000).await;
    let admin = plane.admin();
    quota(&admin, "q", json!({"hard": {"configmaps": "100"}}), json!({"configmaps": "0"})).await;
    for taken in [3, 40] {
        admin.post(MAPS, config_map(&format!("m{taken}"), json!({}))).await.expect(201);
    }
    let answers = make(&admin, 0..50).await;
    assert_eq!((count(&answers, 201), count(&answers, 409)), (48, 2));
    assert_eq!(answers[40].message(), "configmaps \"m40\" already exists");
    assert_eq!(used(&admin, "q").await, json!({"configmaps": "50"}));
    // The same name twice at once: the second comes after the first.
    let answers = make(&admin, [60, 60, 61].into_iter()).await;
    assert_eq!((count(&answers, 201), count(&answers, 409)), (2, 1));
    assert_eq!(used(&admin, "q").await, json!({"configmaps": "52"}));
}

#[tokio::test]
async fn a_batched_charge_reports_the_store_failure_to_each_writer() {
    let store = Faulty::over(portolan_store::memory());
    let mut config = portolan_apiserver::ApiServerConfig::in_memory(Seams::system());
    config.limits.writes = 2000;
    let admin = Plane::on(store.clone(), config).await.admin();
    quota(&admin, "q", json!({"hard": {"configmaps": "100"}}), json!({"configmaps": "0"})).await;
    store.overload(true);
    let answers = make(&admin, 0..20).await;
    assert_eq!(count(&answers, 429), 20, "{}", answers[0].text());
    store.overload(false);
    assert_eq!(count(&make(&admin, 0..20).await, 201), 20);
    assert_eq!(used(&admin, "q").await, json!({"configmaps": "20"}));
}

#[tokio::test]
async fn a_cancelled_waiter_is_skipped() {
    let plane = Plane::with(|config| config.limits.writes = 2000).await;
    let admin = plane.admin();
    quota(&admin, "q", json!({"hard": {"configmaps": "100"}}), json!({"configmaps": "0"})).await;
    let create = |n: usize| {
        let admin = admin.clone();
        tokio::spawn(async move { admin.post(MAPS, config_map(&format!("gone{n}"), json!({}))).await })
    };
    let leaving: Vec<_> = (0..40).map(create).collect();
    let staying = make(&admin, 0..10);
    tokio::task::yield_now().await;
    leaving.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(count(&staying.await, 201), 10);
    let left = join_all(leaving).await.into_iter().filter(Result::is_err).count();
    let made = admin.get(MAPS).await.json()["items"].as_array().unwrap().len();
    assert!(left > 0 && made >= 10, "{left} left, {made} made");
    assert_eq!(used(&admin, "q").await, json!({"configmaps": made.to_string()}));
}
