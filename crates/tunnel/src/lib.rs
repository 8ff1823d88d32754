//! The agent's reverse connection.
