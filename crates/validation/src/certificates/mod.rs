//! The group certificates.k8s.io.

mod pair;
mod pem;
mod x509;

pub use pair::pair_fault;
pub use x509::{certificate_ends, requested_organizations};

use std::collections::HashSet;

use super::{
    Errors, FieldError, internal,
    rules::{
        Rules,
        Step::{Given, Metadata, MetadataChange},
    },
    selectors,
    view::At,
};

pub(super) static RULES: &[(&str, Rules)] = &[(
    "CertificateSigningRequest",
    Rules {
        create: &[Metadata, Given(|_, new, errors| request(None, new, errors))],
        update: &[Metadata, Given(|old, new, errors| changed(old, new, Through::Object, errors)), MetadataChange],
        subresources: &[
            (
                "status",
                &[Metadata, Given(|old, new, errors| changed(old, new, Through::Status, errors)), MetadataChange],
            ),
            (
                "approval",
                &[Metadata, Given(|old, new, errors| changed(old, new, Through::Approval, errors)), MetadataChange],
            ),
        ],
    },
)];

/// Endpoint of a change, which determines the fields that may change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Through {
    Object,
    Status,
    Approval,
}

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// Signer from the time when Kubernetes had only one.
const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
/// Shortest duration that a request may ask for, in seconds.
const MIN_SECONDS: i64 = 600;

/// Validates a request; errors that the old request has too are tolerated.
fn request(old: Option<&At<'_>>, new: &At<'_>, errors: &mut Errors) {
    let spec = new.child("spec");
    let before = |rule: fn(&At<'_>) -> bool| old.is_some_and(rule);
    if let Err(why) = x509::check_request(spec.text("request")) {
        errors.invalid(spec.path("request"), spec.get("request"), &why);
    }
    if spec.count("usages") == 0 {
        errors.required(spec.path("usages"), "");
    }
    let unknown = |usage: &At<'_>| !USAGES.contains(&usage.as_text());
    if !before(|old| old.child("spec").items("usages").any(|usage| !USAGES.contains(&usage.as_text()))) {
        for usage in spec.items("usages").filter(unknown) {
            errors.not_supported(&usage.path, usage.value, &USAGES);
        }
    }
    let repeated = |at: &At<'_>| repeated(at.child("spec").items("usages"), |usage| usage.as_text()).next().is_some();
    if !old.is_some_and(repeated) {
        for usage in self::repeated(spec.items("usages"), |usage| usage.as_text()) {
            errors.duplicate(&usage.path, usage.value);
        }
    }
    if spec.text("signerName") == LEGACY_SIGNER && !before(|old| old.child("spec").text("signerName") == LEGACY_SIGNER)
    {
        let why = "the legacy signerName is not allowed via this API version";
        errors.invalid(spec.path("signerName"), spec.get("signerName"), why);
    } else {
        selectors::signer_name(&spec, "signerName", errors);
    }
    if spec.int("expirationSeconds").is_some_and(|seconds| seconds < MIN_SECONDS) {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.invalid(spec.path("expirationSeconds"), spec.get("expirationSeconds"), why);
    }
    let status = new.child("status");
    conditions(old, &status, errors);
    let same = old.is_some_and(|old| certificate(old) == certificate(new));
    let was_wrong = old.is_some_and(|old| x509::check_certificates(certificate(old)).is_err());
    if let Err(why) = x509::check_certificates(certificate(new))
        && !same
        && !was_wrong
    {
        errors.invalid(status.path("certificate"), &"<certificate data>".into(), &why);
    }
}

fn certificate<'v>(object: &At<'v>) -> &'v str {
    object.child("status").text("certificate")
}

/// Returns the elements that have the key of an earlier one.
fn repeated<'v, 'k>(all: impl Iterator<Item = At<'v>>, key: fn(&At<'v>) -> &'k str) -> impl Iterator<Item = At<'v>> {
    let mut taken = HashSet::new();
    all.filter(move |one| !taken.insert(key(one)))
}

fn conditions(old: Option<&At<'_>>, status: &At<'_>, errors: &mut Errors) {
    let types: Vec<&str> = old
        .map(|old| old.child("status").items("conditions").map(|condition| condition.text("type")).collect())
        .unwrap_or_default();
    let before: HashSet<&str> = types.iter().copied().collect();
    let both = before.contains(&"Approved") && before.contains(&"Denied");
    let doubled = before.len() < types.len();
    let (path, mut taken) = (status.path("conditions"), HashSet::new());
    for condition in status.items("conditions") {
        let kind = condition.text("type");
        if kind.is_empty() && !before.contains(&"") {
            errors.required(condition.path("type"), "");
        }
        match kind {
            "Approved" | "Denied" | "Failed" => condition.one_of("status", &["True"], errors),
            _ => condition.one_of("status", &["False", "True", "Unknown"], errors),
        }
        let other = match kind {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !both && !other.is_empty() && taken.contains(&other) {
            errors.invalid(&path, &kind.into(), "Approved and Denied conditions are mutually exclusive");
        }
        if !taken.insert(kind) && !doubled {
            errors.duplicate(condition.path("type"), &kind.into());
        }
    }
}

fn changed(old: Option<&At<'_>>, new: &At<'_>, through: Through, errors: &mut Errors) {
    request(old, new, errors);
    let Some(old) = old else { return };
    let path = new.path("status").child("conditions");
    let of = |object: &At<'_>, kind: &str| -> Vec<serde_json::Value> {
        let all = object.child("status").items("conditions");
        all.filter(|condition| condition.text("type") == kind).map(|condition| condition.value.clone()).collect()
    };
    for kind in ["Approved", "Denied", "Failed"] {
        if of(new, kind).len() < of(old, kind).len() {
            errors.forbidden(&path, &format!("updates may not remove a condition of type {kind:?}"));
        }
    }
    for kind in ["Approved", "Denied"].into_iter().filter(|_| through != Through::Approval) {
        let (before, after) = (of(old, kind), of(new, kind));
        if after.len() > before.len() {
            errors.forbidden(&path, &format!("updates may not add a condition of type {kind:?}"));
        } else if after.len() == before.len() && after != before {
            let difference = internal::diff("[]CertificateSigningRequestCondition", &before.into(), &after.into());
            errors.push(FieldError::forbidden(
                &path,
                &format!("updates may not modify a condition of type {kind:?}\n{difference}"),
            ));
        }
    }
    if certificate(old) != certificate(new) {
        let path = new.path("status").child("certificate");
        if through != Through::Status {
            errors.forbidden(path, "updates may not set certificate content");
        } else if !certificate(old).is_empty() {
            errors.forbidden(path, "updates may not modify existing certificate content");
        }
    }
}
