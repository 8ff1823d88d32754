//! `/snapshot`: the whole store as one stream, for backups of a server that is in use.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt as _;
use http::Response;
use portolan_store::{Begun, OnDamage, Out, Snapshot, SnapshotError, Store, go_on, save};
use portolan_types::{BoxFuture, Seams, Status};
use tokio::{sync::mpsc, time::Instant};

use crate::{ApiServer, Body, call::Call, encode, errors::status_for, limits::Place};

/// Pieces on their way to a client that is slower than the store. A piece is a page of objects.
const PIECES: usize = 2;

/// How long a client may take to read all of it. As long as that, history is not forgotten.
const LONGEST: Duration = Duration::from_secs(3600);

/// The way to the client.
struct Pipe(mpsc::Sender<Result<Bytes, SnapshotError>>);

impl Out for Pipe {
    fn put(&mut self, piece: Bytes) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move { self.0.send(Ok(piece)).await.map_err(|_| io::ErrorKind::BrokenPipe.into()) })
    }
}

/// What the client has of a snapshot that was broken off, when it asks for the rest.
fn begun(call: &Call) -> Result<Option<Begun>, Status> {
    let number = |name| -> Result<Option<u64>, Status> {
        let found = call.query.number(name)?.map(u64::try_from);
        found.transpose().map_err(|_| Status::bad_request(format!("{name} is below 0")))
    };
    let Some(revision) = number("revision")? else { return Ok(None) };
    let bytes = number("bytes")?.ok_or_else(|| Status::bad_request("bytes must say how much is there"))?;
    let (taken, sha256) = (call.query.text("taken").to_owned(), call.query.text("sha256").to_owned());
    Ok(Some(Begun { revision, taken, bytes, sha256 }))
}

/// Streams a snapshot, or what one lacks that was broken off. One that fails ends with an error, and without its own end, which
/// whoever reads it misses.
pub(super) async fn answer(api: &Arc<ApiServer>, call: &Call, place: Option<Place>) -> Result<Response<Body>, Status> {
    let place = place.ok_or_else(|| Status::internal("a stream without a place"))?;
    let begun = begun(call)?;
    let on_damage = match call.query.text("damaged") {
        "" => OnDamage::Fail,
        "skip" => OnDamage::Skip,
        other => return Err(Status::bad_request(format!("damaged can be \"skip\", and not {other:?}"))),
    };
    let (pieces, mut read) = mpsc::channel(PIECES);
    let (store, seams, stopping) = (api.store.clone(), api.seams.clone(), api.stopping.clone());
    api.streams.spawn(async move {
        let saved = tokio::select! {
            saved = send(&*store, &seams, (begun.as_ref(), on_damage), pieces.clone()) => saved,
            () = stopping.cancelled() => Err(SnapshotError::Io(io::ErrorKind::ConnectionAborted.into())),
        };
        match saved {
            Ok(snapshot) => tracing::info!(revision = snapshot.revision, objects = snapshot.objects, "snapshot taken"),
            Err(error) => {
                tracing::warn!(%error, "a snapshot was not finished");
                // An error means that the client has left.
                let _ = pieces.send(Err(error)).await;
            }
        }
    });
    // What fails before the first byte is told in words.
    let first = read.recv().await.transpose().map_err(|error| refusal(&error))?;
    let rest = futures::stream::poll_fn(move |context| read.poll_recv(context));
    let pieces = futures::stream::iter(first.map(Ok)).chain(rest);
    let (stream, size) = (encode::stream(pieces), || api.metrics.size(&call.labels));
    let body = encode::held(stream, place, Some(Instant::now() + LONGEST), size);
    Ok(encode::finish(200, "application/octet-stream", body))
}

/// Sends a snapshot, or the rest of one, for as long as somebody takes it: what a client has already is read without anything being
/// sent, and would be read to the end for nobody.
async fn send(
    store: &dyn Store,
    seams: &Seams,
    (begun, on_damage): (Option<&Begun>, OnDamage),
    pieces: mpsc::Sender<Result<Bytes, SnapshotError>>,
) -> Result<Snapshot, SnapshotError> {
    let mut pipe = Pipe(pieces.clone());
    let work = async {
        match begun {
            Some(begun) => go_on(store, begun, on_damage, &mut pipe).await,
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
    async fn a_snapshot_is_not_read_on_when_its_client_has_left() {
        let store = portolan_store::memory();
        for n in 0..2000 {
            let name = format!("n{n}").parse().unwrap();
            let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, GroupResource::new("", "namespaces"), name);
            let record = Record::of(&json!({"metadata": {"name": format!("n{n}")}}));
            store.commit(Transaction::one(key, Expect::Absent, Some(record))).await.unwrap();
        }
        // All that there is and more is said to be there: nothing is ever sent.
        let begun = Begun { revision: store.current().get(), taken: "t".into(), bytes: u64::MAX, sha256: "s".into() };
        let seams = Seams::system();
        let (pieces, read) = mpsc::channel(PIECES);
        let mut sending = Box::pin(send(&*store, &seams, (Some(&begun), OnDamage::Fail), pieces));
        assert!(futures::poll!(&mut sending).is_pending(), "it was read to the end at once");
        drop(read);
        let left = sending.await.unwrap_err();
        assert!(matches!(&left, SnapshotError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe), "{left}");
    }
}
