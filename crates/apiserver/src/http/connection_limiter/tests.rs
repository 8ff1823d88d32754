use portolan_types::LogicalClusterId;

use super::*;

struct Connected {
    connection: EvictableConnection,
    slot: Option<ConnectionSlot>,
}

impl Connected {
    fn is_served(&self) -> bool {
        self.slot.is_some() && !self.connection.evicted.is_cancelled()
    }
}

fn connect(limiter: &Arc<ConnectionLimiter>, address: &str) -> Connected {
    let connection = EvictableConnection::new();
    let slot = limiter.try_take(address.parse().unwrap(), &connection).ok();
    Connected { connection, slot }
}

#[tokio::test(start_paused = true)]
async fn two_addresses_that_hold_all_slots_lock_out_neither_others_nor_their_neighbors() {
    let limiter = ConnectionLimiter::new(16);
    let mut silent: Vec<_> =
        (0..64).map(|i| connect(&limiter, if i % 2 == 0 { "10.0.0.1" } else { "10.0.0.2" })).collect();
    silent.retain(Connected::is_served);
    assert_eq!(silent.len(), 16, "all slots are theirs");
    // Evicted connections end at once, as their tasks would.
    for newcomer in ["10.0.0.3", "10.0.0.1", "10.0.0.2"] {
        let accepted = connect(&limiter, newcomer);
        assert!(accepted.is_served(), "{newcomer}");
        silent.retain(Connected::is_served);
        assert_eq!(silent.len(), 15, "{newcomer} replaces one that is idle");
        drop(accepted);
        silent.push(connect(&limiter, newcomer));
    }
}

#[tokio::test(start_paused = true)]
async fn the_oldest_connection_of_the_largest_network_ends_first() {
    let limiter = ConnectionLimiter::new(4);
    let single = connect(&limiter, "10.0.0.9");
    let many = ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(|address| connect(&limiter, address));
    let _handshake = many[0].connection.activity.begin();
    let newcomer = connect(&limiter, "10.0.0.8");
    assert!(newcomer.is_served() && single.is_served());
    assert_eq!(many.each_ref().map(Connected::is_served), [false, true, true], "bytes before credentials are free");
}

/// A connection whose client is authenticated, and works in a tenant.
fn authenticate(connected: &Connected, tenant: u64) {
    connected.connection.authenticated.set();
    connected.connection.authenticated.charge_to(LogicalClusterId::new(tenant));
}

#[tokio::test(start_paused = true)]
async fn requests_of_authenticated_clients_are_never_cut_for_a_newcomer() {
    let limiter = ConnectionLimiter::new(8);
    let mut connected: Vec<_> = (0..8).map(|_| connect(&limiter, "10.0.0.1")).collect();
    let _requests: Vec<_> = connected.iter().map(|connected| connected.connection.activity.begin()).collect();
    let (unknown, known) = connected.split_last().unwrap();
    (0..).zip(known).for_each(|(n, known)| authenticate(known, n / 2));
    let newcomer = connect(&limiter, "10.0.0.1");
    assert!(newcomer.is_served() && !unknown.is_served());
    authenticate(&newcomer, 3);
    let _request = newcomer.connection.activity.begin();
    drop(connected.pop());
    assert!(!connect(&limiter, "10.0.0.2").is_served(), "no tenant has more than a quarter");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_holds_all_connections_with_watches_locks_out_none() {
    let limiter = ConnectionLimiter::new(256);
    let mut watches: Vec<_> = (0..256).map(|_| connect(&limiter, "10.0.0.1")).collect();
    let _requests: Vec<_> = watches.iter().map(|connected| connected.connection.activity.begin()).collect();
    let others = watches.split_off(224);
    watches.iter().for_each(|watch| authenticate(watch, 5));
    (10..).zip(&others).for_each(|(tenant, watch)| authenticate(watch, tenant));
    let mut admitted = Vec::new();
    for n in 0..160 {
        let newcomer = connect(&limiter, "10.0.0.2");
        assert!(newcomer.is_served(), "{n}");
        authenticate(&newcomer, 100 + n);
        admitted.push((newcomer.connection.activity.begin(), newcomer));
        watches.retain(Connected::is_served);
    }
    assert_eq!(watches.len(), 64, "it keeps its share");
    assert!(others.iter().chain(admitted.iter().map(|(_, one)| one)).all(Connected::is_served));
    assert!(!connect(&limiter, "10.0.0.2").is_served());
}

#[tokio::test(start_paused = true)]
async fn requests_without_credentials_evict_one_another_and_not_idle_clients() {
    let limiter = ConnectionLimiter::new(64);
    let mut idle: Vec<_> = (0..64).map(|_| connect(&limiter, "10.0.0.1")).collect();
    idle.iter().for_each(|idle| authenticate(idle, 5));
    let mut flood = Vec::new();
    for n in 0..1000 {
        let one = connect(&limiter, &format!("10.1.{}.{}", n / 250, n % 250));
        assert!(one.is_served(), "{n}");
        flood.push((one.connection.activity.begin(), one));
        flood.retain(|(_, one)| one.is_served());
        idle.retain(Connected::is_served);
    }
    assert_eq!((flood.len(), idle.len()), (9, 55), "an eighth, and the newest");
}

#[tokio::test(start_paused = true)]
async fn newcomers_look_at_few_connections_each() {
    let limiter = ConnectionLimiter::new(6400);
    let _live: Vec<_> =
        (0..6400).map(|n| connect(&limiter, if n % 2 == 0 { "10.0.0.1" } else { "10.0.0.2" })).collect();
    let (mut scans, mut newcomers) = (std::collections::HashSet::new(), Vec::new());
    for _ in 0..640 {
        newcomers.push(connect(&limiter, "10.0.0.3"));
        assert!(newcomers.last().is_some_and(Connected::is_served));
        scans.insert(limiter.held.lock().victims.scanned);
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
    }
    assert_eq!(scans.len(), 10);
}

#[tokio::test(start_paused = true)]
async fn evicted_connections_that_do_not_end_are_bounded_and_slots_come_back() {
    let limiter = ConnectionLimiter::new(16);
    let silent: Vec<_> = (0..64).map(|_| connect(&limiter, "10.0.0.1")).collect();
    let accepted = silent.iter().filter(|connected| connected.slot.is_some()).count();
    assert_eq!(accepted, 16 + 16 / ENDING_SHARE);
    let connection = EvictableConnection::new();
    let mut waiting = Box::pin(limiter.take("10.0.0.2".parse().unwrap(), &connection));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    drop(silent);
    drop(waiting.await.expect("it waits until there is room"));
    let held = limiter.held.lock();
    assert_eq!((held.live.len(), held.ending), (0, 0));
}
