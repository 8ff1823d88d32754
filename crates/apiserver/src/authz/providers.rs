//! Right of a provider in the logical cluster of its export.

use portolan_types::{
    Status,
    apis::{self, ExportAddress},
};

use crate::{requester::Requester, routing::attributes::Attributes};

use super::{AuthorizationDecision, Authorizer as _, RbacAuthorizer};

/// Checks the right of a provider to use a verb in the view of an export. Returns the reason for audit events.
///
/// # Errors
/// 403 without the right, or without the export.
pub(crate) async fn authorize_provider(
    rbac: &RbacAuthorizer,
    address: &ExportAddress,
    requester: Requester<'_>,
    attributes: &Attributes,
) -> Result<String, Status> {
    let asked = Attributes {
        verb: attributes.verb.clone(),
        group: apis::GROUP.into(),
        version: "v1alpha2".into(),
        resource: apis::EXPORTS.into(),
        subresource: "content".into(),
        name: address.name.as_str().to_owned(),
        ..Attributes::default()
    };
    let known = requester.known_in(address.cluster);
    match rbac.authorize(address.cluster, &known, &asked).await? {
        AuthorizationDecision::Allowed(why) => Ok(why),
        AuthorizationDecision::Denied(why) => Err(attributes.denial(requester.user, &why)),
    }
}
