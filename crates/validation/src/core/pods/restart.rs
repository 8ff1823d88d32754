//! Policies of single containers about their restart.

use super::super::super::{Errors, FieldError, view::At};

const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

/// Checks a container that is not an init container.
pub(super) fn check(at: &At<'_>, errors: &mut Errors) {
    if at.has("restartPolicy") {
        at.supported("restartPolicy", &["Always", "Never", "OnFailure"], errors);
    } else if at.count("restartPolicyRules") > 0 {
        unsaid(at, errors);
    }
    rules(at, errors);
}

/// Checks an init container: without a policy its rules are not checked.
pub(super) fn of_init(at: &At<'_>, errors: &mut Errors) {
    match (at.has("restartPolicy"), at.count("restartPolicyRules")) {
        (true, _) => check(at, errors),
        (false, 0) => {}
        (false, _) => unsaid(at, errors),
    }
}

fn unsaid(at: &At<'_>, errors: &mut Errors) {
    errors.required(at.path("restartPolicy"), "must specify restartPolicy when restart rules are used");
}

fn rules(at: &At<'_>, errors: &mut Errors) {
    let count = at.count("restartPolicyRules");
    if count > MAX_RULES {
        errors.push(FieldError::too_many(at.path("restartPolicyRules"), count, MAX_RULES));
    }
    for rule in at.items("restartPolicyRules") {
        rule.supported("action", &["Restart", "RestartAllContainers"], errors);
        let Some(codes) = rule.present("exitCodes") else {
            errors.required(rule.path("exitCodes"), "must be specified");
            continue;
        };
        codes.supported("operator", &["In", "NotIn"], errors);
        if codes.count("values") > MAX_EXIT_CODES {
            errors.push(FieldError::too_many(codes.path("values"), codes.count("values"), MAX_EXIT_CODES));
        }
    }
}
