//! Projected volumes: secrets, config maps, tokens and fields of the pod.

use std::collections::HashSet;

use serde_json::json;

use super::{
    super::super::{Errors, FieldError, Path, internal, metadata, names, selectors, view::At},
    environment, file_mode, local_path,
    volumes::key_to_path,
};

const FIELD_PATHS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

pub(super) fn downward_api(at: &At<'_>, errors: &mut Errors) {
    file_mode(at, "defaultMode", errors);
    for file in at.items("items") {
        downward_file(&file, &at.path, errors);
    }
}

/// Checks a file of the downward API; kube-apiserver reports its errors at the list.
fn downward_file(file: &At<'_>, path: &Path, errors: &mut Errors) {
    let at = At { value: file.value, path: path.clone() };
    at.needs("path", errors);
    local_path(at.text("path"), &at.path("path"), errors);
    if let Some(field) = at.present("fieldRef") {
        environment::field_ref(&field, &FIELD_PATHS, errors);
        if at.has("resourceFieldRef") {
            let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.invalid(&at.path, &"resource".into(), why);
        }
    } else if let Some(resource) = at.present("resourceFieldRef") {
        environment::resource_field_ref(&resource, true, errors);
    } else {
        errors.required(&at.path, "one of fieldRef and resourceFieldRef is required");
    }
    file_mode(&at, "mode", errors);
}

const SOURCES: [&str; 6] =
    ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];

pub(super) fn check(at: &At<'_>, errors: &mut Errors) {
    file_mode(at, "defaultMode", errors);
    let mut paths = Paths { taken: HashSet::new(), volume: at.path.clone() };
    for source in at.items("sources") {
        for name in ["secret", "configMap"] {
            if let Some(part) = source.present(name) {
                part.needs("name", errors);
                for item in part.items("items") {
                    key_to_path(&item, errors);
                    if !item.text("path").is_empty() {
                        paths.take(item.text("path"), part.text("name"), errors);
                    }
                }
            }
        }
        if let Some(part) = source.present("downwardAPI") {
            for file in part.items("items") {
                downward_file(&file, &part.path, errors);
                if !file.text("path").is_empty() {
                    paths.take(file.text("path"), file.text("path"), errors);
                }
            }
        }
        if let Some(token) = source.present("serviceAccountToken") {
            service_account_token(&token, &at.path, errors);
        }
        if let Some(bundle) = source.present("clusterTrustBundle") {
            trust_bundle(&bundle, errors);
            paths.take(bundle.text("path"), bundle.text("path"), errors);
        }
        if let Some(certificate) = source.present("podCertificate") {
            pod_certificate(&certificate, &mut paths, errors);
        }
        if SOURCES.iter().filter(|name| source.has(name)).count() > 1 {
            errors.forbidden(&source.path, "may not specify more than 1 volume type per source");
        }
    }
}

/// Paths inside a volume, each of which only one source may have.
struct Paths<'v> {
    taken: HashSet<&'v str>,
    volume: Path,
}

impl<'v> Paths<'v> {
    fn take(&mut self, path: &'v str, blamed: &str, errors: &mut Errors) {
        if !self.taken.insert(path) {
            errors.invalid(&self.volume, &blamed.into(), "conflicting duplicate paths");
        }
    }
}

fn service_account_token(token: &At<'_>, volume: &Path, errors: &mut Errors) {
    let (seconds, path) = (token.number("expirationSeconds"), token.path("expirationSeconds"));
    if seconds < 10 * 60 {
        errors.invalid(&path, &seconds.into(), "may not specify a duration less than 10 minutes");
    }
    if seconds > 1 << 32 {
        errors.invalid(&path, &seconds.into(), "may not specify a duration larger than 2^32 seconds");
    }
    match token.text("path") {
        "" => errors.required(volume.child("path"), ""),
        text => {
            let from = errors.len();
            local_path(text, &volume.child("path"), errors);
            errors.mark_tolerated(from, "path of a token");
        }
    }
}

fn trust_bundle(bundle: &At<'_>, errors: &mut Errors) {
    match (bundle.has("name"), bundle.has("signerName")) {
        (true, true) => {
            let value = internal::printed_value("ClusterTrustBundleProjection", bundle.value);
            let why = "only one of name and signerName may be used";
            errors.push(FieldError::invalid_shown(&bundle.path, &value, why));
        }
        (true, false) => {
            bundle.needs_because("name", "must be a valid object name", errors);
            let name = bundle.text("name");
            let signer = name.rsplit_once(':').map(|(signer, _)| signer.replace(':', "/")).unwrap_or_default();
            for why in names::trust_bundle(&signer, name) {
                let why = format!("not a valid clustertrustbundlename: {why}");
                errors.invalid(bundle.path("name"), &name.into(), &why);
            }
            if let Some(selector) = bundle.present("labelSelector") {
                let value = internal::printed_value("LabelSelector", selector.value);
                let why = "labelSelector must be unset if name is specified";
                errors.push(FieldError::invalid_shown(&selector.path, &value, why));
            }
        }
        (false, true) => {
            bundle.needs_because("signerName", "must be a valid signer name", errors);
            selectors::signer_name(bundle, "signerName", errors);
            selectors::selector(&bundle.child("labelSelector"), errors);
        }
        (false, false) => errors.required(&bundle.path, "either name or signerName must be specified"),
    }
    bundle.needs("path", errors);
    local_path(bundle.text("path"), &bundle.path("path"), errors);
}

const KEY_TYPES: [&str; 6] = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
/// Longest life of a certificate, and of one that Kubernetes' own signers sign; in seconds.
const MAX_LIFE: i64 = 91 * 24 * 60 * 60;
const MAX_OWN_LIFE: i64 = 24 * 60 * 60;

fn pod_certificate<'v>(at: &At<'v>, paths: &mut Paths<'v>, errors: &mut Errors) {
    selectors::signer_name(at, "signerName", errors);
    let annotations = at.child("userAnnotations");
    for key in annotations.value.as_object().into_iter().flat_map(|map| map.keys()) {
        selectors::domain_prefixed_key(&annotations.path, &key.to_lowercase(), errors);
    }
    metadata::annotations_size(&annotations.path, annotations.value, errors);
    at.supported("keyType", &KEY_TYPES, errors);
    if let Some(seconds) = at.int("maxExpirationSeconds") {
        let path = at.path("maxExpirationSeconds");
        if seconds < 3600 {
            errors.invalid(&path, &json!(seconds), "if provided, maxExpirationSeconds must be >= 3600");
        }
        let host = at.text("signerName").split('/').next().unwrap_or_default();
        let own = host == "kubernetes.io" || host.ends_with(".kubernetes.io");
        let most = if own { MAX_OWN_LIFE } else { MAX_LIFE };
        if seconds > most {
            let why = format!("if provided, maxExpirationSeconds must be <= {most}");
            errors.invalid(&path, &json!(seconds), &why);
        }
    }
    let files = ["credentialBundlePath", "keyPath", "certificateChainPath"];
    for name in files.into_iter().filter(|name| !at.text(name).is_empty()) {
        local_path(at.text(name), &at.path(name), errors);
        paths.take(at.text(name), at.text(name), errors);
    }
    if files.iter().all(|name| at.text(name).is_empty()) {
        let why = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.required(&at.path, why);
    }
}
