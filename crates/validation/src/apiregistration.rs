//! The group apiregistration.k8s.io.

use portolan_types::quoted::go_quoted;

use super::{
    Errors, names,
    rules::{
        Rules,
        Step::{Is, Metadata, MetadataChange},
    },
    view::At,
};

pub(super) static RULES: &[(&str, Rules)] = &[(
    "APIService",
    Rules {
        create: &[Metadata, Is(service)],
        update: &[MetadataChange, Metadata, Is(service)],
        subresources: &[("status", &[MetadataChange, Is(status)])],
    },
)];

/// Highest priorities of a group and of a version in it.
const MAX_GROUP_PRIORITY: i64 = 20_000;
const MAX_VERSION_PRIORITY: i64 = 1000;

fn service(object: &At<'_>, errors: &mut Errors) {
    let (metadata, spec) = (object.child("metadata"), object.child("spec"));
    let (group, version) = (spec.text("group"), spec.text("version"));
    let (name, wanted) = (metadata.text("name"), format!("{version}.{group}"));
    if name != wanted && names::path_segment(name).is_empty() {
        let why = format!("must be `spec.version+\".\"+spec.group`: {}", go_quoted(&wanted));
        errors.invalid(metadata.path("name"), &name.into(), &why);
    }
    if group.is_empty() && version != "v1" {
        errors.required(spec.path("group"), "only v1 may have an empty group and it better be legacy kube");
    }
    spec.follows_if_set("group", names::dns_subdomain, errors);
    spec.follows("version", names::dns_1035_label, errors);
    priority(&spec, "groupPriorityMinimum", MAX_GROUP_PRIORITY, errors);
    priority(&spec, "versionPriority", MAX_VERSION_PRIORITY, errors);
    let (bundle, insecure) = (spec.text("caBundle"), spec.flag("insecureSkipTLSVerify"));
    let Some(service) = spec.present("service") else {
        if !bundle.is_empty() {
            let bytes = format!("{} bytes", decoded_len(bundle));
            errors.invalid(spec.path("caBundle"), &bytes.into(), "local APIServices may not have a caBundle");
        }
        if insecure {
            let why = "local APIServices may not have insecureSkipTLSVerify";
            errors.invalid(spec.path("insecureSkipTLSVerify"), &true.into(), why);
        }
        return;
    };
    service.needs("namespace", errors);
    service.needs("name", errors);
    if !(1..=65_535).contains(&service.number("port")) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        errors.invalid(service.path("port"), &service.number("port").into(), why);
    }
    if insecure && !bundle.is_empty() {
        let why = "may not be true if caBundle is present";
        errors.invalid(spec.path("insecureSkipTLSVerify"), &true.into(), why);
    }
}

/// Returns the number of bytes that base64 text decodes to.
fn decoded_len(text: &str) -> usize {
    text.trim_end_matches('=').len() * 3 / 4
}

fn priority(spec: &At<'_>, name: &str, most: i64, errors: &mut Errors) {
    let number = spec.number(name);
    if !(1..=most).contains(&number) {
        errors.invalid(spec.path(name), &number.into(), &format!("must be positive and less than {most}"));
    }
}

fn status(object: &At<'_>, errors: &mut Errors) {
    for condition in object.child("status").items("conditions") {
        condition.supported("status", &["True", "False", "Unknown"], errors);
    }
}
