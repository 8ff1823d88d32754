//! Deletions of logical clusters that fail on the way.

use super::*;
use crate::{
    RangeRequest, RangeScope,
    keys::{self, Suffix, meta},
    value::Prepared,
};
use portolan_types::Scope;

const PODS: u32 = 1;

fn cluster(number: u64) -> LogicalClusterId {
    LogicalClusterId::new(number)
}

fn objects(of: LogicalClusterId) -> Vec<u8> {
    keys::joined(b'o', &[&keys::cluster_prefix(of)])
}

/// An object as it stands on disk.
fn object(of: LogicalClusterId, name: &str) -> (Vec<u8>, Option<Bytes>) {
    let suffix = Suffix::new(of, PODS, &Scope::Cluster, &name.parse().unwrap());
    let record = Prepared::new(Record::of(&json!({"metadata": {"name": name}})));
    let (value, _) = record.seal(&suffix, ResourceVersion::FIRST, ResourceVersion::FIRST);
    (suffix.object(), Some(value))
}

/// What a server leaves that ended while it deleted logical clusters.
fn unfinished(clusters: &[LogicalClusterId]) -> Scripted {
    let kv = Scripted::default();
    initialize(&kv, &Seams::system()).unwrap();
    let mut batch = Batch::from([(meta::resource(PODS), Some(crate::resources::encode(&pods()).into()))]);
    for of in clusters {
        batch.extend([(meta::sweep(*of), Some(Bytes::new())), object(*of, "a"), object(*of, "b")]);
    }
    kv.kv.commit(batch).unwrap();
    kv.kv.publish();
    kv
}

impl Scene {
    async fn left(&self, of: LogicalClusterId) -> usize {
        let all = RangeRequest::all(RangeScope::Cluster(of, pods()));
        self.store.range(all).await.unwrap().objects.len()
    }

    async fn until_swept(&self, of: LogicalClusterId) {
        let swept = async {
            while self.left(of).await > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon(Box::pin(swept)).await;
    }
}

#[tokio::test]
async fn a_deletion_that_fails_for_a_while_is_tried_again_and_holds_up_nothing_else() {
    for panics in [false, true] {
        let kv = unfinished(&[cluster(7), cluster(8)]);
        let unreadable = kv.unreadable.clone();
        unreadable.lock().push(Unreadable { from: objects(cluster(7)), panics });
        let scene = Scene::on(kv, Duration::from_secs(30)).await;
        scene.until_swept(cluster(8)).await;
        let last = scene.put("after").await.unwrap();
        soon(scene.store.compact(last)).await.unwrap();
        assert_eq!(scene.store.oldest(), last);
        assert_eq!(scene.left(cluster(7)).await, 2, "{panics}");
        unreadable.lock().clear();
        scene.until_swept(cluster(7)).await;
        scene.put("again").await.unwrap();
    }
}

#[tokio::test]
async fn a_damaged_object_keeps_only_itself_from_being_deleted() {
    let kv = unfinished(&[cluster(7)]);
    let damaged = keys::joined(b'o', &[&keys::cluster_prefix(cluster(7)), b"damaged"]);
    kv.kv.commit(Batch::from([(damaged.clone(), Some("?".into()))])).unwrap();
    kv.kv.publish();
    let (tidied, disk) = (kv.tidied.clone(), kv.kv.clone());
    let scene = Scene::on(kv, Duration::from_secs(30)).await;
    scene.until_swept(cluster(7)).await;
    let last = scene.put("after").await.unwrap();
    soon(scene.store.compact(last)).await.unwrap();
    assert_eq!(scene.store.oldest(), last);
    let before = tidied.load(Ordering::Relaxed);
    let idle = async {
        while tidied.load(Ordering::Relaxed) == before {
            tokio::task::yield_now().await;
        }
    };
    soon(Box::pin(idle)).await;
    let (is_there, is_marked) = crate::kv::read(&*disk, |view| {
        (view.get(&damaged).unwrap().is_some(), view.get(&meta::sweep(cluster(7))).unwrap().is_some())
    })
    .unwrap();
    assert!(is_there && is_marked, "an operator sees it, and the next start looks for it again");
}

#[tokio::test]
async fn a_logical_cluster_with_a_damaged_object_can_be_deleted() {
    let kv = unfinished(&[]);
    let damaged = keys::joined(b'o', &[&keys::cluster_prefix(cluster(9)), b"damaged"]);
    kv.kv.commit(Batch::from([(damaged, Some("?".into())), object(cluster(9), "a")])).unwrap();
    kv.kv.publish();
    let scene = Scene::on(kv, Duration::from_secs(30)).await;
    soon(scene.store.delete_cluster(cluster(9))).await.unwrap();
    assert_eq!(scene.left(cluster(9)).await, 0);
    assert_eq!(scene.store.gone_clusters().await.unwrap(), [cluster(9)]);
}
