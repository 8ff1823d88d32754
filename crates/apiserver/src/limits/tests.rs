//! Tests of the limits.

use super::*;

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_limits_get_429() {
    let limits = Limits {
        reads: 1,
        writes: 1,
        waiting: 0,
        watches: 6,
        watches_per_cluster: 4,
        streams: 1,
        streams_per_cluster: 1,
        ..Limits::default()
    };
    let metrics = crate::metrics::Metrics::new(prometheus::Registry::new());
    let permits = &RequestLimiter::new(&limits, &metrics);
    let (one, two) = (LogicalClusterId::new(5), LogicalClusterId::new(6));
    let [ann, bob] = &["ann", "bob"].map(|name| User { name: name.into(), ..User::default() });
    let enter = |is_write| async move {
        permits.enter(&FlowKey { tenant: one, cluster: one, user: ann }, is_write, Duration::from_secs(1)).await
    };
    let first = enter(false).await.unwrap();
    assert_eq!(enter(false).await.err().map(|s| s.code()), Some(429));
    assert!(enter(true).await.is_ok());
    drop(first);
    assert!(enter(false).await.is_ok());

    let anonymous = User::default();
    let [anns, bobs, anonymous_flow] = [ann, bob, &anonymous].map(|user| FlowKey { tenant: one, cluster: one, user });
    let others = FlowKey { tenant: two, cluster: two, user: ann };
    let held = [permits.watch(&anns).unwrap(), permits.watch(&anns).unwrap()];
    assert!(permits.watch(&anns).is_err(), "one user cannot take all of a logical cluster");
    let bobs = [permits.watch(&bobs).unwrap(), permits.watch(&bobs).unwrap()];
    assert!(permits.watch(&anonymous_flow).is_err(), "one logical cluster cannot take all");
    assert!(permits.watch(&others).is_ok());
    let stream = permits.stream(&anns).unwrap();
    assert_eq!(permits.stream(&others).err().map(|s| s.code()), Some(429), "streams are bounded apart from watches");
    drop((held, bobs, stream));
    assert!(permits.watches.is_empty() && permits.streams.is_empty());
}

#[test]
fn permits_are_limited_per_tenant_across_workspaces() {
    let limits =
        Limits { watches: 16, watches_per_cluster: 4, streams: 16, streams_per_cluster: 4, ..Limits::default() };
    let metrics = crate::metrics::Metrics::new(prometheus::Registry::new());
    let permits = RequestLimiter::new(&limits, &metrics);
    let users = ["ann", "bob"].map(|name| User { name: name.into(), ..User::default() });
    let id = LogicalClusterId::new;
    for acquire in [RequestLimiter::watch, RequestLimiter::stream] {
        let fill = |tenant| {
            let asked = (0..20).flat_map(|cluster| users.iter().cycle().take(4).map(move |user| (cluster, user)));
            let taken = asked.filter_map(|(cluster, user)| {
                acquire(&permits, &FlowKey { tenant: id(tenant), cluster: id(tenant * 100 + cluster), user }).ok()
            });
            taken.collect::<Vec<_>>()
        };
        let held = [5, 6, 7].map(fill);
        assert_eq!(held.map(|held| held.len()), [12, 3, 1], "three quarters of what is free");
    }
    assert!(permits.watches.is_empty() && permits.streams.is_empty());
}

#[test]
fn bytes_are_shared_between_tenants_and_small_amounts_are_free() {
    let limits = Limits { bytes: 1024 * 1024, ..Limits::default() };
    let metrics = crate::metrics::Metrics::new(prometheus::Registry::new());
    let permits = RequestLimiter::new(&limits, &metrics);
    let users = ["ann", "bob", "eve"].map(|name| User { name: name.into(), ..User::default() });
    let id = LogicalClusterId::new;
    let charge =
        |tenant, user| permits.charge(&FlowKey { tenant: id(tenant), cluster: id(tenant), user: &users[user] });
    let anns = charge(5, 0);
    assert_eq!(anns.grow_to(600 * 1024).map_err(|status| status.code()), Err(429), "one user has half");
    anns.grow_to(400 * 1024).unwrap();
    anns.grow_to(300 * 1024).unwrap();
    let more = charge(5, 0);
    assert!(more.grow_to(200 * 1024).is_err() && more.grow_to(UNCHARGED_BYTES).is_ok());
    let bobs = charge(5, 1);
    bobs.grow_to(300 * 1024).unwrap();
    let (eves, too_many) = (charge(5, 2), 280 * 1024);
    assert!(eves.grow_to(too_many).is_err(), "what is asked for counts to the share of the tenant");
    charge(6, 0).grow_to(too_many).unwrap();
    eves.grow_to(200 * 1024).unwrap();
    drop(eves);
    bobs.grow_to(400 * 1024).unwrap();
    assert!(charge(5, 2).grow_to(UNCHARGED_BYTES + 1).is_err(), "a tenant leaves a quarter");
    charge(6, 0).grow_to(128 * 1024).unwrap();
    bobs.shrink_to(UNCHARGED_BYTES);
    charge(5, 2).grow_to(UNCHARGED_BYTES + 1).unwrap();
    drop((anns, more, bobs));
    assert!(permits.bytes.is_empty());
}

#[test]
fn webhook_permits_are_limited_per_tenant_across_workspaces() {
    let limits = Limits { webhooks: 8, webhooks_per_tenant: 4, ..Limits::default() };
    let metrics = crate::metrics::Metrics::new(prometheus::Registry::new());
    let permits = RequestLimiter::new(&limits, &metrics);
    let (user, [tenant, other]) = (User::default(), [5, 6].map(LogicalClusterId::new));
    let clusters = [7, 8, 9].map(LogicalClusterId::new);
    let write = |tenant, cluster| permits.webhook(&FlowKey { tenant, cluster, user: &user });
    let convert = |tenant, cluster| permits.conversion(tenant, cluster);
    for acquire in [&write as &dyn Fn(_, _) -> Result<Permit, Status>, &convert] {
        let mut held = vec![acquire(tenant, clusters[0]).unwrap(), acquire(tenant, clusters[0]).unwrap()];
        assert!(acquire(tenant, clusters[0]).is_err(), "one workspace leaves room for the others");
        held.extend((0..2).map(|_| acquire(tenant, clusters[1]).unwrap()));
        assert_eq!(acquire(tenant, clusters[2]).err().map(|s| s.code()), Some(429), "all of them have what one has");
        assert!(acquire(other, other).is_ok(), "other tenants have theirs");
    }
    assert!(permits.webhooks.is_empty() && permits.conversions.is_empty());
}
