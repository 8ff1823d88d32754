//! Messages that `build.rs` makes of `proto/tunnel.proto`.

#![allow(missing_docs, clippy::all, reason = "generated; proto/tunnel.proto describes them")]

include!(concat!(env!("OUT_DIR"), "/portolan.tunnel.v1.rs"));
