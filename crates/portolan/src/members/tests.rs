//! The suite of the syncer on a simulated physical cluster: the same that runs on real ones.

use portolan_syncer::testing::suite;
use portolan_types::{
    Seams,
    placement::{Connection, SimulatedConnection},
};
use tokio_util::sync::CancellationToken;

use super::connect::Simulations;

#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_cluster_passes_the_syncer_suite() {
    let simulations = Simulations::new(Seams::system(), CancellationToken::new());
    let connection = Connection { simulated: Some(SimulatedConnection { nodes: 2 }), ..Connection::default() };
    let connector = simulations.connector(&"u".parse().unwrap(), "east", &connection, None).await.expect("it starts");
    suite::run(connector.clone()).await.expect("the suite passes");
    suite::run_workloads(connector).await.expect("the suite passes with workloads");
}
