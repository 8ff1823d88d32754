//! Tests of batches of charges.

use portolan_types::{LogicalClusterId, Record};
use serde_json::json;

use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey::cluster_scoped(LogicalClusterId::ROOT, GroupResource::new("", "things"), name.parse().unwrap())
}

fn write(name: &str, bytes: usize) -> Transaction {
    let record = Record::of(&json!({"metadata": {"name": name}, "data": "x".repeat(bytes)}));
    Transaction::one(key(name), Expect::Absent, Some(record))
}

#[test]
fn a_batch_fits_in_one_transaction() {
    let upto = |quotas: usize, bytes: usize| {
        let mut size = TransactionSize::of(quotas);
        (0..200).take_while(|n| size.takes(&write(&n.to_string(), bytes))).count()
    };
    assert_eq!(upto(1, 10), 99);
    assert_eq!(upto(64, 10), 36);
    assert_eq!(upto(1, 100 << 10), 5);
    let mut size = TransactionSize::of(1);
    assert!(size.takes(&write("a", 10)));
    assert!(!size.takes(&write("a", 10)), "no key twice");
    let on = |name: &str, other: &str| Transaction { checks: vec![(key(other), Expect::Present)], ..write(name, 10) };
    assert!(!size.takes(&on("b", "a")), "no check of what is written");
    assert!(size.takes(&on("c", "d")));
    assert!(size.takes(&on("e", "d")), "the same check twice counts once");
    assert_eq!(size.checked.len(), 1);
    let other = Transaction { checks: vec![(key("d"), Expect::Anything)], ..write("f", 10) };
    assert!(size.takes(&other) && size.checked.len() == 2, "another check of the same key counts, too");
    assert!(!size.takes(&write("d", 10)), "no write of what is checked");
}

#[test]
fn a_dropped_queue_position_leaves_nothing() {
    let (quota_batcher, namespace) = (QuotaBatcher::default(), (LogicalClusterId::ROOT, "default".to_owned()));
    let pending = PendingCharge {
        resource: GroupResource::new("", "things"),
        subresource: String::new(),
        object: json!({}),
        old: None,
        now: Timestamp::UNIX_EPOCH,
    };
    let member = QueuedWrite { id: 7, pending, transaction: write("a", 10), answer: oneshot::channel().0 };
    quota_batcher.waiting.lock().entry(namespace.clone()).or_default().push_back(member);
    drop(QueuePosition { waiting: &quota_batcher.waiting, namespace: &namespace, id: 8 });
    assert_eq!(quota_batcher.waiting.lock()[&namespace].len(), 1, "it is another one's");
    drop(QueuePosition { waiting: &quota_batcher.waiting, namespace: &namespace, id: 7 });
    assert!(quota_batcher.waiting.lock().is_empty());
}
