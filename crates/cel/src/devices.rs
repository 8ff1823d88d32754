//! Expressions that select devices (`resource.k8s.io`).

use crate::check::Environment;
use crate::expression::Expression;
use crate::types::Type;
use std::sync::{Arc, LazyLock};

const DEVICE: &str = "kubernetes.DRADevice";

/// `device`: its driver, and its attributes and capacities by domain and name.
static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    let by_name = |value: Type| Type::map(Type::String, Type::map(Type::String, value));
    let fields: [(&str, Type); 4] = [
        ("allowMultipleAllocations", Type::Bool),
        ("attributes", by_name(Type::Any)),
        ("capacity", by_name(Type::Struct("kubernetes.Quantity".into()))),
        ("driver", Type::String),
    ];
    let mut environment = Environment::default();
    let fields = fields.into_iter().map(|(name, one)| (Arc::from(name), one));
    environment.objects.insert(DEVICE.into(), fields.collect());
    environment.variables.insert("device".into(), Type::Struct(DEVICE.into()));
    environment
});

/// Compiles an expression that says of a device whether it is wanted: a truth, or an attribute of a type that is known at run
/// time only.
///
/// # Errors
/// What is wrong with it, in upstream's words.
pub fn device_selector(text: &str) -> Result<Expression, String> {
    let expression =
        Expression::compile(text, &ENVIRONMENT).map_err(|problems| format!("compilation failed: {problems}"))?;
    match expression.output() {
        Type::Bool | Type::Any => Ok(expression),
        other => Err(format!("must evaluate to bool or the unknown type, not {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_devices_are_truths() {
        for (text, expected) in [
            ("device.driver == 'd'", Ok(())),
            ("device.attributes['d'].fast", Ok(())),
            ("device.capacity['d'].memory.compareTo(quantity('1Gi')) >= 0", Ok(())),
            ("device.allowMultipleAllocations", Ok(())),
            ("device.driver", Err("must evaluate to bool or the unknown type, not string")),
            (
                "other",
                Err(
                    "compilation failed: ERROR: <input>:1:1: undeclared reference to 'other' (in container '')\n | other\n | ^",
                ),
            ),
        ] {
            assert_eq!(device_selector(text).map(drop), expected.map_err(str::to_owned), "{text}");
        }
    }
}
