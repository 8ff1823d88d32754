//! A snapshot from the server that has the store open.

use std::{io::Write, path::Path, time::Duration};

use anyhow::{Context as _, anyhow};
use http::{Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use portolan_store::Begun;

use super::{CannotGoOn, Unreadable};
use crate::cli::admin::{KUBECONFIG, connect, message, no_answer};

/// A connection ended before the snapshot did.
#[derive(Debug, thiserror::Error)]
#[error("the connection was cut: {0}")]
pub(super) struct Cut(String);

/// How long a server that cut the connection may take to say why. What was sent already it must read again first.
const WHY: Duration = Duration::from_secs(60);

/// Asks the server, with the credentials that it left in its data directory.
pub(super) async fn download(
    data_dir: &Path,
    begun: Option<&Begun>,
    out: &mut (impl Write + Send),
) -> anyhow::Result<Result<(), CannotGoOn>> {
    let (client, server) = connect(&data_dir.join(KUBECONFIG)).await?;
    let response = ask(&client, begun).await.map_err(|error| unanswered(&server, &error))?;
    let code = response.status();
    if !code.is_success() {
        let why = message(response.into_body()).await;
        // The revision is forgotten, or one that this store never had.
        return match matches!(code, StatusCode::GONE | StatusCode::GATEWAY_TIMEOUT) && begun.is_some() {
            true => Ok(Err(CannotGoOn(why))),
            false => Err(refusal(data_dir, &server, code, &why)),
        };
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame.map_err(|error| Cut(error.to_string()))?.into_data() {
            out.write_all(&piece).context("the snapshot cannot be written")?;
        }
    }
    Ok(Ok(()))
}

async fn ask(client: &Client, begun: Option<&Begun>) -> Result<Response<Body>, kube::Error> {
    let rest = begun.map_or_else(String::new, |Begun { revision, taken, bytes, sha256 }| {
        format!("&revision={revision}&taken={taken}&bytes={bytes}&sha256={sha256}")
    });
    let request = http::Request::get(format!("/snapshot?damaged=skip{rest}")).body(Body::empty());
    client.send(request.map_err(kube::Error::HttpError)?).await
}

/// Why a connection was cut, when that will happen again: a server that cannot read on says so when it is asked for the rest.
pub(super) async fn why_cut(data_dir: &Path, begun: &Begun) -> Option<anyhow::Error> {
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

/// What is told of an answer that is no snapshot.
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
            Unreadable::in_part(data_dir, &format!("{what}; its log names what cannot be read")).into()
        }
        _ => anyhow!(what),
    }
}

/// What is told when no answer came.
fn unanswered(server: &Uri, error: &kube::Error) -> anyhow::Error {
    let told = no_answer(server, error);
    anyhow!(
        "{told}. Start it, or wait until it has started: what is in etcd, in memory or in use is saved by the running server only"
    )
}
