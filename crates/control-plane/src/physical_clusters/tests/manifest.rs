//! Test that the rights in `manifests/syncer/rbac.yaml` suffice: with no others, the syncer passes its suite on a
//! simulated cluster.

use std::sync::Arc;

use portolan_apiserver::{ApiServer, User};
use portolan_simulator::{SimulatedCluster, SimulationConfig};
use portolan_syncer::{ConnectError, Connector, testing::suite};
use portolan_types::{BoxFuture, LogicalClusterPath, Seams};
use tokio_util::sync::CancellationToken;

use crate::WorkspaceClient;

const MANIFEST: &str = include_str!("../../../../../manifests/syncer/rbac.yaml");

/// Connector that acts as the manifest's service account.
struct AsSyncer(Arc<ApiServer>);

impl Connector for AsSyncer {
    fn connect(&self) -> BoxFuture<'_, Result<kube::Client, ConnectError>> {
        let groups = ["system:serviceaccounts", "system:serviceaccounts:portolan", "system:authenticated"];
        let user = User {
            name: "system:serviceaccount:portolan:syncer".into(),
            groups: groups.map(str::to_owned).into(),
            ..User::default()
        };
        let service = self.0.service_as(user);
        Box::pin(async move { Ok(kube::Client::new(service, "default")) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_of_the_manifest_are_enough_for_the_syncer() {
    let shutdown = CancellationToken::new();
    let cluster = SimulatedCluster::start(SimulationConfig::named("east"), Seams::system(), &shutdown).await.unwrap();
    let connector: Arc<dyn Connector> = Arc::new(AsSyncer(cluster.api().clone()));
    let client = connector.connect().await.unwrap();
    let list = || http::Request::get("/api/v1/secrets").body(kube::client::Body::empty()).unwrap();
    assert_eq!(client.send(list()).await.unwrap().status(), 403, "it has no rights of its own");
    WorkspaceClient::new(cluster.api(), &LogicalClusterPath::root()).apply(MANIFEST).await.unwrap();
    suite::run(connector).await.expect("the suite passes");
}
