//! Aggregated API servers: an `APIService` names another API server for a group version, by a Service or by the
//! annotation `portolan.dev/url`. This folder reads APIServices, caches what their servers serve, and says which
//! headers pass in each direction; `handlers::aggregation` passes requests on.

mod api_service;
mod discovery;
mod headers;

pub(crate) use api_service::AggregatedVersion;
pub(crate) use discovery::{AggregatedResources, ResourceReader, api_group, by_group, group_discovery};
pub(crate) use headers::{answer_headers, request_headers};

/// Most `APIService`s of a workspace that are shown.
const MAX_VERSIONS: usize = 100;
