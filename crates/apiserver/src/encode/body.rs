//! Response bodies.

use std::{
    any::Any,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use parking_lot::Mutex;
use prometheus::Histogram;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::limits::{MemoryCharge, UNCHARGED_BYTES};

/// Error that ends a body early. The connection or its stream is then cut off, so that no client takes the part for the
/// whole.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Response body.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// Returns a body that is complete in memory.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Returns an empty body.
pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Returns a body that is sent in pieces.
pub(crate) fn stream<E>(pieces: impl Stream<Item = Result<Bytes, E>> + Send + 'static) -> Body
where
    E: Into<BodyError> + 'static,
{
    StreamBody::new(pieces.map(|piece| piece.map(Frame::data).map_err(Into::into))).boxed_unsync()
}

/// Keeps `guard` while a streamed body is sent, and observes its size at the end. Both are dropped at `deadline`, even
/// if the client does not read, so that a stalled client does not hold a permit forever.
pub(crate) fn with_guard(
    body: Body,
    guard: impl Send + 'static,
    deadline: Option<Instant>,
    size: impl FnOnce() -> Option<Histogram>,
) -> Body {
    if body.size_hint().exact().is_some() {
        return body;
    }
    let kept: SharedBody = Arc::new(Mutex::new(Some((body, Box::new(guard)))));
    let timer = deadline.map(|deadline| {
        let kept = kept.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep_until(deadline).await;
            kept.lock().take();
        }))
    });
    GuardedBody { kept, _timer: timer, sent: 0, size: size() }.boxed_unsync()
}

/// Keeps `charge` until a complete body has been sent.
pub(crate) fn with_charge(body: Body, charge: MemoryCharge) -> Body {
    if body.size_hint().exact().is_some_and(|bytes| bytes <= UNCHARGED_BYTES as u64) {
        body
    } else {
        ChargedBody { body, _charge: charge }.boxed_unsync()
    }
}

struct ChargedBody {
    body: Body,
    _charge: MemoryCharge,
}

impl http_body::Body for ChargedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Body and its guard; `None` after the deadline.
type SharedBody = Arc<Mutex<Option<(Body, Box<dyn Any + Send>)>>>;

struct GuardedBody {
    kept: SharedBody,
    _timer: Option<AbortOnDropHandle<()>>,
    sent: usize,
    size: Option<Histogram>,
}

impl Drop for GuardedBody {
    fn drop(&mut self) {
        // The deadline has passed even if the timer task has not run yet.
        self.kept.lock().take();
        self.size.iter().for_each(|size| size.observe(self.sent as f64));
    }
}

/// Error of a body that was not read before its deadline.
#[derive(Debug, thiserror::Error)]
#[error("the answer was not read in time")]
struct ReadTimeout;

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = match self.kept.lock().as_mut() {
            Some((body, _)) => ready!(Pin::new(body).poll_frame(context)),
            None => Some(Err(ReadTimeout.into())),
        };
        if let Some(Ok(frame)) = &frame {
            self.sent += frame.data_ref().map_or(0, Bytes::len);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.kept.lock().as_ref().is_some_and(|(body, _)| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_not_read_gives_its_place_back() {
        let place = Arc::new(());
        let pieces = || futures::stream::iter((0..3).map(|n| Ok::<_, BodyError>(Bytes::from(vec![n; 10]))));
        let deadline = Some(Instant::now() + Duration::from_secs(60));
        let sizes = Histogram::with_opts(prometheus::HistogramOpts::new("sizes", "Bytes.")).unwrap();
        let held = |deadline| with_guard(stream(pieces()), place.clone(), deadline, || Some(sizes.clone()));
        let whole = held(deadline).collect().await.unwrap().to_bytes();
        assert_eq!((sizes.get_sample_count(), sizes.get_sample_sum()), (1, 30.0));
        assert_eq!((whole.len(), Arc::strong_count(&place)), (30, 1), "read to the end");

        let mut stalled = held(deadline);
        assert!(stalled.frame().await.unwrap().is_ok());
        assert_eq!(Arc::strong_count(&place), 2);
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(Arc::strong_count(&place), 1);
        assert!(stalled.frame().await.unwrap().is_err(), "late data does not end the body");

        let dropped = held(None);
        drop(dropped);
        assert_eq!(Arc::strong_count(&place), 1);
    }
}
