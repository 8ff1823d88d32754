//! CertificateSigningRequest admission: approval and signing rights per signer, and subjects that are refused.

use portolan_types::Status;
use portolan_validation::requested_organizations;
use serde_json::Value;

use super::super::forbidden;
use crate::hooks::{AdmissionRequest, Operation};
use crate::{
    authz::{Authorizer as _, RbacAuthorizer},
    routing::attributes::Attributes,
};

const GROUP: &str = "certificates.k8s.io";
/// Signer of client certificates for the API.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const MASTERS: &str = "system:masters";

pub(super) async fn validate(
    rbac: &RbacAuthorizer,
    request: &AdmissionRequest<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let updates = request.operation == Operation::Update;
    match (&*request.kind.resource, request.subresource) {
        ("certificatesigningrequests", "approval") if updates => {
            let right = SignerRight { verb: "approve", signer: signer(old.unwrap_or(object)) };
            right.check(rbac, request, object).await
        }
        ("certificatesigningrequests", "status") if updates => {
            let part = |object: Option<&Value>, key: &str| object.and_then(|o| o.get("status")?.get(key)).cloned();
            let same = |key: &str| part(old, key) == part(Some(object), key);
            if same("certificate") && same("conditions") {
                Ok(())
            } else {
                let right = SignerRight { verb: "sign", signer: signer(old.unwrap_or(object)) };
                right.check(rbac, request, object).await
            }
        }
        ("certificatesigningrequests", "") if !updates => check_subject(request, object),
        _ => Ok(()),
    }
}

fn signer(object: &Value) -> &str {
    object.pointer("/spec/signerName").and_then(Value::as_str).unwrap_or_default()
}

/// Right to approve or sign requests of a signer.
struct SignerRight<'a> {
    verb: &'static str,
    signer: &'a str,
}

impl SignerRight<'_> {
    /// Checks the right on the signer, or on all signers of its domain.
    async fn check(&self, rbac: &RbacAuthorizer, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), Status> {
        let Self { verb, signer } = *self;
        let domain = signer.split('/').next().unwrap_or_default();
        for name in [signer.to_owned(), format!("{domain}/*")] {
            let asked = Attributes {
                verb: verb.into(),
                group: GROUP.into(),
                resource: "signers".into(),
                name,
                ..Attributes::default()
            };
            if rbac.authorize(request.cluster.id, request.user, &asked).await?.is_allowed() {
                return Ok(());
            }
        }
        let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
        Err(forbidden(request, Some(object), why))
    }
}

/// Refuses requests for certificates in `system:masters`.
fn check_subject(request: &AdmissionRequest<'_>, csr: &Value) -> Result<(), Status> {
    if signer(csr) != CLIENT_SIGNER {
        return Ok(());
    }
    let encoded = csr.pointer("/spec/request").and_then(Value::as_str).unwrap_or_default();
    let groups = requested_organizations(encoded)
        .map_err(|why| forbidden(request, Some(csr), format!("failed to parse CSR: {why}")))?;
    if groups.iter().any(|group| group == MASTERS) {
        let why = format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed");
        Err(forbidden(request, Some(csr), why))
    } else {
        Ok(())
    }
}
