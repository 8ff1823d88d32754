//! Who may approve and sign for which signer; and whom nobody may ask a certificate for.

use portolan_machinery::validation::requested_organizations;
use portolan_types::Status;
use serde_json::Value;

use super::super::{Operation, Request, forbidden};
use crate::{ApiServer, attributes::Attributes, authz::Authorizer as _};

const GROUP: &str = "certificates.k8s.io";
/// Signs what clients of the API identify themselves with.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const MASTERS: &str = "system:masters";

pub(super) async fn validate(
    api: &ApiServer,
    request: &Request<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let updates = request.operation == Operation::Update;
    match (&*request.kind.resource, request.subresource) {
        ("certificatesigningrequests", "approval") if updates => {
            let signer = signer(old.unwrap_or(object));
            may(api, request, object, "approve", signer).await
        }
        ("certificatesigningrequests", "status") if updates => {
            let part = |object: Option<&Value>, key: &str| object.and_then(|o| o.get("status")?.get(key)).cloned();
            let same = |key: &str| part(old, key) == part(Some(object), key);
            match same("certificate") && same("conditions") {
                true => Ok(()),
                false => may(api, request, object, "sign", signer(old.unwrap_or(object))).await,
            }
        }
        ("certificatesigningrequests", "") if !updates => check_subject(request, object),
        _ => Ok(()),
    }
}

fn signer(object: &Value) -> &str {
    object.pointer("/spec/signerName").and_then(Value::as_str).unwrap_or_default()
}

/// The right on the signer itself, or on all signers of its domain.
async fn may(api: &ApiServer, request: &Request<'_>, object: &Value, verb: &str, signer: &str) -> Result<(), Status> {
    let domain = signer.split('/').next().unwrap_or_default();
    for name in [signer.to_owned(), format!("{domain}/*")] {
        let asked = Attributes {
            verb: verb.into(),
            group: GROUP.into(),
            resource: "signers".into(),
            name,
            ..Attributes::default()
        };
        if api.rbac.authorize(request.cluster.id, request.user, &asked).await?.is_allowed() {
            return Ok(());
        }
    }
    Err(forbidden(request, Some(object), format!("user not permitted to {verb} requests with signerName {signer:?}")))
}

/// Nobody becomes a master by certificate.
fn check_subject(request: &Request<'_>, csr: &Value) -> Result<(), Status> {
    if signer(csr) != CLIENT_SIGNER {
        return Ok(());
    }
    let encoded = csr.pointer("/spec/request").and_then(Value::as_str).unwrap_or_default();
    let groups = requested_organizations(encoded)
        .map_err(|why| forbidden(request, Some(csr), format!("failed to parse CSR: {why}")))?;
    match groups.iter().any(|group| group == MASTERS) {
        true => {
            let why = format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed");
            Err(forbidden(request, Some(csr), why))
        }
        false => Ok(()),
    }
}
