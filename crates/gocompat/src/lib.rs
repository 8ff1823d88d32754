//! Parts of Go's standard library and of client-go whose exact behavior the Kubernetes API exposes: which texts are
//! accepted, how values are printed, and the texts of errors. Each part is implemented only here.
//!
//! - [`base64`]: `encoding/base64` as its standard decoder reads.
//! - [`ip`]: the errors of `net/netip` for addresses and prefixes.
//! - [`json`]: the HTML escapes of `encoding/json`.
//! - [`jsonpath`]: JSONPath of client-go, checked and evaluated.
//! - [`print`]: values as `fmt` prints them, and the names of their Go types.
//! - [`protowire`]: the writing half of protobuf's wire format.
//! - [`regexp`]: the syntax of `regexp`, on engines that are bounded in memory and time.
//! - [`time`]: `time.Parse` of RFC 3339, and durations as text.
//! - [`url`]: URLs and query strings of `net/url`.
//!
//! Quantities, durations, JSON numbers and quoted strings are in `portolan-types`, whose types need them. The crate
//! does no IO and knows no kind of object.

pub mod base64;
pub mod ip;
pub mod json;
pub mod jsonpath;
pub mod print;
pub mod protowire;
pub mod regexp;
pub mod time;
pub mod url;
