//! Looking at an etcd, and at the store in it, without changing anything.

use std::time::Duration;

use super::{
    client::{Client, Fault},
    config::EtcdConfig,
    layout::{Layout, Numbering},
    opening::base_in,
    proto::{RangeRequest, StatusResponse},
};

/// How long a member may take for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// A member of etcd, and what it answered.
#[derive(Clone, Debug)]
pub struct Member {
    /// Where it is.
    pub url: String,
    /// What it says of itself, or why it says nothing, with where to look; `None` when it does not tell this user.
    pub state: Result<Option<MemberState>, String>,
    /// Whether it holds a store under the prefix, or why that cannot be told: it cannot be read, or this version cannot use it.
    pub store: Result<bool, String>,
}

/// What a member of etcd says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// Its version.
    pub version: String,
    /// Bytes of its database, and those of them that are in use.
    pub bytes: (u64, u64),
    /// Whether it knows a leader.
    pub has_leader: bool,
    /// Alarms (NOSPACE, CORRUPT) and what else keeps it from working, in its words.
    pub errors: Vec<String>,
}

/// Asks each member by itself. Nothing is written.
pub async fn probe(etcd: &EtcdConfig) -> Vec<Member> {
    let asked = etcd.endpoints.iter().map(|url| member(etcd, url));
    futures::future::join_all(asked).await
}

async fn member(etcd: &EtcdConfig, url: &str) -> Member {
    let alone = EtcdConfig { endpoints: vec![url.to_owned()], ..etcd.clone() };
    let client = match Client::new(&alone) {
        Ok(client) => client,
        Err(why) => return Member { url: url.to_owned(), state: Err(why.clone()), store: Err(why) },
    };
    let told = |fault: Fault| fault.told();
    let state = match client.status(PATIENCE).await {
        // Only root is told, where etcd asks for users.
        Err(Fault::Refused(why)) if why.contains("permission denied") => Ok(None),
        answer => answer.map(|status| Some(state_of(status))).map_err(told),
    };
    let store = match &state {
        Ok(_) => holds_store(&client, &etcd.prefix).await,
        Err(why) => Err(why.clone()),
    };
    Member { url: url.to_owned(), state, store }
}

async fn holds_store(client: &Client, prefix: &str) -> Result<bool, String> {
    let layout = Layout { prefix: prefix.as_bytes().to_vec(), numbering: Numbering { base: 0 } };
    let request = RangeRequest { key: layout.meta().into(), ..RangeRequest::default() };
    let found = client.range(request, PATIENCE).await.map_err(|fault| fault.told())?;
    match found.kvs.first() {
        Some(record) => base_in(&record.value).map(|_| true).map_err(|refusal| refusal.to_string()),
        None => Ok(false),
    }
}

fn state_of(status: StatusResponse) -> MemberState {
    let bytes = |signed: i64| u64::try_from(signed).unwrap_or_default();
    MemberState {
        version: status.version,
        bytes: (bytes(status.db_size), bytes(status.db_size_in_use)),
        has_leader: status.leader != 0,
        errors: status.errors.iter().map(|error| error.trim().to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::Seams;

    use super::*;
    use crate::{Engine, StoreConfig, open_etcd};

    #[tokio::test]
    async fn a_member_that_is_not_there_is_told_with_the_flag_to_look_at() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", taken.local_addr().unwrap());
        drop(taken);
        let [member] = &probe(&EtcdConfig::new(vec![url.clone()])).await[..] else { panic!("one was asked") };
        let why = member.state.as_ref().unwrap_err();
        assert!(why.contains(&url) && why.contains("Connection refused") && why.contains("--etcd-endpoints"), "{why}");
        assert_eq!(member.store.as_ref().unwrap_err(), why);
    }

    #[tokio::test]
    #[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
    async fn a_member_tells_of_itself_and_of_the_store() {
        let urls = std::env::var("PORTOLAN_ETCD").expect("PORTOLAN_ETCD names a running etcd");
        let mut etcd = EtcdConfig::new(urls.split(',').map(str::to_owned).collect());
        etcd.prefix = format!("/probed/{}/", Seams::system().uid());
        for is_there in [false, true] {
            for member in probe(&etcd).await {
                let state = member.state.unwrap().unwrap();
                assert!(state.version.starts_with("3.") && state.has_leader && state.errors.is_empty(), "{state:?}");
                assert_eq!(member.store, Ok(is_there));
            }
            if !is_there {
                let config = StoreConfig::new(Engine::Memory, None);
                open_etcd(&etcd, &config, &Seams::system()).await.unwrap().0.close().await;
            }
        }
    }
}
