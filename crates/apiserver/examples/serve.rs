//! Server of a memory store over TLS, to try clients: `cargo run -p portolan-apiserver --example serve -- DIR PORT`.

use std::{error::Error, net::SocketAddr, path::PathBuf};

use portolan_apiserver::{ApiServer, ApiServerConfig};
use portolan_types::Seams;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("a directory is missing")?);
    let port = args.next().map_or(Ok(6443), |text| text.parse())?;
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    let config =
        ApiServerConfig { bind_address: listener.local_addr()?, ..ApiServerConfig::in_directory(dir, Seams::system()) };
    let server = ApiServer::new(portolan_store::memory(), config).await?;
    println!("serving on {}", server.address());
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stop.cancel();
        }
    });
    server.serve(listener, shutdown).await?;
    Ok(())
}
