//! Addresses of views: `/services/apiexport/<logical cluster>/<export>/clusters/<* or id>/…`.

use portolan_types::{LogicalClusterId, ObjectName, apis::ExportAddress};

/// Segments of an address, with `clusters` and its target.
pub(crate) const SEGMENTS: usize = 6;

/// Returns the export of the view that the first segments of a path address; `None` if they address no view.
pub(crate) fn export_of(segments: &[String]) -> Option<ExportAddress> {
    match segments {
        [services, kind, cluster, name, clusters, _, ..]
            if services == "services" && kind == "apiexport" && clusters == "clusters" =>
        {
            let (cluster, name) = (cluster.parse::<LogicalClusterId>().ok()?, name.parse::<ObjectName>().ok()?);
            Some(ExportAddress { cluster, name })
        }
        _ => None,
    }
}
