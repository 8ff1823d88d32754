//! Expressions that select devices (`resource.k8s.io`).

use crate::check::Environment;
use crate::expression::Expression;
use crate::types::CelType;
use std::sync::{Arc, LazyLock};

const DEVICE: &str = "kubernetes.DRADevice";

/// `device`: its driver, and its attributes and capacities by domain and name.
static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    let by_name = |value: CelType| CelType::map(CelType::String, CelType::map(CelType::String, value));
    let fields: [(&str, CelType); 4] = [
        ("allowMultipleAllocations", CelType::Bool),
        ("attributes", by_name(CelType::Any)),
        ("capacity", by_name(CelType::Struct("kubernetes.Quantity".into()))),
        ("driver", CelType::String),
    ];
    let mut environment = Environment::default();
    let fields = fields.into_iter().map(|(name, one)| (Arc::from(name), one));
    environment.objects.insert(DEVICE.into(), fields.collect());
    environment.variables.insert("device".into(), CelType::Struct(DEVICE.into()));
    environment
});

/// Compiles an expression that selects devices: its value is a boolean, or an attribute whose type is only known at run
/// time.
///
/// # Errors
/// The error in kube-apiserver's words.
pub fn device_selector(text: &str) -> Result<Expression, String> {
    let expression =
        Expression::compile(text, &ENVIRONMENT).map_err(|problems| format!("compilation failed: {problems}"))?;
    match expression.output() {
        CelType::Bool | CelType::Any => Ok(expression),
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
