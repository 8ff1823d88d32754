//! Tests of encoded lists.

use portolan_types::LogicalClusterId;

use super::*;
use crate::{
    User,
    limits::{FlowKey, Limits, RequestLimiter},
    metrics::Metrics,
};

#[test]
fn a_page_without_memory_can_be_requested_again() {
    let limits = Limits { bytes: 4 * MAX_KEPT_ITEMS, ..Limits::default() };
    let places = RequestLimiter::new(&limits, &Metrics::new(prometheus::Registry::new()));
    let charge = |tenant| {
        let cluster = LogicalClusterId::new(tenant);
        places.charge(&FlowKey { tenant: cluster, cluster, user: &User::default() })
    };
    for (case, held, length, code) in [
        ("there is room", 0, MAX_KEPT_ITEMS, None),
        ("others have it", limits.bytes / 2, MAX_KEPT_ITEMS, Some(429)),
        ("no page is so long", 0, MAX_KEPT_ITEMS + 1, Some(500)),
    ] {
        let others = [charge(5), charge(6)];
        others[0].grow_to(held).unwrap();
        others[1].grow_to(held * 5 / 8).unwrap();
        let own = charge(7);
        let mut items = ProtobufItems { kept: Ok(Vec::new()), length: 0, charge: &own };
        items.keep(vec![0; length / 2].into());
        items.keep(vec![0; length - length / 2].into());
        drop(others);
        assert_eq!(items.kept.map(drop).err().map(|why| why.code()), code, "{case}");
        assert_eq!(items.length, length, "{case}");
    }
}
