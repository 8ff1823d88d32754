//! Ends of sessions and streams.

use std::{io, sync::Arc};

use crate::wire::GoodbyeCode;

/// Reason that a session ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionEnd {
    /// The connection was closed.
    #[error("the connection was closed")]
    Closed,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Failed(Arc<str>),
    /// Nothing arrived for too long, not even an answer to a ping.
    #[error("the peer does not answer")]
    Silent,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Violation(&'static str),
    /// The peer said goodbye.
    #[error("the peer ended the session: {}", described(*.0, .1))]
    Left(GoodbyeCode, Arc<str>),
    /// This side ended the session.
    #[error("the session was ended: {}", described(*.0, .1))]
    Ended(GoodbyeCode, Arc<str>),
}

fn described(code: GoodbyeCode, reason: &str) -> String {
    let what = match code {
        GoodbyeCode::GoodbyeUnspecified => "no reason",
        GoodbyeCode::GoodbyeStopping => "stopping",
        GoodbyeCode::GoodbyeReplaced => "replaced by a newer session",
        GoodbyeCode::GoodbyeConnected => "connected already",
        GoodbyeCode::GoodbyeViolation => "protocol violation",
        GoodbyeCode::GoodbyeRevoked => "credential revoked",
    };
    if reason.is_empty() { what.to_owned() } else { format!("{what}: {reason}") }
}

impl SessionEnd {
    /// Returns the error of a read or write on a stream of the session.
    pub(super) fn of_stream(&self) -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionReset, format!("the tunnel is down: {self}"))
    }
}

/// Reason that a stream is not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No agent is connected.
    #[error("no agent is connected")]
    NotConnected,
    /// The session takes no further streams, or the last one has ended.
    #[error("the agent is disconnected: {0}")]
    Ended(SessionEnd),
    /// As many streams are open as a session may have.
    #[error("as many streams are open as a session may have")]
    Full,
}
