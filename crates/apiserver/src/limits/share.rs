//! Work of a tenant outside of its requests, such as a simulated physical cluster.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::scheduler::{SliceRequest, TaskFlow};
use crate::{Body, BodyError};

/// Share of the processors that belongs to one tenant: work is polled in the tenant's time slices, like its requests.
#[derive(Clone)]
pub struct FairShare(TaskFlow);

impl FairShare {
    pub(super) fn new(task_flow: TaskFlow) -> Self {
        Self(task_flow)
    }

    /// Returns `work`, polled in time slices of the tenant even while it serves requests of others.
    pub fn run<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        self.0.detached().work(work)
    }

    /// Returns `body`, whose frames are produced in time slices of the tenant.
    pub fn stream(&self, body: Body) -> Body {
        Body::new(ChargedBody { body, dispatch: self.0.detached().dispatch() })
    }
}

/// Body whose frames are produced in time slices.
struct ChargedBody {
    body: Body,
    dispatch: SliceRequest,
}

impl http_body::Body for ChargedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { body, dispatch } = &mut *self;
        dispatch.poll(context, |context| Pin::new(body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
