//! Addresses of views: `/services/apiexport/<logical cluster>/<export>/clusters/<* or id>/…`, and the flattened
//! `/services/flattened/<logical cluster>/<export>/…`.

use portolan_types::{LogicalClusterId, ObjectName, apis::ExportAddress};

/// Segments of an address, with `clusters` and its target.
pub(crate) const SEGMENTS: usize = 6;

/// Segments of the address of a flattened view.
pub(crate) const FLATTENED_SEGMENTS: usize = 4;

/// Returns the export of the flattened view that the first segments of a path address.
pub(crate) fn flattened_export_of(segments: &[String]) -> Option<ExportAddress> {
    match segments {
        [services, kind, cluster, name, ..] if services == "services" && kind == "flattened" => {
            let (cluster, name) = (cluster.parse::<LogicalClusterId>().ok()?, name.parse::<ObjectName>().ok()?);
            Some(ExportAddress { cluster, name })
        }
        _ => None,
    }
}

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
