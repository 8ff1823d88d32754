//! The fields by which each kind can be selected, and their paths in an object.

use std::borrow::Cow;

use portolan_types::object;
use serde_json::Value;

use portolan_gocompat::print::go_print;
use portolan_kinds::Kind;

/// A field that the kind cannot be selected by.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnknownField {
    /// Error of kinds with selectable fields of their own.
    #[error("field label not supported: {0}")]
    NotSupported(String),
    #[error("field label {0:?} not supported for Job")]
    OfJob(String),
    #[error("field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: {0}")]
    OfSlice(String),
    /// Error of kinds without them.
    #[error("{0:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")]
    OnlyMetadata(String),
}

/// Location of a field's value.
#[derive(Clone, Debug)]
pub(super) enum Label {
    /// `metadata.name`.
    Name,
    /// `metadata.namespace`.
    Namespace,
    /// First nonempty value at these JSON pointers.
    Text(&'static [&'static str]),
    /// A boolean; `false` where it is missing.
    Flag(&'static str),
    /// A number; `0` where it is missing.
    Number(&'static str),
    /// Value at these field names, as text.
    Custom(Box<str>),
}

impl Label {
    pub(super) fn value<'v>(&self, object: &'v Value) -> Cow<'v, str> {
        let at = |pointer: &str| object.pointer(pointer);
        match self {
            Self::Name => object::name(object).into(),
            Self::Namespace => object::namespace(object).into(),
            Self::Text(pointers) => {
                let texts = pointers.iter().filter_map(|pointer| at(pointer)?.as_str());
                texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default().into()
            }
            Self::Flag(pointer) => {
                let set = at(pointer).and_then(Value::as_bool).unwrap_or(false);
                if set { "true".into() } else { "false".into() }
            }
            Self::Number(pointer) => at(pointer).and_then(Value::as_i64).unwrap_or(0).to_string().into(),
            Self::Custom(path) => match path.split('.').try_fold(object, |at, name| at.get(name)) {
                None | Some(Value::Null) => "".into(),
                Some(Value::String(text)) => text.into(),
                Some(other) => go_print(other).into(),
            },
        }
    }
}

type Labels = &'static [(&'static str, Label)];

const POD_IP: Label = Label::Text(&["/status/podIPs/0/ip", "/status/podIP"]);

const POD: Labels = &[
    ("spec.nodeName", Label::Text(&["/spec/nodeName"])),
    ("spec.host", Label::Text(&["/spec/nodeName"])),
    ("spec.restartPolicy", Label::Text(&["/spec/restartPolicy"])),
    ("spec.schedulerName", Label::Text(&["/spec/schedulerName"])),
    ("spec.serviceAccountName", Label::Text(&["/spec/serviceAccountName"])),
    ("spec.hostNetwork", Label::Flag("/spec/hostNetwork")),
    ("status.phase", Label::Text(&["/status/phase"])),
    ("status.podIP", POD_IP),
    ("status.podIPs", POD_IP),
    ("status.nominatedNodeName", Label::Text(&["/status/nominatedNodeName"])),
];
const NODE: Labels = &[("spec.unschedulable", Label::Flag("/spec/unschedulable"))];
const REPLICATION_CONTROLLER: Labels = &[("status.replicas", Label::Number("/status/replicas"))];
const NAMESPACE: Labels = &[("status.phase", Label::Text(&["/status/phase"]))];
const SECRET: Labels = &[("type", Label::Text(&["/type"]))];
const SERVICE: Labels =
    &[("spec.clusterIP", Label::Text(&["/spec/clusterIP"])), ("spec.type", Label::Text(&["/spec/type"]))];
const JOB: Labels = &[("status.successful", Label::Number("/status/succeeded"))];
const SIGNER: Labels = &[("spec.signerName", Label::Text(&["/spec/signerName"]))];
const POD_CERTIFICATE: Labels = &[
    ("spec.signerName", Label::Text(&["/spec/signerName"])),
    ("spec.podName", Label::Text(&["/spec/podName"])),
    ("spec.nodeName", Label::Text(&["/spec/nodeName"])),
];
const RESOURCE_SLICE: Labels =
    &[("spec.nodeName", Label::Text(&["/spec/nodeName"])), ("spec.driver", Label::Text(&["/spec/driver"]))];

/// Events are stored in core form and read in both, so each field is looked for under both names.
const EVENT_SOURCE: Label =
    Label::Text(&["/source/component", "/deprecatedSource/component", "/reportingComponent", "/reportingController"]);
const EVENT_REPORTER: Label = Label::Text(&["/reportingComponent", "/reportingController"]);

macro_rules! event_labels {
    ($object:literal, $reporter:literal, $($more:expr),*) => {
        &[
            (concat!($object, ".kind"), Label::Text(&["/involvedObject/kind", "/regarding/kind"])),
            (concat!($object, ".namespace"), Label::Text(&["/involvedObject/namespace", "/regarding/namespace"])),
            (concat!($object, ".name"), Label::Text(&["/involvedObject/name", "/regarding/name"])),
            (concat!($object, ".uid"), Label::Text(&["/involvedObject/uid", "/regarding/uid"])),
            (concat!($object, ".apiVersion"), Label::Text(&["/involvedObject/apiVersion", "/regarding/apiVersion"])),
            (
                concat!($object, ".resourceVersion"),
                Label::Text(&["/involvedObject/resourceVersion", "/regarding/resourceVersion"]),
            ),
            (concat!($object, ".fieldPath"), Label::Text(&["/involvedObject/fieldPath", "/regarding/fieldPath"])),
            ($reporter, EVENT_REPORTER),
            ("reason", Label::Text(&["/reason"])),
            ("type", Label::Text(&["/type"])),
            $($more),*
        ]
    };
}

const CORE_EVENT: Labels = event_labels!("involvedObject", "reportingComponent", ("source", EVENT_SOURCE));
const EVENT: Labels = event_labels!("regarding", "reportingController",);

/// Returns the fields of a kind besides its metadata; `None` when it has none.
fn labels_of(kind: &Kind) -> Option<Labels> {
    let labels = match (&*kind.gvk.group, &*kind.gvk.kind) {
        ("", "Pod") => POD,
        ("", "Node") => NODE,
        ("", "ReplicationController") => REPLICATION_CONTROLLER,
        ("", "Namespace") => NAMESPACE,
        ("", "Secret") => SECRET,
        ("", "Service") => SERVICE,
        ("", "Event") => CORE_EVENT,
        ("events.k8s.io", "Event") => EVENT,
        ("batch", "Job") => JOB,
        ("certificates.k8s.io", "CertificateSigningRequest") => SIGNER,
        ("certificates.k8s.io", "PodCertificateRequest") => POD_CERTIFICATE,
        ("resource.k8s.io", "ResourceSlice") => RESOURCE_SLICE,
        _ => return None,
    };
    Some(labels)
}

pub(super) fn lookup(kind: &Kind, field: &str) -> Result<Label, UnknownField> {
    match field {
        "metadata.name" => return Ok(Label::Name),
        // kube-apiserver lists this field for each built-in kind with fields of its own, and for namespaced custom
        // resources.
        "metadata.namespace" if kind.namespaced || (kind.content.is_none() && labels_of(kind).is_none()) => {
            return Ok(Label::Namespace);
        }
        _ => {}
    }
    if let Some(content) = &kind.content {
        let own = content.selectable();
        return match own.iter().find(|own| ***own == *field) {
            Some(own) => Ok(Label::Custom(own.clone())),
            // Custom resources have the error of the function that kube-apiserver generates for each.
            None => Err(UnknownField::NotSupported(field.into())),
        };
    }
    let labels = labels_of(kind).ok_or_else(|| UnknownField::OnlyMetadata(field.into()))?;
    let found = labels.iter().find(|(name, _)| *name == field);
    found.map(|(_, label)| label.clone()).ok_or_else(|| match &*kind.gvk.kind {
        "Job" => UnknownField::OfJob(field.into()),
        "ResourceSlice" => UnknownField::OfSlice(field.into()),
        _ => UnknownField::NotSupported(field.into()),
    })
}
