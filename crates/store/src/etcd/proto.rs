//! Messages that `build.rs` makes of `proto/etcd.proto`.

#![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated; etcd documents it")]

include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
