//! Pages of the web console: plain ES modules, one style sheet and an icon, compressed at build time and embedded.
//!
//! The pages are a client of Kubernetes' API. This crate does not depend on the server that serves them. The modules
//! below `pages/vendor` are committed; `vendor.sh` updates them, and a build downloads nothing.

/// File that a browser loads.
#[derive(Clone, Copy, Debug)]
pub struct ConsolePage {
    /// Path below `/ui/`.
    pub path: &'static str,
    /// Media type.
    pub media_type: &'static str,
    /// Hash of the content, quoted.
    pub etag: &'static str,
    /// Content, compressed by gzip.
    pub gzip: &'static [u8],
}

/// All files, sorted by path.
pub static PAGES: &[ConsolePage] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));
