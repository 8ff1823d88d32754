//! Pods that are not sent, but that a controller would make of a template: let in before what has the template is placed, and
//! charged to quotas in the transaction that places it.

use std::sync::Arc;

use parking_lot::Mutex;
use portolan_machinery::{
    defaults,
    lifecycle::{self, WriteContext},
    quota::{PodsAsk, charge_pods, charged_pods},
    rbac::User,
};
use portolan_store::Write;
use portolan_types::{GroupResource, LogicalClusterId, Status, object, placement::ChargedPods};
use serde_json::Value;

use super::{Brief, Operation, Request, Sent, Turn, quota};
use crate::{ApiServer, directory::LogicalCluster};

/// Quotas as they are to be written. Who else charges those of the namespace waits until it is dropped.
pub struct PodCharges {
    /// Each on the condition that nobody has written it since.
    pub writes: Vec<Write>,
    /// Kept until they are written.
    pub turn: PodsTurn,
}

/// The turn to charge the quotas of a namespace; nothing where there are none.
pub struct PodsTurn {
    _turn: Option<Turn<quota::Namespace>>,
}

impl ApiServer {
    /// The pod as it would be stored, if `user` created it in `namespace` now: a dry run of everything but quotas.
    ///
    /// # Errors
    /// What the answer to such a request would be.
    pub async fn admit_pod(
        &self,
        cluster: LogicalClusterId,
        namespace: &str,
        pod: Value,
        user: &User,
    ) -> Result<Value, Status> {
        let cluster = self.known(cluster)?;
        let served = self.kinds.served(cluster.id).await?.surface.resource("", "v1", "pods");
        let served = served.ok_or_else(Status::no_such_path)?;
        let (kind, table) = (&served.kind, &served.table);
        let (warnings, brief) = (Mutex::default(), Brief::default());
        let name = object::name(&pod).to_owned();
        let request = Request {
            cluster: &cluster,
            kind,
            namespace,
            name: &name,
            url_name: "",
            operation: Operation::Create,
            subresource: "",
            user,
            dry_run: true,
            warnings: &warnings,
            brief: &brief,
            table,
            sent: Sent::Nothing,
        };
        self.admission.guard(self, &request).await?;
        let mut pod = pod;
        defaults::apply(table, kind, &mut pod)?;
        self.admission.mutate(self, &request, &mut pod, None).await?;
        let context = WriteContext { table, seams: &self.seams };
        let mut pod = lifecycle::prepare_create(&context, kind, pod, Some(namespace), None)?;
        if name.is_empty() {
            // Refusals call it by what its name would begin with, however often they are given.
            object::metadata_mut(&mut pod).remove("name");
        }
        self.admission.validate(self, &request, Some(&pod), None).await?;
        Ok(pod)
    }

    /// `count` pods like this one, as quotas count them.
    pub fn measure_pods(&self, pod: &Value, count: i64) -> ChargedPods {
        charged_pods(pod, count, self.seams.clock.now())
    }

    /// Charges the quotas of a namespace for pods of a template; `called` is what the name of such a pod begins with.
    ///
    /// # Errors
    /// 403 when a quota would be exceeded, as for a pod.
    pub async fn charge_pods(
        &self,
        cluster: LogicalClusterId,
        namespace: &str,
        called: &str,
        ask: &PodsAsk<'_>,
    ) -> Result<PodCharges, Status> {
        let configured = self.configured.of(cluster).await?;
        if !configured.is_some_and(|configured| configured.with_quotas.contains(namespace)) {
            return Ok(PodCharges { writes: Vec::new(), turn: PodsTurn { _turn: None } });
        }
        let turn = self.charging.wait((cluster, namespace.to_owned())).await;
        let quotas = quota::stored(self, cluster, namespace).await?;
        let trees: Vec<Value> = quotas.iter().map(|(_, tree)| tree.clone()).collect();
        let pods = GroupResource::new("", "pods");
        let charged = charge_pods(&trees, ask).map_err(|refusal| Status::forbidden(&pods, called, refusal.0))?;
        let writes = charged.into_iter().map(|(at, used)| quota::with_usage(&quotas[at], used)).collect();
        Ok(PodCharges { writes, turn: PodsTurn { _turn: Some(turn) } })
    }

    /// Whether webhooks of a logical cluster may have to be waited for.
    ///
    /// # Errors
    /// When its configuration cannot be read.
    pub async fn calls_webhooks(&self, cluster: LogicalClusterId) -> Result<bool, Status> {
        let configured = self.configured.of(cluster).await?;
        Ok(configured.is_some_and(|own| !own.mutating.is_empty() || !own.validating.is_empty()))
    }

    fn known(&self, cluster: LogicalClusterId) -> Result<Arc<LogicalCluster>, Status> {
        self.directory.by_id(cluster).ok_or_else(Status::no_such_path)
    }
}
