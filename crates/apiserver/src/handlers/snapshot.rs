//! `/snapshot`: the whole store as one stream, for backups of a server that is in use.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;
use portolan_store::{Out, SnapshotError, save};
use portolan_types::{BoxFuture, Status};
use tokio::{sync::mpsc, time::Instant};

use crate::{ApiServer, Body, call::Call, encode, limits::Place};

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

/// Streams a snapshot. One that fails ends with an error, and without its own end, which whoever reads it misses.
pub(super) fn answer(api: &Arc<ApiServer>, call: &Call, place: Option<Place>) -> Result<Response<Body>, Status> {
    let place = place.ok_or_else(|| Status::internal("a stream without a place"))?;
    let (pieces, mut read) = mpsc::channel(PIECES);
    let (store, seams, stopping) = (api.store.clone(), api.seams.clone(), api.stopping.clone());
    api.streams.spawn(async move {
        let mut pipe = Pipe(pieces);
        let saved = tokio::select! {
            saved = save(&*store, &seams, &mut pipe) => saved,
            () = stopping.cancelled() => Err(SnapshotError::Io(io::ErrorKind::ConnectionAborted.into())),
        };
        match saved {
            Ok(snapshot) => tracing::info!(revision = snapshot.revision, objects = snapshot.objects, "snapshot taken"),
            Err(error) => {
                tracing::warn!(%error, "a snapshot was not finished");
                // An error means that the client has left.
                let _ = pipe.0.send(Err(error)).await;
            }
        }
    });
    let pieces = futures::stream::poll_fn(move |context| read.poll_recv(context));
    let (stream, size) = (encode::stream(pieces), || api.metrics.size(&call.labels));
    let body = encode::held(stream, place, Some(Instant::now() + LONGEST), size);
    Ok(encode::finish(200, "application/octet-stream", body))
}
