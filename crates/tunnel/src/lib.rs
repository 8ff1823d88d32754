//! Tunnel to physical clusters that the server cannot reach: an agent beside the physical cluster dials out, and the
//! server opens byte streams through its connection.
//!
//! - [`wire`]: the frames, as `proto/tunnel.proto` has them, and the limits of the protocol.
//! - [`session`]: streams over the frames of one connection, with flow control.
//! - [`gateway`]: the server's end of all tunnels.
//! - [`agent`]: the agent: dialing, its credential, and the reverse proxy to the physical cluster's API server.
//!
//! The crate does not know who may connect: the caller of the gateway authenticates agents. It knows no Kubernetes
//! client; the agent's caller gives it the service that reaches the physical cluster.

pub mod agent;
pub mod gateway;
pub mod session;
pub mod wire;
