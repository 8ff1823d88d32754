//! Snapshot from the server that has the store open.

use std::{io::Write, path::Path, time::Duration};

use anyhow::{Context as _, anyhow};
use http::{Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use portolan_store::PartialSnapshot;

use super::{NotResumable, UnreadableStore};
use crate::cli::admin::{KUBECONFIG, connect, message, no_answer};

/// Error of a connection that ended before the snapshot.
#[derive(Debug, thiserror::Error)]
#[error("the connection was cut: {0}")]
pub(super) struct CutConnection(String);

/// Time for the server to give its reason after it cut the connection. It first reads again what it had sent.
const WHY: Duration = Duration::from_secs(60);

/// Downloads a snapshot, with the credentials in the server's data directory.
pub(super) async fn download(
    data_dir: &Path,
    begun: Option<&PartialSnapshot>,
    out: &mut (impl Write + Send),
) -> anyhow::Result<Result<(), NotResumable>> {
    let (client, server) = connect(&data_dir.join(KUBECONFIG)).await?;
    let response = ask(&client, begun).await.map_err(|error| unanswered(&server, &error))?;
    let code = response.status();
    if !code.is_success() {
        let why = message(response.into_body()).await;
        // The revision is compacted, or the store never had it.
        return if matches!(code, StatusCode::GONE | StatusCode::GATEWAY_TIMEOUT) && begun.is_some() {
            Ok(Err(NotResumable(why)))
        } else {
            Err(refusal(data_dir, &server, code, &why))
        };
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame.map_err(|error| CutConnection(error.to_string()))?.into_data() {
            out.write_all(&piece).context("the snapshot cannot be written")?;
        }
    }
    Ok(Ok(()))
}

async fn ask(client: &Client, begun: Option<&PartialSnapshot>) -> Result<Response<Body>, kube::Error> {
    let rest = begun.map_or_else(String::new, |PartialSnapshot { revision, taken, bytes, sha256 }| {
        format!("&revision={revision}&taken={taken}&bytes={bytes}&sha256={sha256}")
    });
    let request = http::Request::get(format!("/snapshot?damaged=skip{rest}")).body(Body::empty());
    client.send(request.map_err(kube::Error::HttpError)?).await
}

/// Returns the reason that a connection was cut, if it will happen again. A server that cannot read on reports it when
/// asked for the rest.
pub(super) async fn why_cut(data_dir: &Path, begun: &PartialSnapshot) -> Option<anyhow::Error> {
    let asking = async {
        let (client, server) = connect(&data_dir.join(KUBECONFIG)).await.ok()?;
        let response = ask(&client, Some(begun)).await.ok()?;
        let code = response.status();
        let is_own_fault = code == StatusCode::INTERNAL_SERVER_ERROR;
        if !is_own_fault {
            return None;
        }
        Some(refusal(data_dir, &server, code, &message(response.into_body()).await))
    };
    tokio::time::timeout(WHY, asking).await.ok().flatten()
}

/// Returns the error for a response that is not a snapshot.
fn refusal(data_dir: &Path, server: &Uri, code: StatusCode, why: &str) -> anyhow::Error {
    let what = format!("the server at {server} answered {code}: {why}");
    match code {
        StatusCode::SERVICE_UNAVAILABLE => anyhow!(
            "{what}; its store does not answer or is being opened: its log and /readyz?verbose tell more. \
             Run this again once it is ready"
        ),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            anyhow!("{what}; it is not the server of this data directory, or that has got other keys since")
        }
        StatusCode::INTERNAL_SERVER_ERROR => {
            UnreadableStore::in_part(data_dir, &format!("{what}; its log names what cannot be read")).into()
        }
        _ => anyhow!(what),
    }
}

/// Returns the error for a missing response.
fn unanswered(server: &Uri, error: &kube::Error) -> anyhow::Error {
    let told = no_answer(server, error);
    anyhow!(
        "{told}. Start it, or wait until it has started: what is in etcd, in memory or in use is saved by the running server only"
    )
}
