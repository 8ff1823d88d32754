//! Addresses for Services and Ingresses, from the ranges for documentation and benchmarks (RFC 5737, RFC 2544): no host
//! answers there.

use std::sync::Arc;

use portolan_controllers::{Controller, Loops, Plane, PlaneError, WorkOutcome};
use portolan_store::Event;
use portolan_types::{BoxFuture, GroupResource, ObjectKey, object};
use serde_json::json;

use crate::fields::{list, text};

/// Adds the loop of addresses.
pub(crate) fn add(loops: Loops) -> Loops {
    let plane = loops.plane().clone();
    loops.with(AddressController { plane })
}

/// The last byte of an address, from a uid.
fn host_number(uid: &str) -> u32 {
    uid.bytes().fold(7_u32, |n, b| n.wrapping_mul(31).wrapping_add(u32::from(b))) % 250 + 1
}

struct AddressController {
    plane: Arc<Plane>,
}

impl Controller for AddressController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-addresses"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![GroupResource::new("", "services"), GroupResource::new("networking.k8s.io", "ingresses")]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        vec![event.key.clone()]
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let is_service = &*key.resource.resource == "services";
            self.plane
                .force(key, |found| {
                    let wants = !is_service || text(found, "/spec/type") == "LoadBalancer";
                    let has = !list(found, "/status/loadBalancer/ingress").is_empty();
                    if has || !wants || object::is_deleting(found) {
                        return false;
                    }
                    let ip = format!("203.0.113.{}", host_number(object::meta_text(found, "uid")));
                    found["status"] = json!({"loadBalancer": {"ingress": [{"ip": ip}]}});
                    true
                })
                .await?;
            Ok(WorkOutcome::Done)
        })
    }
}
