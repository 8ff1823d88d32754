//! Context of streams: watches, WebSockets, logs and snapshots, which outlive their requests.

use std::time::Duration;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Time for streams to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// Tasks that outlive their requests, and the signal that ends streams. Clones share both.
#[derive(Clone, Default)]
pub(crate) struct StreamContext {
    /// Cancelled when the server stops: `/readyz` fails, watches end.
    pub(crate) stopping: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl StreamContext {
    /// Waits for the tasks, for a second at most: a client that does not read the goodbye does not get it.
    pub(crate) async fn wait(&self) {
        self.tasks.close();
        let _ = tokio::time::timeout(GOODBYE, self.tasks.wait()).await;
    }
}
