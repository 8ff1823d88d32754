//! Wrapper of the tasks of a worker.

use std::{fmt, sync::Arc};

use portolan_types::BoxFuture;

type Wrap = dyn Fn(BoxFuture<'static, ()>) -> BoxFuture<'static, ()> + Send + Sync;

/// Wrapper of each task of a worker, such as to poll it in the time slices of a tenant. By default tasks stay as they
/// are.
#[derive(Clone, Default)]
pub struct TaskWrapper(Option<Arc<Wrap>>);

impl TaskWrapper {
    /// Runs each task as `wrap` returns it.
    pub fn new(wrap: impl Fn(BoxFuture<'static, ()>) -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(wrap)))
    }

    /// Wraps a task for the runtime.
    pub(crate) fn wrap(&self, task: impl Future<Output = ()> + Send + 'static) -> BoxFuture<'static, ()> {
        match &self.0 {
            Some(wrap) => wrap(Box::pin(task)),
            None => Box::pin(task),
        }
    }
}

impl fmt::Debug for TaskWrapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskWrapper").field(&self.0.is_some()).finish()
    }
}
