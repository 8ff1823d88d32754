//! Conversion between the versions of a custom resource as its definition sets it: by `apiVersion` alone, or by a
//! webhook.

use std::sync::Arc;

use serde_json::Value;

/// Conversion of the objects of a definition between versions.
#[derive(Clone, Debug)]
pub struct Conversion {
    group: Arc<str>,
    versions: Box<[Arc<str>]>,
    webhook: Option<ConversionWebhook>,
}

/// Webhook that converts objects.
#[derive(Clone, Debug)]
pub struct ConversionWebhook {
    /// `spec.conversion.webhook.clientConfig`.
    pub client_config: Value,
    /// `spec.conversion.webhook.conversionReviewVersions`.
    pub review_versions: Box<[Arc<str>]>,
}

impl Conversion {
    /// Returns the conversion of a definition.
    pub fn of(crd: &Value) -> Self {
        let part = |pointer: &str| crd.pointer(pointer).unwrap_or(&Value::Null);
        let texts = |list: &Value| -> Box<[Arc<str>]> {
            list.as_array().into_iter().flatten().filter_map(Value::as_str).map(Arc::from).collect()
        };
        let names = part("/spec/versions").as_array().into_iter().flatten().filter_map(|own| own.get("name"));
        let webhook = (part("/spec/conversion/strategy") == "Webhook").then(|| ConversionWebhook {
            client_config: part("/spec/conversion/webhook/clientConfig").clone(),
            review_versions: texts(part("/spec/conversion/webhook/conversionReviewVersions")),
        });
        Self {
            group: part("/spec/group").as_str().unwrap_or_default().into(),
            versions: names.filter_map(Value::as_str).map(Arc::from).collect(),
            webhook,
        }
    }

    /// Returns the webhook; `None` if only `apiVersion` changes.
    pub fn webhook(&self) -> Option<&ConversionWebhook> {
        self.webhook.as_ref()
    }

    /// Checks that both versions exist.
    ///
    /// # Errors
    /// Message that names the missing one.
    pub fn check(&self, from: &str, to: &str) -> Result<(), String> {
        for (word, api_version) in [("to", to), ("from", from)] {
            let version = api_version.strip_prefix(&*self.group).and_then(|rest| rest.strip_prefix('/'));
            if !version.is_some_and(|version| self.versions.iter().any(|own| **own == *version)) {
                return Err(format!("request to convert CR {word} an invalid group/version: {api_version}"));
            }
        }
        Ok(())
    }
}
