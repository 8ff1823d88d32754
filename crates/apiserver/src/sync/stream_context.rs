//! Context of streams: watches, WebSockets, logs and snapshots, which outlive their requests.

use std::time::Duration;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Time in which streams send their last message.
const GOODBYE: Duration = Duration::from_secs(1);

/// Tasks that outlive their requests, and the signal that ends streams. Clones share both.
#[derive(Clone, Default)]
pub(crate) struct StreamContext {
    /// Cancelled when the server stops: `/readyz` fails, watches end.
    pub(crate) stopping: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl StreamContext {
    /// Waits for the tasks, for at most a second. A client that does not read in that time misses the last message.
    pub(crate) async fn wait(&self) {
        self.tasks.close();
        let _ = tokio::time::timeout(GOODBYE, self.tasks.wait()).await;
    }
}
