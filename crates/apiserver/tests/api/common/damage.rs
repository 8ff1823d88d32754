//! A server on a store in which objects are damaged.

use portolan_apiserver::{ApiServer, ApiServerConfig};
use portolan_store::{DynStore, Engine, StoreConfig};
use portolan_types::Seams;
use serde_json::{Value, json};

use super::{Answer, Client, Plane};

/// Content of the objects before they are damaged.
const MARK: &str = "no reader decodes this";

/// Returns a server that was restarted on its store with these objects damaged, each given as its collection and
/// content. `prepare` creates intact objects.
pub async fn damaged(prepare: impl AsyncFnOnce(&Client), objects: &[(&str, Value)]) -> (Plane, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let plane = Plane::on(store, ApiServerConfig::in_memory(Seams::system())).await;
    let admin = plane.admin();
    prepare(&admin).await;
    for (path, object) in objects {
        let mut object = object.clone();
        object["metadata"]["annotations"]["mark"] = MARK.into();
        admin.post(path, object).await.expect(201);
    }
    plane.store.close().await;
    drop((admin, plane));
    assert!(portolan_store::testing::damage(folder.path(), MARK).unwrap() >= objects.len());
    let store = open(&folder);
    let api = ApiServer::new(store.clone(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
    (Plane { api, store }, folder)
}

fn open(folder: &tempfile::TempDir) -> DynStore {
    portolan_store::open(StoreConfig::new(Engine::Redb, Some(folder.path().to_owned())), Seams::system()).unwrap()
}

impl Client {
    /// Deletes with options.
    pub async fn delete_with(&self, path: &str, options: Value) -> Answer {
        self.send("DELETE", path, &[("content-type", "application/json")], options.to_string()).await
    }

    /// Deletes an object that cannot be read.
    pub async fn delete_unread(&self, path: &str) -> Answer {
        let option = json!({"kind": "DeleteOptions", "apiVersion": "v1",
            "ignoreStoreReadErrorWithClusterBreakingPotential": true});
        self.delete_with(path, option).await
    }
}
