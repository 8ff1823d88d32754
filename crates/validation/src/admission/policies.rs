//! Admission policies.

use portolan_gocompat::jsonpath;
use std::collections::HashSet;

use portolan_cel::policy::PolicyCompiler;

use super::{
    super::{
        Errors, FieldError, internal, metadata, names,
        view::{At, is_same},
    },
    expressions, matching,
};

const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
const REINVOCATIONS: [&str; 2] = ["IfNeeded", "Never"];
const PATCHES: [&str; 2] = ["ApplyConfiguration", "JSONPatch"];
/// Most annotations that a policy writes for auditors, and longest expression of one.
const MAX_AUDIT: usize = 20;
const MAX_AUDIT_EXPRESSION: usize = 5 * 1024;
const UNSPECIFIED: &str = "expression is not specified";

pub(super) fn validating(old: Option<&At<'_>>, new: &At<'_>, errors: &mut Errors) {
    let spec = new.child("spec");
    before_variables(old, &spec, |_, _| {}, errors);
    let mut compiler = match spec.count("variables") {
        0 => PolicyCompiler::new(spec.has("paramKind")),
        _ => PolicyCompiler::with_variables(spec.has("paramKind")),
    };
    spec.items("variables").for_each(|variable| self::variable(&variable, &mut compiler, errors));
    if spec.count("validations") + spec.count("auditAnnotations") == 0 {
        let why = "validations or auditAnnotations must contain at least one item";
        errors.required(spec.path("validations"), why);
        errors.required(spec.path("auditAnnotations"), why);
        return;
    }
    spec.items("validations").for_each(|one| validation(&one, &compiler, errors));
    audit(new, &spec, &compiler, errors);
}

pub(super) fn mutating(old: Option<&At<'_>>, new: &At<'_>, errors: &mut Errors) {
    let spec = new.child("spec");
    before_variables(old, &spec, matching::only_mutable, errors);
    let mut compiler = PolicyCompiler::with_variables(spec.has("paramKind"));
    spec.items("variables").for_each(|variable| self::variable(&variable, &mut compiler, errors));
    if spec.count("mutations") == 0 {
        errors.required(spec.path("mutations"), "mutations must contain at least one item");
    }
    spec.items("mutations").for_each(|one| mutation(&one, &compiler, errors));
    spec.one_of("reinvocationPolicy", &REINVOCATIONS, errors);
}

/// Validates the fields that both kinds of policies have before their variables.
fn before_variables(
    old: Option<&At<'_>>,
    spec: &At<'_>,
    of_constraints: fn(&At<'_>, &mut Errors),
    errors: &mut Errors,
) {
    if spec.has("failurePolicy") {
        matching::failure_policy(spec, errors)
    } else {
        errors.required(spec.path("failurePolicy"), "")
    }
    if let Some(kind) = spec.present("paramKind") {
        param_kind(&kind, errors);
    }
    match spec.present("matchConstraints") {
        None => errors.required(spec.path("matchConstraints"), ""),
        Some(constraints) => {
            matching::constraints(&constraints, errors);
            if constraints.count("resourceRules") == 0 {
                errors.required(constraints.path("resourceRules"), "");
            }
            of_constraints(&constraints, errors);
        }
    }
    let same = |old: &At<'_>| {
        let before = old.child("spec");
        ["paramKind", "matchConditions"].iter().all(|name| is_same(before.get(name), spec.get(name)))
    };
    if !old.is_some_and(same) {
        matching::conditions(spec, spec.has("paramKind"), errors);
    }
}

fn param_kind(at: &At<'_>, errors: &mut Errors) {
    let (version, path) = (at.text("apiVersion"), at.path("apiVersion"));
    let mut wrong = |value: &str, why: &str| errors.invalid(&path, &value.into(), why);
    match (version, version.matches('/').count()) {
        ("", _) => errors.required(&path, ""),
        ("/", _) => wrong(version, "version must be specified"),
        (_, 2..) => wrong(version, &format!("unexpected GroupVersion string: {version}")),
        _ => {
            let (group, short) = version.split_once('/').unwrap_or(("", version));
            let (of_group, of_version) = (names::dns_subdomain(group), names::dns_1035_label(short));
            if !group.is_empty() && !of_group.is_empty() {
                wrong(group, &of_group.join(","));
            }
            if short.is_empty() {
                wrong(version, "version must be specified");
            } else if !of_version.is_empty() {
                wrong(short, &of_version.join(","));
            }
        }
    }
    if at.needs("kind", errors) {
        let wrong = names::dns_1035_label(&at.text("kind").to_lowercase());
        if !wrong.is_empty() {
            let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
            errors.invalid(at.path("kind"), at.get("kind"), &why);
        }
    }
}

/// Words that no variable can be called.
const RESERVED: [&str; 20] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
];

fn is_identifier(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let begins = text.bytes().next().is_some_and(|b| plain(b) && !b.is_ascii_digit());
    begins && text.bytes().all(plain) && !RESERVED.contains(&text) && text != "while"
}

fn variable(at: &At<'_>, compiler: &mut PolicyCompiler, errors: &mut Errors) {
    let name = at.text("name");
    if name.trim().is_empty() {
        errors.required(at.path("name"), "name is not specified");
    } else if !is_identifier(name) {
        errors.invalid(at.path("name"), &name.into(), "must be a valid CEL identifier");
    }
    let compile = |text: &str| compiler.variable(name, text);
    expressions::compiles(at, "expression", UNSPECIFIED, compile, errors);
}

fn validation(at: &At<'_>, compiler: &PolicyCompiler, errors: &mut Errors) {
    expressions::compiles(at, "expression", UNSPECIFIED, |text| compiler.condition(text), errors);
    let (by_expression, message) = (at.text("messageExpression"), at.text("message"));
    if !by_expression.is_empty() && by_expression.trim().is_empty() {
        let why = "must be non-empty if specified";
        errors.invalid(at.path("messageExpression"), &by_expression.into(), why);
    } else if !by_expression.is_empty() {
        expressions::compiles(at, "messageExpression", "", |text| compiler.message(text), errors);
    }
    if !message.is_empty() && message.trim().is_empty() {
        errors.invalid(at.path("message"), &message.into(), "must be non-empty if specified");
    } else if message.trim().contains(['\n', '\r']) {
        errors.invalid(at.path("message"), &message.into(), "must not contain line breaks");
    }
    at.supported_if_present("reason", &REASONS, errors);
}

fn audit(policy: &At<'_>, spec: &At<'_>, compiler: &PolicyCompiler, errors: &mut Errors) {
    let list = "auditAnnotations";
    if spec.count(list) > MAX_AUDIT {
        let why = format!("must not have more than {MAX_AUDIT} auditAnnotations");
        let shown = internal::printed_value("[]AuditAnnotation", spec.get(list));
        errors.push(FieldError::invalid_shown(spec.path(list), &shown, &why));
    }
    let (name, mut taken) = (policy.child("metadata").text("name"), HashSet::new());
    for one in spec.items(list) {
        let key = one.text("key");
        if name.is_empty() {
            errors.invalid(one.path("key"), &key.into(), "requires metadata.name be non-empty");
        } else {
            let full = format!("{name}/{key}");
            errors.invalid_each(one.path("key"), &(*full).into(), names::qualified_name(&full));
        }
        if one.text("valueExpression").trim().len() > MAX_AUDIT_EXPRESSION {
            let why = format!("must not exceed {MAX_AUDIT_EXPRESSION} bytes in length");
            errors.required(one.path("valueExpression"), &why);
        } else {
            let compile = |text: &str| compiler.annotation(text.trim());
            expressions::compiles(&one, "valueExpression", "valueExpression is not specified", compile, errors);
        }
        if !taken.insert(key) {
            errors.duplicate(one.path("key"), &key.into());
        }
    }
}

fn mutation(at: &At<'_>, compiler: &PolicyCompiler, errors: &mut Errors) {
    let (own, other) = match at.text("patchType") {
        "" => return errors.required(at.path("patchType"), ""),
        "JSONPatch" => ("jsonPatch", "applyConfiguration"),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
        _ => return at.supported("patchType", &PATCHES, errors),
    };
    let kind = at.text("patchType");
    match at.present(own) {
        None => errors.required(at.path(own), &format!("must be specified when patchType is {kind}")),
        Some(patch) => {
            let compile = |text: &str| match own {
                "jsonPatch" => compiler.json_patch(text),
                _ => compiler.apply_configuration(text),
            };
            expressions::compiles_trimmed(&patch, "expression", "", compile, errors);
        }
    }
    if at.has(other) {
        let why = format!("must not be specified when patchType is {kind}");
        errors.invalid(at.path(other), &format!("{{{other}}}").into(), &why);
    }
}

/// Validates the status of a policy.
pub(super) fn status(object: &At<'_>, errors: &mut Errors) {
    let status = object.child("status");
    for warning in status.child("typeChecking").items("expressionWarnings") {
        warning.needs("warning", errors);
        match warning.text("fieldRef").trim() {
            "" => errors.required(warning.path("fieldRef"), ""),
            path => {
                if let Err(why) = jsonpath::check(path) {
                    errors.invalid(warning.path("fieldRef"), &path.into(), &format!("invalid JSONPath: {why}"));
                }
            }
        }
    }
    metadata::conditions(&status, errors);
}
