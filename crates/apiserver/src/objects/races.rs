//! Who writes what others write at the same time tries again, for as long as the request may take.

use portolan_types::ObjectKey;

use crate::{ApiServer, admission::Turn};

/// So often a writer reads again at once. Then it waits for its turn: of many writers of one object all but one would always
/// have written for nothing.
const AT_ONCE: usize = 3;

/// The races for one object that one request has lost.
pub(crate) struct Races<'a> {
    api: &'a ApiServer,
    key: &'a ObjectKey,
    lost: usize,
    turn: Option<Turn<ObjectKey>>,
}

impl<'a> Races<'a> {
    pub(crate) fn new(api: &'a ApiServer, key: &'a ObjectKey) -> Self {
        Self { api, key, lost: 0, turn: None }
    }

    /// One more is lost; when this returns, the object can be read again.
    pub(crate) async fn lose(&mut self) {
        self.lost += 1;
        if self.lost >= AT_ONCE && self.turn.is_none() {
            self.turn = Some(self.api.racing.wait(self.key.clone()).await);
        }
    }
}
