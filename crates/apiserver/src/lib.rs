//! HTTP to typed requests: one pipeline, discovery, list and watch.
