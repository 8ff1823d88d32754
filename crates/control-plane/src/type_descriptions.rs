//! Descriptions of Kubernetes' types, which `build.rs` reads from `k8s-openapi`, and of Portolan's own.

use std::{collections::HashMap, io::Read as _};

use flate2::read::DeflateDecoder;
use portolan_apiserver::hooks::TextSource;
use portolan_kinds::openapi::{OwnTexts, Texts};

/// Descriptions of Kubernetes' types as compressed JSON, by type name and field. The empty field is the type itself.
const COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.json.deflate"));

/// Source of the descriptions of Kubernetes' types and Portolan's own.
pub(crate) struct KubernetesTexts;

impl TextSource for KubernetesTexts {
    fn read(&self) -> Box<dyn Texts> {
        let mut json = Vec::new();
        DeflateDecoder::new(COMPRESSED).read_to_end(&mut json).expect("a test reads this data");
        let kubernetes = serde_json::from_slice(&json).expect("a test reads this data");
        Box::new(TypeDescriptions { kubernetes, own: OwnTexts::read() })
    }
}

/// Descriptions in memory, while OpenAPI documents are built.
struct TypeDescriptions {
    /// Texts by type name and field.
    kubernetes: HashMap<String, HashMap<String, String>>,
    own: OwnTexts,
}

impl Texts for TypeDescriptions {
    fn text(&self, type_name: &str, field: Option<&str>) -> Option<&str> {
        let Some(texts) = self.kubernetes.get(type_name) else {
            return self.own.text(type_name, field);
        };
        texts.get(field.unwrap_or_default()).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use portolan_kinds::KindTable;

    use super::*;

    #[test]
    fn every_kind_that_is_served_is_described() {
        let (texts, table) = (KubernetesTexts.read(), KindTable::builtin());
        for kind in table.kinds() {
            let name = &table.get(kind.schema).name;
            assert!(texts.text(name, None).is_some(), "{name} of {:?}", kind.gvk);
        }
    }

    #[test]
    fn fields_are_described() {
        let texts = KubernetesTexts.read();
        for (name, field, part) in [
            ("io.k8s.api.apps.v1.DeploymentSpec", "replicas", "desired pods"),
            ("io.k8s.api.core.v1.Container", "livenessProbe", "Periodic probe of container liveness"),
            ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "finalizers", "before the object is deleted"),
            ("dev.portolan.v1alpha1.PlacementPolicySpec", "spread", "spread over the values of labels"),
        ] {
            let text = texts.text(name, Some(field)).unwrap_or_default();
            assert!(text.contains(part), "{name}.{field}: {text}");
        }
    }
}
