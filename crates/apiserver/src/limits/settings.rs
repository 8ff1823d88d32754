//! Settings of the limits.

use std::time::Duration;

/// Limits on clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Concurrent reads; one tenant (a workspace below `root`) may have three quarters of them.
    pub reads: usize,
    /// Concurrent writes, and as many whose bodies are being received; one tenant may have three quarters of each.
    pub writes: usize,
    /// Queued reads, and as many queued writes; when they are full, the longest queue is cut.
    pub waiting: usize,
    /// Longest wait of a queued request.
    pub patience: Duration,
    /// Concurrent watches; one tenant may have three quarters of them.
    pub watches: usize,
    /// Concurrent watches in one logical cluster; a user may have half of them.
    pub watches_per_cluster: usize,
    /// Concurrent logs and other streams of pods; one tenant may have three quarters of them.
    pub streams: usize,
    /// Concurrent streams in one logical cluster; a user may have half of them.
    pub streams_per_cluster: usize,
    /// Concurrent writes that wait for webhooks: fewer than `writes`, so that slow webhooks leave some to others.
    pub webhooks: usize,
    /// Concurrent writes of one tenant that wait for webhooks, and as many conversions.
    pub webhooks_per_tenant: usize,
    /// Bytes of bodies and responses held in memory, except those up to 64 KiB. One tenant may have three quarters of
    /// them, a user half. While a request is processed, its object is also held as a tree of several times its bytes.
    pub bytes: usize,
    /// Time for a conversion webhook.
    pub conversion: Duration,
    /// CustomResourceDefinitions in one logical cluster.
    pub definitions: usize,
    /// Bytes of all definitions of one logical cluster; serving them takes a multiple of this.
    pub definition_bytes: usize,
    /// Names of resources that a tenant defines.
    pub defined_names: usize,
    /// Objects that a workspace and all below it may store, unless it has its own limit.
    pub workspace_objects: u64,
    /// Stored bytes of these objects.
    pub workspace_bytes: u64,
    /// Admission policies, bindings and webhook configurations in one logical cluster, together; and as many
    /// LimitRanges and PriorityClasses.
    pub admission_objects: usize,
    /// Bytes of each of these without their statuses, which every write reads; this much is cached per logical
    /// cluster. Statuses may take as many bytes again.
    pub admission_bytes: usize,
    /// Webhooks in all configurations of one logical cluster.
    pub admission_webhooks: usize,
    /// Concurrent TLS connections. A newcomer replaces the one that has been idle for longest.
    pub connections: usize,
    /// Concurrent handshakes. A newcomer replaces one of them, silent ones first.
    pub handshakes: usize,
    /// Time for a read.
    pub read_timeout: Duration,
    /// Time for a write.
    pub write_timeout: Duration,
    /// Time for receiving a body.
    pub body_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            reads: 400,
            writes: 200,
            waiting: 2_000,
            patience: Duration::from_secs(15),
            watches: 100_000,
            watches_per_cluster: 10_000,
            streams: 4_000,
            streams_per_cluster: 400,
            webhooks: 150,
            webhooks_per_tenant: 50,
            bytes: 128 * 1024 * 1024,
            conversion: Duration::from_secs(30),
            definitions: 1024,
            definition_bytes: 64 * 1024 * 1024,
            defined_names: 2048,
            workspace_objects: 1_000_000,
            workspace_bytes: 4 << 30,
            admission_objects: 2048,
            admission_bytes: 4 * 1024 * 1024,
            admission_webhooks: 1024,
            connections: 10_000,
            handshakes: 512,
            read_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(34),
            body_timeout: Duration::from_secs(10),
        }
    }
}
