//! OpenAPI documents of a surface: v3 as a document per group version, v2 as one document.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use portolan_kinds::{
    Kind, KindTable, Surface,
    openapi::{self, Texts},
};
use portolan_types::{GroupVersion, Status};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::hooks::TextSource;

use super::discovery_documents::DiscoveryDocuments;

/// OpenAPI document that is built once, with its hash.
pub(crate) struct OpenApiFile {
    pub(crate) json: Bytes,
    /// Hash of the JSON; as in kube-apiserver it identifies both forms.
    pub(crate) hash: String,
    /// Built on first use.
    pub(crate) protobuf: OnceCell<Bytes>,
}

/// Documents of a set of kinds, built on first use.
#[derive(Default)]
pub(crate) struct ApiDocuments {
    pub(crate) discovery: DiscoveryDocuments,
    pub(crate) by_name: OnceLock<OpenApiFiles>,
    pub(crate) swagger: OnceLock<OpenApiFile>,
}

/// Documents by their name in the index.
pub(crate) type OpenApiFiles = BTreeMap<String, Arc<OpenApiFile>>;

/// Builds the documents of a surface. `builtin` holds those of the built-in kinds, which all surfaces share.
pub(crate) fn build_files(surface: &Surface, builtin: Option<&OpenApiFiles>, texts: &dyn TextSource) -> OpenApiFiles {
    let served = |kinds: &mut dyn Iterator<Item = (&Arc<KindTable>, &Arc<Kind>)>| -> BTreeSet<GroupVersion> {
        kinds.filter(|(_, kind)| kind.served).map(|(_, kind)| kind.group_version()).collect()
    };
    let texts = texts.read();
    let (mut documents, wanted) = match builtin {
        None => {
            let wanted = served(&mut surface.kinds());
            (build_surrounding(&wanted, &*texts), wanted)
        }
        Some(builtin) => (builtin.clone(), served(&mut surface.own_kinds())),
    };
    for version in wanted {
        let kinds = surface.kinds().filter(|(_, kind)| kind.served && kind.group_version() == version);
        let kinds: Vec<(&KindTable, &Kind)> = kinds.map(|(table, kind)| (&**table, &**kind)).collect();
        let document = OpenApiFile::of(&openapi::document(&version, &kinds, &*texts));
        documents.insert(openapi::name(&version), Arc::new(document));
    }
    documents
}

/// Builds the documents that surround these versions, such as `api` and `apis`.
fn build_surrounding(versions: &BTreeSet<GroupVersion>, texts: &dyn Texts) -> OpenApiFiles {
    let groups: BTreeSet<&str> = versions.iter().map(|version| &*version.group).collect();
    let documents = openapi::around(groups, texts).into_iter();
    documents.map(|(name, document)| (name, Arc::new(OpenApiFile::of(&document)))).collect()
}

impl OpenApiFile {
    fn of(value: &Value) -> Self {
        let json = serde_json::to_vec(value).expect("a JSON tree serializes into memory");
        Self { hash: openapi::hash(&json), json: json.into(), protobuf: OnceCell::new() }
    }

    fn bytes(&self) -> usize {
        self.json.len() + self.protobuf.get().map_or(0, Bytes::len)
    }

    /// Returns the protobuf form. It is built once, even if the first caller does not wait for it.
    ///
    /// # Errors
    /// 500 when the server is stopping.
    pub(crate) async fn in_protobuf(self: &Arc<Self>) -> Result<Bytes, Status> {
        if let Some(made) = self.protobuf.get() {
            return Ok(made.clone());
        }
        let document = self.clone();
        let making = tokio::spawn(async move {
            let json = document.json.clone();
            let make = || tokio::task::spawn_blocking(move || openapi::document_protobuf(&parsed(&json)).into());
            document.protobuf.get_or_try_init(make).await.cloned()
        });
        making.await.map_err(Status::internal)?.map_err(Status::internal)
    }
}

fn parsed(json: &[u8]) -> Value {
    serde_json::from_slice(json).expect("we wrote this JSON ourselves")
}

/// Builds the v2 document in both forms.
pub(crate) fn swagger_of(documents: &OpenApiFiles) -> OpenApiFile {
    let all: Vec<Value> = documents.values().map(|document| parsed(&document.json)).collect();
    let swagger = openapi::swagger(&all);
    let protobuf = OnceCell::new_with(Some(openapi::swagger_protobuf(&swagger).into()));
    OpenApiFile { protobuf, ..OpenApiFile::of(&swagger) }
}

impl ApiDocuments {
    /// Returns the bytes of the documents, without those shared with other surfaces.
    pub(crate) fn bytes(&self) -> usize {
        let own = self.by_name.get().into_iter().flat_map(BTreeMap::values).filter(|own| Arc::strong_count(own) == 1);
        let swagger = self.swagger.get().map_or(0, OpenApiFile::bytes);
        own.map(|own| own.bytes()).sum::<usize>() + swagger + self.discovery.bytes()
    }

    #[cfg(test)]
    pub(crate) fn of_size(bytes: usize) -> Self {
        let document = OpenApiFile { json: vec![0; bytes].into(), hash: String::new(), protobuf: OnceCell::new() };
        Self { swagger: OnceLock::from(document), ..Self::default() }
    }
}
