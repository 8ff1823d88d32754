//! Places that connections take, of which no address has more than its share.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::limits::give_back;

/// So many places, of which one address has at most half: whoever opens connections to say nothing shuts out himself.
pub(super) struct Places {
    all: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// One of them, until this is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    address: IpAddr,
}

impl Places {
    pub(super) fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { all, taken: Mutex::default() })
    }

    /// A place for a connection from an address; `None` when there is none for it.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = network(address);
        let mut taken = self.taken.lock();
        let own = taken.by_address.get(&address).copied().unwrap_or(0);
        if taken.all >= self.all || own >= self.all.div_ceil(2) {
            return None;
        }
        taken.all += 1;
        taken.by_address.insert(address, own + 1);
        drop(taken);
        Some(Place { places: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all -= 1;
        give_back(&mut taken.by_address, &self.address, 1);
    }
}

/// What counts as one address: of version 6 the /64 that one host has to itself.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_takes_more_than_half() {
        let places = Places::new(4);
        let take = |address: &str| places.take(address.parse().unwrap());
        let (first, second) = (take("10.0.0.1"), take("::ffff:10.0.0.1"));
        assert!(first.is_some() && second.is_some());
        assert!(take("10.0.0.1").is_none(), "that is half of them");
        let others = [take("2001:db8::1"), take("2001:db8::2")];
        assert!(others.iter().all(Option::is_some) && take("10.0.0.2").is_none(), "all are taken");
        drop(others);
        let others = [take("2001:db8::1"), take("2001:db8::2"), take("2001:db8::3")];
        assert_eq!(others.iter().flatten().count(), 2, "a network of hosts counts as one");
        drop((first, others));
        assert!(take("10.0.0.1").is_some());
        drop(second);
        assert!(places.taken.lock().by_address.is_empty(), "nothing is kept of those that have gone");
    }
}
