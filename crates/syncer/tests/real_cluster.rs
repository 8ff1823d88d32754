//! The suite of the syncer on a real API server: `PORTOLAN_SUITE_KUBECONFIG` names the file of a kubeconfig with inline
//! data, of a cluster with controllers and nodes and nothing in it that matters. `cargo xtask e2e --suite syncer`
//! starts one and runs this. Without that it says that it did not run.

use std::{process::ExitCode, sync::Arc};

use portolan_syncer::{Addresses, DirectConnector, testing::suite};

const KUBECONFIG: &str = "PORTOLAN_SUITE_KUBECONFIG";

fn main() -> ExitCode {
    let Ok(file) = std::env::var(KUBECONFIG) else {
        println!("not run: {KUBECONFIG} names no kubeconfig; `cargo xtask e2e --suite syncer` runs it");
        return ExitCode::SUCCESS;
    };
    match run(&file) {
        Ok(()) => {
            println!("the suite passed on the cluster of {file}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(file: &str) -> suite::SuiteResult {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let connector = DirectConnector::from_kubeconfig(&text, Addresses { allow_private: true, allow_loopback: true });
    let connector = Arc::new(connector.map_err(|error| error.to_string())?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        suite::run(connector.clone()).await?;
        suite::run_workloads(connector.clone()).await?;
        println!("apply to copy reported, ms: {:?}", suite::latencies(connector).await?);
        Ok(())
    })
}
