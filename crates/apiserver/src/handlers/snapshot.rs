//! `/snapshot`: the whole store as one stream, for backups of a running server.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt as _;
use http::Response;
use portolan_store::{
    OnDamage, PartialSnapshot, SnapshotError, SnapshotSink, SnapshotSummary, Store, resume_save, save,
};
use portolan_types::{BoxFuture, Seams, Status};
use tokio::{sync::mpsc, time::Instant};

use crate::{ApiServer, Body, encode, errors::status_for, limits::Permit, request::RequestContext};

/// Capacity of the channel to the client, in pieces. A piece is a page of objects.
const CHANNEL_CAPACITY: usize = 2;

/// Longest duration of a download. History is retained for that time.
const MAX_DOWNLOAD: Duration = Duration::from_secs(3600);

/// Writer that sends the pieces of a snapshot to the client.
struct SnapshotSender(mpsc::Sender<Result<Bytes, SnapshotError>>);

impl SnapshotSink for SnapshotSender {
    fn put(&mut self, piece: Bytes) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move { self.0.send(Ok(piece)).await.map_err(|_| io::ErrorKind::BrokenPipe.into()) })
    }
}

/// Parses how much of an interrupted snapshot the client has.
fn resume_point(call: &RequestContext) -> Result<Option<PartialSnapshot>, Status> {
    let number = |name| -> Result<Option<u64>, Status> {
        let found = call.query.number(name)?.map(u64::try_from);
        found.transpose().map_err(|_| Status::bad_request(format!("{name} is below 0")))
    };
    let Some(revision) = number("revision")? else { return Ok(None) };
    let bytes = number("bytes")?.ok_or_else(|| Status::bad_request("bytes must say how much is there"))?;
    let (taken, sha256) = (call.query.text("taken").to_owned(), call.query.text("sha256").to_owned());
    Ok(Some(PartialSnapshot { revision, taken, bytes, sha256 }))
}

/// Streams a snapshot, or the rest of an interrupted one. A failed snapshot ends with an error and without its trailer,
/// so the reader notices.
pub(super) async fn answer(
    api: &Arc<ApiServer>,
    call: &RequestContext,
    permit: Option<Permit>,
) -> Result<Response<Body>, Status> {
    let permit = permit.ok_or_else(|| Status::internal("a stream without a place"))?;
    let resume_point = resume_point(call)?;
    let on_damage = match call.query.text("damaged") {
        "" => OnDamage::Fail,
        "skip" => OnDamage::Skip,
        other => return Err(Status::bad_request(format!("damaged can be \"skip\", and not {other:?}"))),
    };
    let (pieces, mut read) = mpsc::channel(CHANNEL_CAPACITY);
    // Encrypted objects stay encrypted.
    let store = api.config.stored.clone().unwrap_or_else(|| api.storage.store.clone());
    let (seams, stopping) = (api.seams().clone(), api.streams.stopping.clone());
    api.streams.tasks.spawn(async move {
        let saved = tokio::select! {
            saved = send(&*store, &seams, SnapshotStart { resume_point: resume_point.as_ref(), on_damage }, pieces.clone()) => saved,
            () = stopping.cancelled() => Err(SnapshotError::Io(io::ErrorKind::ConnectionAborted.into())),
        };
        match saved {
            Ok(snapshot) => tracing::info!(revision = snapshot.revision, objects = snapshot.objects, "snapshot taken"),
            Err(error) => {
                tracing::warn!(%error, "a snapshot was not finished");
                // A send error means that the client has left.
                let _ = pieces.send(Err(error)).await;
            }
        }
    });
    // A failure before the first byte is answered with a `Status`.
    let first = read.recv().await.transpose().map_err(|error| refusal(&error))?;
    let rest = futures::stream::poll_fn(move |context| read.poll_recv(context));
    let pieces = futures::stream::iter(first.map(Ok)).chain(rest);
    let (stream, size) = (encode::stream(pieces), || api.metrics.size(&call.labels));
    let body = encode::with_guard(stream, permit, Some(Instant::now() + MAX_DOWNLOAD), size);
    Ok(encode::finish(200, "application/octet-stream", body))
}

/// Start of a snapshot.
struct SnapshotStart<'a> {
    /// Part that the client has already.
    resume_point: Option<&'a PartialSnapshot>,
    on_damage: OnDamage,
}

/// Sends a snapshot or the rest of one, and stops when the client leaves: to find the start of the rest, the store is
/// read without sending anything.
async fn send(
    store: &dyn Store,
    seams: &Seams,
    from: SnapshotStart<'_>,
    pieces: mpsc::Sender<Result<Bytes, SnapshotError>>,
) -> Result<SnapshotSummary, SnapshotError> {
    let SnapshotStart { resume_point, on_damage } = from;
    let mut pipe = SnapshotSender(pieces.clone());
    let work = async {
        match resume_point {
            Some(resume_point) => resume_save(store, resume_point, on_damage, &mut pipe).await,
            None => save(store, seams, on_damage, &mut pipe).await,
        }
    };
    tokio::select! {
        biased;
        () = pieces.closed() => Err(SnapshotError::Io(io::ErrorKind::BrokenPipe.into())),
        saved = work => saved,
    }
}

fn refusal(error: &SnapshotError) -> Status {
    match error {
        SnapshotError::Store(error) => status_for(error),
        SnapshotError::Other(_) => Status::expired(error.to_string()),
        other => Status::internal(other),
    }
}

#[cfg(test)]
mod tests {
    use portolan_store::{Expect, Transaction};
    use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_snapshot_ends_when_its_client_leaves() {
        let store = portolan_store::memory();
        for n in 0..2000 {
            let name = format!("n{n}").parse().unwrap();
            let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, GroupResource::new("", "namespaces"), name);
            let record = Record::of(&json!({"metadata": {"name": format!("n{n}")}}));
            store.commit(Transaction::one(key, Expect::Absent, Some(record))).await.unwrap();
        }
        // The client claims to have more bytes than exist, so nothing is sent.
        let resume_point =
            PartialSnapshot { revision: store.current().get(), taken: "t".into(), bytes: u64::MAX, sha256: "s".into() };
        let seams = Seams::system();
        let (pieces, read) = mpsc::channel(CHANNEL_CAPACITY);
        let mut sending = Box::pin(send(
            &*store,
            &seams,
            SnapshotStart { resume_point: Some(&resume_point), on_damage: OnDamage::Fail },
            pieces,
        ));
        assert!(futures::poll!(&mut sending).is_pending(), "it was read to the end at once");
        drop(read);
        let left = sending.await.unwrap_err();
        assert!(matches!(&left, SnapshotError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe), "{left}");
    }
}
