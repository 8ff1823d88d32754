//! Bodies of answers.

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

use crate::limits::{Charge, SMALL};

/// Why a body ends before its end. The connection, or its stream, is cut off then, so that nobody takes a part for the whole.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// A body that is there as a whole.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// No body.
pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that comes in pieces.
pub(crate) fn stream<E>(pieces: impl Stream<Item = Result<Bytes, E>> + Send + 'static) -> Body
where
    E: Into<BodyError> + 'static,
{
    StreamBody::new(pieces.map(|piece| piece.map(Frame::data).map_err(Into::into))).boxed_unsync()
}

/// Keeps `guard` while a body is being sent that is not there as a whole, and tells its size at the end to whom it matters. At `deadline` both are
/// given up, also when the client does not read: it holds no place for ever.
pub(crate) fn held(
    body: Body,
    guard: impl Send + 'static,
    deadline: Option<Instant>,
    size: impl FnOnce() -> Option<Histogram>,
) -> Body {
    if body.size_hint().exact().is_some() {
        return body;
    }
    let kept: Kept = Arc::new(Mutex::new(Some((body, Box::new(guard)))));
    let timer = deadline.map(|deadline| {
        let kept = kept.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep_until(deadline).await;
            kept.lock().take();
        }))
    });
    Held { kept, _timer: timer, sent: 0, size: size() }.boxed_unsync()
}

/// Keeps `charge` until a body that is there as a whole has been sent.
pub(crate) fn kept(body: Body, charge: Charge) -> Body {
    match body.size_hint().exact().is_some_and(|bytes| bytes <= SMALL as u64) {
        true => body,
        false => Charged { body, _charge: charge }.boxed_unsync(),
    }
}

struct Charged {
    body: Body,
    _charge: Charge,
}

impl http_body::Body for Charged {
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

/// A body and its guard; nothing after the deadline.
type Kept = Arc<Mutex<Option<(Body, Box<dyn Any + Send>)>>>;

struct Held {
    kept: Kept,
    _timer: Option<AbortOnDropHandle<()>>,
    sent: usize,
    size: Option<Histogram>,
}

impl Drop for Held {
    fn drop(&mut self) {
        // Not when the timer's task gets to run.
        self.kept.lock().take();
        self.size.iter().for_each(|size| size.observe(self.sent as f64));
    }
}

/// A body was not read in time.
#[derive(Debug, thiserror::Error)]
#[error("the answer was not read in time")]
struct Expired;

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = match self.kept.lock().as_mut() {
            Some((body, _)) => ready!(Pin::new(body).poll_frame(context)),
            None => Some(Err(Expired.into())),
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
        let held = |deadline| held(stream(pieces()), place.clone(), deadline, || Some(sizes.clone()));
        let whole = held(deadline).collect().await.unwrap().to_bytes();
        assert_eq!((sizes.get_sample_count(), sizes.get_sample_sum()), (1, 30.0));
        assert_eq!((whole.len(), Arc::strong_count(&place)), (30, 1), "read to the end");

        let mut stalled = held(deadline);
        assert!(stalled.frame().await.unwrap().is_ok());
        assert_eq!(Arc::strong_count(&place), 2);
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(Arc::strong_count(&place), 1);
        assert!(stalled.frame().await.unwrap().is_err(), "what comes late is no end");

        let dropped = held(None);
        drop(dropped);
        assert_eq!(Arc::strong_count(&place), 1);
    }
}
