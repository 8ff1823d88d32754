//! Writers of the status of policies and physical clusters.

pub(crate) mod policy_status;
pub(crate) mod usage_status;
