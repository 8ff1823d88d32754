//! Response formats of one request, and request formats of delete options.

use crate::step::{METADATA, PROTOBUF, RequestBody, Step, TABLE};
use crate::wire::{self, counted, nested};

/// Returns the request in every response format of a single object, and in one that does not exist.
pub(super) fn answers(section: &str, request: impl Fn() -> Step) -> Vec<Step> {
    let metadata = METADATA.replace("application/json", PROTOBUF);
    let forms = [("a table", TABLE), ("metadata", METADATA), ("metadata in protobuf", metadata.as_str())];
    [in_forms(section, &forms, &request), plain_answers(section, request)].concat()
}

/// Returns the request in every common response format, and in one that does not exist.
pub(super) fn plain_answers(section: &str, request: impl Fn() -> Step) -> Vec<Step> {
    let forms = [("YAML", "application/yaml"), ("protobuf", PROTOBUF), ("an unknown type", "application/xml")];
    in_forms(section, &forms, request)
}

fn in_forms(section: &str, forms: &[(&str, &str)], request: impl Fn() -> Step) -> Vec<Step> {
    let named = |(form, media): &(&str, &str)| Step {
        name: format!("{section} answered as {form}"),
        ..request().accept(media)
    };
    forms.iter().map(named).collect()
}

/// Encodes a body in protobuf.
pub(super) fn in_protobuf(step: Step, bytes: Vec<u8>) -> Step {
    let step = step.header("content-type", PROTOBUF);
    Step { body: RequestBody::Bytes(bytes), ..step }
}

/// Encodes delete options in protobuf: a grace period, a propagation policy, and a dry run.
pub(super) fn delete_options(grace: u64, propagation: &str) -> Vec<u8> {
    let fields = [counted(1, grace), nested(4, propagation.as_bytes()), nested(5, b"All")];
    wire::object("v1", "DeleteOptions", &fields.concat())
}

/// Encodes a Scale in protobuf.
pub(super) fn scale(name: &str, replicas: u64) -> Vec<u8> {
    let fields = [nested(1, &nested(1, name.as_bytes())), nested(2, &counted(1, replicas))];
    wire::object("autoscaling/v1", "Scale", &fields.concat())
}
