//! Objects that every logical cluster has from the transaction that creates it.

use portolan_kinds::KindTable;
use portolan_store::{Expect, Write};
use portolan_strategy::{
    lifecycle::{self, WriteContext},
    namespace_objects::{default_account, root_ca_map},
};
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, ObjectName, Record, Seams, Status, object,
};
use serde_json::{Value, json};

/// Namespaces that every logical cluster starts with.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Template of the objects of a new logical cluster: defaulted and validated once, copied for each.
pub(crate) struct ClusterTemplate {
    pub(super) seams: Seams,
    objects: Vec<TemplateObject>,
}

/// Object of the template, without the fields that differ between logical clusters.
struct TemplateObject {
    resource: GroupResource,
    namespace: Option<NamespaceName>,
    name: ObjectName,
    object: Value,
}

impl ClusterTemplate {
    /// Makes the template of the namespaces. With `root_ca`, the PEM that pods trust the server by, each has the
    /// ServiceAccount and the ConfigMap that a controller adds to other namespaces.
    ///
    /// # Errors
    /// 500 if the rules of a kind refuse its object, which only a defect can cause.
    pub(crate) fn new(seams: &Seams, root_ca: Option<&str>) -> Result<Self, Status> {
        let table = KindTable::builtin();
        let (context, mut objects) = (WriteContext::new(table, seams), Vec::new());
        let mut add = |kind: &str, namespace: Option<&str>, object: Value| -> Result<(), Status> {
            let kind = table.kind_named("", "v1", kind).ok_or_else(|| Status::internal(format!("no kind {kind}")))?;
            let object = lifecycle::prepare_create(&context, kind, object, namespace, None)?;
            let name = object::name(&object).parse().map_err(Status::internal)?;
            let namespace = namespace.map(str::parse).transpose().map_err(Status::internal)?;
            objects.push(TemplateObject { resource: kind.storage.group_resource(), namespace, name, object });
            Ok(())
        };
        for name in NAMESPACES {
            add("Namespace", None, json!({"metadata": {"name": name}}))?;
            if let Some(pem) = root_ca {
                add("ServiceAccount", Some(name), default_account(name))?;
                add("ConfigMap", Some(name), root_ca_map(name, pem))?;
            }
        }
        Ok(Self { seams: seams.clone(), objects })
    }

    /// Returns the writes of the objects of a new logical cluster, namespaces before their content.
    pub(super) fn writes(&self, id: LogicalClusterId) -> impl Iterator<Item = Write> {
        let now = self.seams.now_text();
        self.objects.iter().map(move |template| {
            let mut object = template.object.clone();
            let metadata = object::metadata_mut(&mut object);
            metadata.insert("uid".into(), self.seams.uid().to_string().into());
            metadata.insert("creationTimestamp".into(), now.clone().into());
            Write { key: template.key(id), expect: Expect::Absent, record: Some(Record::of(&object)) }
        })
    }
}

impl TemplateObject {
    fn key(&self, cluster: LogicalClusterId) -> ObjectKey {
        let (resource, name) = (self.resource.clone(), self.name.clone());
        match &self.namespace {
            Some(namespace) => ObjectKey::namespaced(cluster, resource, namespace.clone(), name),
            None => ObjectKey::cluster_scoped(cluster, resource, name),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_new_logical_cluster_has_what_controllers_give_to_namespaces() {
        let template = ClusterTemplate::new(&Seams::system(), Some("PEM")).unwrap();
        let writes: Vec<_> = template.writes(LogicalClusterId::new(7)).collect();
        let keys: Vec<_> = writes.iter().map(|write| write.key.to_string()).collect();
        assert_eq!(keys.len(), 3 * NAMESPACES.len(), "{keys:?}");
        let mut uids = BTreeSet::new();
        for (of, name) in writes.chunks(3).zip(NAMESPACES) {
            let [namespace, account, map] = of else { panic!("{name} has three objects") };
            let read = |write: &Write| {
                let record = write.record.as_ref().unwrap();
                record.to_value(portolan_types::ResourceVersion::FIRST).unwrap()
            };
            assert_eq!(read(namespace)["metadata"]["labels"]["kubernetes.io/metadata.name"], name);
            assert_eq!(read(account)["metadata"]["name"], "default");
            assert_eq!(read(map)["data"]["ca.crt"], "PEM");
            assert_eq!(
                [account, map].map(|write| write.key.namespace().map(ToString::to_string)),
                [(); 2].map(|()| Some(name.to_owned()))
            );
            uids.extend(of.iter().map(|write| read(write)["metadata"]["uid"].to_string()));
        }
        let again = template.writes(LogicalClusterId::new(8)).next().unwrap();
        let uid = again.record.unwrap().to_value(portolan_types::ResourceVersion::FIRST).unwrap()["metadata"]["uid"]
            .to_string();
        assert!(uids.len() == writes.len() && !uids.contains(&uid), "uids are never shared: {uids:?}");
    }

    #[test]
    fn without_a_certificate_only_namespaces_are_made() {
        let template = ClusterTemplate::new(&Seams::system(), None).unwrap();
        assert_eq!(template.writes(LogicalClusterId::new(7)).count(), NAMESPACES.len());
    }
}
