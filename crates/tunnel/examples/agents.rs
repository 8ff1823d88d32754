//! Load process: many agents, each with a credential of its own, without physical clusters behind them.
//!
//! ```text
//! agents SERVER TOKENS DATA
//! ```
//!
//! `TOKENS` is a folder with a bootstrap token per agent, `DATA` an empty one. Requests of the server get 503. The
//! process runs until it is killed.

use std::{env, fs, path::PathBuf, sync::Arc};

use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use portolan_tunnel::{
    agent::{Agent, AgentConfig, CredentialFile, MemberBody, MemberService, MemberServices, boxed},
    session::Keepalive,
};
use portolan_types::Seams;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, service_fn, util::BoxCloneSyncService};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut args = env::args().skip(1);
    let mut next = || args.next().ok_or("agents SERVER TOKENS DATA");
    let (server, tokens, data) = (next()?, PathBuf::from(next()?), PathBuf::from(next()?));
    let mut agents = JoinSet::new();
    for token in fs::read_dir(tokens)? {
        let token = token?;
        let agent = Agent::new(AgentConfig {
            server: server.parse()?,
            credentials: Arc::new(CredentialFile::new(data.join(token.file_name()))),
            token_file: token.path(),
            member: MemberServices { own: unavailable(), access: unavailable() },
            keepalive: Keepalive::default(),
            version: "load".into(),
            seams: Seams::system(),
        });
        agents.spawn(async move { agent.run(CancellationToken::new()).await });
    }
    agents.join_all().await;
    Ok(())
}

/// Returns a physical cluster that answers each request with 503.
fn unavailable() -> MemberService {
    BoxCloneSyncService::new(service_fn(|_: Request<MemberBody>| async {
        let mut response = Response::new(boxed(Empty::new()));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        Ok::<_, BoxError>(response)
    }))
}
