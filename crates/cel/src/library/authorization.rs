//! `authorizer.group('').resource('pods').check('get').allowed()`.

use super::{LibraryFunction, error, no_overload};
use crate::program::{AuthorizerCheck, CelValue, EvaluationFailure, PathCheck, ResourceCheck, Step};
use std::sync::Arc;

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
    Some(match name {
        "path" => |args, _| match args {
            [CelValue::Check(check), CelValue::String(path)] if matches!(check.step, Step::Authorizer) => {
                if path.trim().is_empty() {
                    return error("path must not be empty");
                }
                Ok(CelValue::Check(check.at(Step::Path(Arc::new(PathCheck { path: path.to_string() })))))
            }
            _ => no_overload(),
        },
        "group" => |args, _| match args {
            [CelValue::Check(check), CelValue::String(group)] if matches!(check.step, Step::Authorizer) => {
                Ok(CelValue::Check(check.at(Step::Group((**group).into()))))
            }
            _ => no_overload(),
        },
        "serviceAccount" => service_account,
        "resource" => resource,
        "subresource" => |args, _| with(args, |check, text| check.subresource = text),
        "namespace" => |args, _| with(args, |check, text| check.namespace = text),
        "name" => |args, _| with(args, |check, text| check.name = text),
        "fieldSelector" => |args, _| with(args, |check, text| check.selectors.fields = text),
        "labelSelector" => |args, _| with(args, |check, text| check.selectors.labels = text),
        "check" => |args, _| match args {
            [CelValue::Check(check), CelValue::String(verb)] => {
                check.ask(verb).map_or_else(no_overload, |asked| Ok(CelValue::Check(asked)))
            }
            _ => no_overload(),
        },
        "allowed" => |args, _| decision(args, |decision| CelValue::Bool(decision.allowed)),
        "reason" => |args, _| decision(args, |decision| decision.reason.clone().into()),
        "errored" => |args, _| decision(args, |decision| CelValue::Bool(decision.error.is_some())),
        "error" => |args, _| decision(args, |decision| decision.error.clone().unwrap_or_default().into()),
        _ => return None,
    })
}

fn service_account<'a>(args: &[CelValue<'a>], _: &super::CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::Check(check), CelValue::String(namespace), CelValue::String(name)] = args else {
        return no_overload();
    };
    if !super::formats::is_dns_subdomain(name) {
        return error("Invalid service account name");
    }
    if !super::formats::is_dns_label(namespace) {
        return error("Invalid service account namespace");
    }
    let account = Arc::new((namespace.to_string(), name.to_string()));
    Ok(CelValue::Check(AuthorizerCheck { service_account: Some(account), ..check.at(Step::Authorizer) }))
}

fn resource<'a>(args: &[CelValue<'a>], _: &super::CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::Check(check), CelValue::String(resource)] = args else { return no_overload() };
    let Step::Group(group) = &check.step else { return no_overload() };
    if resource.trim().is_empty() {
        return error("resource must not be empty");
    }
    let asked = ResourceCheck { group: group.to_string(), resource: resource.to_string(), ..ResourceCheck::default() };
    Ok(CelValue::Check(check.at(Step::Resource(Arc::new(asked)))))
}

fn with<'a>(args: &[CelValue<'a>], set: fn(&mut ResourceCheck, String)) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Check(check), CelValue::String(text)] => {
            let Step::Resource(asked) = &check.step else { return no_overload() };
            let mut asked = (**asked).clone();
            set(&mut asked, text.to_string());
            Ok(CelValue::Check(check.at(Step::Resource(Arc::new(asked)))))
        }
        _ => no_overload(),
    }
}

fn decision<'a>(
    args: &[CelValue<'a>],
    tell: fn(&crate::program::AuthorizerDecision) -> CelValue<'static>,
) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Check(AuthorizerCheck { step: Step::Decision(decision), .. })] => Ok(tell(decision)),
        _ => no_overload(),
    }
}
