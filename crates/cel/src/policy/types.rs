//! Type check of a ValidatingAdmissionPolicy: its expressions against the schemas of the kinds that it matches. The
//! check refuses nothing; its warnings go to the policy's status
//! (`k8s.io/apiserver/pkg/admission/plugin/policy/validating/typechecking.go`).

use super::{environment, list, text};
use crate::check::{self, Environment};
use crate::schema::DeclaredType;
use crate::types::CelType;
use serde_json::Value as Json;

/// Limit of one check: the bytes of its expressions for each kind, plus [`EACH`] for each expression.
const MAX_WORK: usize = 8 << 20;
const EACH: usize = 256;
/// Maximum bytes of warnings, which must fit into the policy.
const MAX_WARNINGS: usize = 16 << 10;

/// Kind with a known schema.
#[derive(Debug)]
pub struct TypedKind {
    /// Name in warnings, such as `apps/v1, Kind=Deployment`.
    pub shown: String,
    /// Name of the kind's type.
    pub name: String,
    /// Type of its objects; `None` if no expression can see them.
    pub declared: Option<DeclaredType>,
}

/// Returns the warnings about the validations of `spec`, each with the path of its expression and all errors per kind.
/// The check ends early at its limits of work and of bytes of warnings.
#[must_use]
pub fn type_warnings(
    spec: &Json,
    kinds: impl IntoIterator<Item = TypedKind>,
    params: Option<&TypedKind>,
) -> Vec<(String, String)> {
    let mut expressions: Vec<TypeWarnings> = expressions(spec);
    let mut left = RemainingBounds { work: MAX_WORK, warnings: MAX_WARNINGS };
    for kind in kinds {
        if left.check(spec, &mut expressions, &kind, params).is_none() {
            break;
        }
    }
    let told = |one: TypeWarnings| (!one.warnings.is_empty()).then(|| (one.path, one.warnings.join("\n")));
    expressions.into_iter().filter_map(told).collect()
}

/// Expression with its warnings.
struct TypeWarnings<'s> {
    path: String,
    expression: &'s str,
    warnings: Vec<String>,
}

fn expressions(spec: &Json) -> Vec<TypeWarnings<'_>> {
    let of_validation = |(index, validation)| {
        ["expression", "messageExpression"].into_iter().map(move |name| TypeWarnings {
            path: format!("spec.validations[{index}].{name}"),
            expression: text(validation, name),
            warnings: Vec::new(),
        })
    };
    let all = list(spec, "validations").iter().enumerate().flat_map(of_validation);
    all.filter(|one| !one.expression.is_empty()).collect()
}

/// Remaining bounds of the check.
struct RemainingBounds {
    work: usize,
    warnings: usize,
}

impl RemainingBounds {
    fn take(&mut self, expression: &str) -> Option<()> {
        self.work = self.work.checked_sub(expression.len() + EACH)?;
        Some(())
    }

    /// Checks all expressions for one kind; `None` if a limit is reached.
    fn check(
        &mut self,
        spec: &Json,
        all: &mut [TypeWarnings<'_>],
        kind: &TypedKind,
        params: Option<&TypedKind>,
    ) -> Option<()> {
        let mut environment = typed(kind, spec.get("paramKind").is_some_and(Json::is_object), params);
        for variable in list(spec, "variables") {
            let expression = text(variable, "expression");
            self.take(expression)?;
            let output = check::compile(expression, &environment);
            let output = output.map_or(CelType::Dyn, |checked| environment::declared(checked.output()));
            environment::declare_variable(&mut environment, text(variable, "name"), output);
        }
        for one in all {
            self.take(one.expression)?;
            let Err(problems) = check::compile(one.expression, &environment) else { continue };
            let warning = format!("{}: {problems}\n", kind.shown);
            self.warnings = self.warnings.checked_sub(warning.len())?;
            one.warnings.push(warning);
        }
        Some(())
    }
}

/// Returns the environment for objects of a kind. `authorizer` has its type, without a request resource. Parameters of
/// an unknown kind are dynamic.
fn typed(kind: &TypedKind, has_params: bool, params: Option<&TypedKind>) -> Environment {
    let mut environment = environment::environment(has_params);
    environment::take_request_resource(&mut environment);
    environment::declare_variables(&mut environment);
    // kube-apiserver adds a number as well: parameters may be of a kind with the same name.
    let typed = [(Some(kind), "1", ["object", "oldObject"].as_slice()), (params, "2", &["params"])];
    for (kind, number, variables) in typed {
        let Some((kind, declared)) = kind.and_then(|kind| Some((kind, kind.declared.as_ref()?))) else { continue };
        let own = declared.declare(&format!("{}{number}", kind.name), &mut environment.objects);
        for name in variables {
            environment.variables.insert((*name).into(), own.clone());
        }
    }
    environment
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::RuleSchema;
    use serde_json::json;

    fn kind(shown: &str, properties: Json) -> TypedKind {
        let schema = RuleSchema::from_json(&json!({"type": "object", "properties": properties}));
        let (_, name) = shown.split_once("Kind=").expect("a kind");
        TypedKind { shown: shown.to_owned(), name: name.to_owned(), declared: DeclaredType::of(&schema, true) }
    }

    fn kinds() -> [TypedKind; 2] {
        let spec = |properties: Json| json!({"spec": {"type": "object", "properties": properties}});
        [
            kind("example.dev/v1, Kind=Boat", spec(json!({"length": {"type": "integer"}}))),
            kind("example.dev/v1, Kind=Ship", spec(json!({"name": {"type": "string"}}))),
        ]
    }

    fn undefined(shown: &str, offset: usize, field: &str, expression: &str) -> String {
        let dots = ".".repeat(offset - 1);
        format!("{shown}: ERROR: <input>:1:{offset}: undefined field '{field}'\n | {expression}\n | {dots}^\n")
    }

    #[test]
    fn expressions_are_held_to_the_schemas_of_kinds() {
        let (boat, ship) = ("example.dev/v1, Kind=Boat", "example.dev/v1, Kind=Ship");
        // Parameters of another group than the kind of the objects.
        let limits = kind(
            "other.dev/v1, Kind=Boat",
            json!({"data": {"type": "object", "additionalProperties": {"type": "string"}}}),
        );
        let in_params = "params.data.x == '' || params.spec.length > 1";
        let spec = json!({"paramKind": {}, "validations": [
            {"expression": "object.metadata.name != ''"},
            {"expression": "object.spec.length > 1"},
            {"expression": "true", "messageExpression": "object.x"},
            {"expression": in_params},
            {"expression": "authorizer.path('/healthz').check('get').allowed()"},
            {"expression": "authorizer.requestResource.check('get').allowed()"},
        ]});
        let both = |offset, field, expression| {
            [boat, ship].map(|shown| undefined(shown, offset, field, expression)).join("\n")
        };
        let expected = [
            ("[1].expression", undefined(ship, 12, "length", "object.spec.length > 1")),
            ("[2].messageExpression", both(7, "x", "object.x")),
            ("[3].expression", both(in_params.find(".spec").unwrap() + 1, "spec", in_params)),
        ];
        let told = type_warnings(&spec, kinds(), Some(&limits));
        let expected: Vec<_> =
            expected.map(|(path, text)| (format!("spec.validations{path}"), text)).into_iter().collect();
        assert_eq!(told[..3], expected);
        assert!(told[3].0 == "spec.validations[5].expression" && told[3].1.contains("requestResource"), "{told:?}");
        assert_eq!(told.len(), 4);
    }

    #[test]
    fn parameters_of_an_unknown_kind_may_be_anything() {
        let spec = json!({"paramKind": {}, "validations": [{"expression": "params.x == 1"}]});
        assert_eq!(type_warnings(&spec, kinds(), None), []);
    }

    #[test]
    fn a_variable_that_does_not_fit_may_be_anything() {
        let variable = |name: &str, expression: &str| json!({"name": name, "expression": expression});
        let spec = json!({"variables": [variable("n", "object.metadata.name"), variable("l", "object.spec.length")],
            "validations": [{"expression": "variables.n.startsWith('a') && variables.l.startsWith('a')"}]});
        let told = type_warnings(&spec, kinds(), None);
        assert_eq!(told.len(), 1);
        assert!(told[0].1.starts_with("example.dev/v1, Kind=Boat: ERROR: <input>:1:"), "{told:?}");
        assert!(!told[0].1.contains("Ship"), "{told:?}");
    }

    #[test]
    fn a_check_is_bounded() {
        let many =
            |expression: &str, count: usize| json!({"validations": vec![json!({"expression": expression}); count]});
        let told = type_warnings(&many("object.x", 10_000), kinds(), None);
        let bytes: usize = told.iter().map(|(_, warning)| warning.len()).sum();
        assert!((MAX_WARNINGS - 100..=MAX_WARNINGS).contains(&bytes), "{bytes}");
        let count = MAX_WORK / (EACH + "true".len());
        let mut left = RemainingBounds { work: MAX_WORK, warnings: MAX_WARNINGS };
        let spec = many("true", count + 1);
        assert!(left.check(&spec, &mut expressions(&spec), &kinds()[0], None).is_none());
        assert!(left.work < EACH + "true".len());
    }
}
