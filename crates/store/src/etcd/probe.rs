//! Probe of an etcd and of the store in it, without writing.

use std::time::Duration;

use super::{
    client::{EtcdClient, EtcdFault},
    config::EtcdConfig,
    layout::{EtcdLayout, RevisionMapping},
    open::parse_base,
    proto::{RangeRequest, StatusResponse},
};

/// Time limit for the answer of a member.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Probe result of a member.
#[derive(Clone, Debug)]
pub struct EtcdMember {
    /// URL of the member.
    pub url: String,
    /// Status of the member, or the error with a hint; `None` if the user may not read it.
    pub state: Result<Option<EtcdMemberState>, String>,
    /// True if there is a store under the prefix. An error if it cannot be read or this version cannot use it.
    pub store: Result<bool, String>,
}

/// Status of a member of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdMemberState {
    /// Version of etcd.
    pub version: String,
    /// Size of its database in bytes, and the part in use.
    pub bytes: (u64, u64),
    /// True if the member knows a leader.
    pub has_leader: bool,
    /// Alarms (NOSPACE, CORRUPT) and other errors, as etcd reports them.
    pub errors: Vec<String>,
}

/// Probes each member separately. Nothing is written.
pub async fn probe(etcd: &EtcdConfig) -> Vec<EtcdMember> {
    let asked = etcd.endpoints.iter().map(|url| member(etcd, url));
    futures::future::join_all(asked).await
}

async fn member(etcd: &EtcdConfig, url: &str) -> EtcdMember {
    let alone = EtcdConfig { endpoints: vec![url.to_owned()], ..etcd.clone() };
    let client = match EtcdClient::new(&alone) {
        Ok(client) => client,
        Err(why) => return EtcdMember { url: url.to_owned(), state: Err(why.clone()), store: Err(why) },
    };
    let told = |fault: EtcdFault| fault.with_hint();
    let state = match client.status(PROBE_TIMEOUT).await {
        // etcd with authentication tells the status only to root.
        Err(EtcdFault::Refused(why)) if why.contains("permission denied") => Ok(None),
        answer => answer.map(|status| Some(state_of(status))).map_err(told),
    };
    let store = match &state {
        Ok(_) => holds_store(&client, &etcd.prefix).await,
        Err(why) => Err(why.clone()),
    };
    EtcdMember { url: url.to_owned(), state, store }
}

async fn holds_store(client: &EtcdClient, prefix: &str) -> Result<bool, String> {
    let layout = EtcdLayout { prefix: prefix.as_bytes().to_vec(), numbering: RevisionMapping { base: 0 } };
    let request = RangeRequest { key: layout.meta().into(), ..RangeRequest::default() };
    let found = client.range(request, PROBE_TIMEOUT).await.map_err(|fault| fault.with_hint())?;
    match found.kvs.first() {
        Some(record) => parse_base(&record.value).map(|_| true).map_err(|refusal| refusal.to_string()),
        None => Ok(false),
    }
}

fn state_of(status: StatusResponse) -> EtcdMemberState {
    let bytes = |signed: i64| u64::try_from(signed).unwrap_or_default();
    EtcdMemberState {
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
    use crate::{
        etcd::open_etcd,
        open::{Engine, StoreConfig},
    };

    #[tokio::test]
    async fn an_unreachable_etcd_member_is_reported_with_its_flag() {
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
