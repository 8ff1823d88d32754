//! Client of etcd: it uses one member at a time, switches to the next one after a failure, and classifies errors.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::Stream;
use http::uri::PathAndQuery;
use parking_lot::RwLock;
use tokio::time::Instant;
use tonic::{
    Code, Request, Response, Status, Streaming,
    client::Grpc,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};
use tonic_prost::ProstCodec;

use super::{
    config::{EtcdConfig, SecretString, causes},
    proto::{
        AuthenticateRequest, AuthenticateResponse, CompactionRequest, CompactionResponse, LeaseGrantRequest,
        LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse,
        RangeRequest, RangeResponse, StatusRequest, StatusResponse, TxnRequest, TxnResponse, WatchRequest,
        WatchResponse,
    },
};

/// Most bytes of one answer. A read that exceeds it is repeated with a lower limit.
const MAX_ANSWER: usize = 64 << 20;
/// Time after which a read is sent to another member.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Failure of a request to etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EtcdFault {
    /// Not done: no member is reachable.
    #[error("no member can be reached: {0}")]
    Unreachable(String),
    /// Possibly done: no answer arrived.
    #[error("no answer: {0}")]
    Unknown(String),
    /// Not done: too many requests are queued.
    #[error("too many requests are queued")]
    Busy,
    /// Not done: etcd's database is full.
    #[error("its database is full")]
    Full,
    /// Not done: the request exceeds etcd's limit.
    #[error("the request is too large: {0}")]
    TooLarge(String),
    /// The answer is larger than [`MAX_ANSWER`].
    #[error("the answer is too large")]
    LargeAnswer,
    /// The requested revision is compacted.
    #[error("the revision is compacted")]
    Compacted,
    /// The requested revision is in the future.
    #[error("the revision is in the future")]
    Future,
    /// Not done: the token has expired.
    #[error("the token is not accepted")]
    Token,
    /// Not done, permanently: missing permissions and the like.
    #[error("it refused: {0}")]
    Refused(String),
}

impl EtcdFault {
    fn of(status: &Status) -> Self {
        use std::error::Error as _;
        let message = status.message();
        let never_sent = status.source().is_some_and(is_connecting);
        match status.code() {
            Code::OutOfRange if message.contains("compacted") => Self::Compacted,
            Code::OutOfRange if message.contains("future") => Self::Future,
            Code::OutOfRange => Self::LargeAnswer,
            Code::ResourceExhausted if message.contains("space exceeded") => Self::Full,
            Code::ResourceExhausted if message.contains("message larger than max") => Self::TooLarge(message.into()),
            Code::ResourceExhausted => Self::Busy,
            Code::InvalidArgument if message.contains("too large") || message.contains("too many operations") => {
                Self::TooLarge(message.into())
            }
            Code::Unauthenticated => Self::Token,
            Code::InvalidArgument if message.contains("invalid auth token") => Self::Token,
            Code::InvalidArgument if message.contains("revision of auth store is old") => Self::Token,
            Code::InvalidArgument | Code::PermissionDenied | Code::FailedPrecondition | Code::Unimplemented => {
                Self::Refused(message.into())
            }
            // `Status` shows its source only in its debug form.
            _ if never_sent => Self::Unreachable(status.source().map_or_else(|| message.into(), causes)),
            code => Self::Unknown(format!("{code:?}: {}", status.source().map_or_else(|| message.into(), causes))),
        }
    }
}

impl EtcdFault {
    /// Adds the URL of the member.
    fn at(self, url: &str) -> Self {
        match self {
            Self::Unreachable(why) => Self::Unreachable(format!("{url}: {why}")),
            Self::Unknown(why) => Self::Unknown(format!("{url}: {why}")),
            Self::Refused(why) => Self::Refused(format!("{url}: {why}")),
            other => other,
        }
    }

    /// Describes the fault for the operator, with a hint.
    pub(super) fn with_hint(&self) -> String {
        format!("{self}; {}", self.hint())
    }

    fn hint(&self) -> &'static str {
        match self {
            Self::Unreachable(why) | Self::Unknown(why) => connection_hint(why),
            Self::Refused(why) if why.contains("permission denied") => {
                "look at the rights of --etcd-user in etcd: it must read and write all keys under --etcd-prefix"
            }
            Self::Refused(why) if why.contains("auth") || why.contains("user name") => CREDENTIALS,
            Self::Token => CREDENTIALS,
            Self::Full => {
                "make room in it (compact and defragment, or a higher --quota-backend-bytes of etcd's), then etcdctl alarm disarm"
            }
            Self::Busy | Self::TooLarge(_) | Self::LargeAnswer | Self::Compacted | Self::Future | Self::Refused(_) => {
                "etcd's own log tells more"
            }
        }
    }
}

const CREDENTIALS: &str = "look at --etcd-user and --etcd-password-file";

/// Returns a hint for a failed connection, derived from the error text.
fn connection_hint(why: &str) -> &'static str {
    let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
    let is_closed =
        says(&["frame with invalid size", "connection closed", "broken pipe", "http2 error", "h2 protocol error"]);
    if says(&["invalid peer certificate"]) {
        "look at --etcd-cafile, which must hold the authority of etcd's certificate, and at --etcd-endpoints, whose names must be in it"
    } else if says(&["received fatal alert"]) || is_closed && why.starts_with("https://") {
        "look at --etcd-certfile and --etcd-keyfile: etcd wants the certificate of a client, of an authority that it trusts"
    } else if says(&["InvalidContentType", "corrupt message", "handshake eof"]) {
        "look at --etcd-endpoints: what answers there speaks no TLS, so that the URL should begin with http://"
    } else if is_closed {
        "look at --etcd-endpoints: perhaps what answers there speaks TLS, so that the URL should begin with https://"
    } else {
        "look at --etcd-endpoints, and whether etcd runs there"
    }
}

/// Returns true if a connection failed before anything was sent.
fn is_connecting(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// Condition under which a request may be repeated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RetryPolicy {
    /// Always: the request is idempotent.
    Always,
    /// Only if it was certainly not done.
    IfNotDone,
}

/// Client of etcd.
pub(crate) struct EtcdClient {
    channels: Vec<Channel>,
    urls: Vec<String>,
    current: AtomicUsize,
    user: Option<(String, SecretString)>,
    token: RwLock<Option<MetadataValue<Ascii>>>,
}

impl EtcdClient {
    /// Creates a client. It connects with the first request.
    ///
    /// # Errors
    /// Returns the errors of [`EtcdConfig::channels`].
    pub(crate) fn new(config: &EtcdConfig) -> Result<Self, String> {
        let channels = config.channels()?.into_iter().map(|endpoint| endpoint.connect_lazy()).collect();
        Ok(Self {
            channels,
            urls: config.endpoints.clone(),
            current: AtomicUsize::new(0),
            user: config.user.clone(),
            token: RwLock::default(),
        })
    }

    /// Reads a range, waiting up to `patience`.
    pub(crate) async fn range(&self, request: RangeRequest, patience: Duration) -> Result<RangeResponse, EtcdFault> {
        self.send_request(patience, RetryPolicy::Always, |channel, token| {
            let request = with_token(request.clone(), token);
            unary(channel, "/etcdserverpb.KV/Range", request)
        })
        .await
    }

    /// Runs a transaction that only reads.
    pub(crate) async fn read(&self, request: TxnRequest, patience: Duration) -> Result<TxnResponse, EtcdFault> {
        self.transact(request, patience, RetryPolicy::Always).await
    }

    /// Runs a transaction that writes: sent once, unless it was certainly not done.
    pub(crate) async fn write(&self, request: TxnRequest, patience: Duration) -> Result<TxnResponse, EtcdFault> {
        self.transact(request, patience, RetryPolicy::IfNotDone).await
    }

    async fn transact(
        &self,
        request: TxnRequest,
        patience: Duration,
        repeat: RetryPolicy,
    ) -> Result<TxnResponse, EtcdFault> {
        self.send_request(patience, repeat, |channel, token| {
            let request = with_token(request.clone(), token);
            unary(channel, "/etcdserverpb.KV/Txn", request)
        })
        .await
    }

    pub(crate) async fn compact(&self, revision: i64, patience: Duration) -> Result<(), EtcdFault> {
        let request = CompactionRequest { revision, physical: false };
        let done = self.send_request(patience, RetryPolicy::Always, |channel, token| {
            unary::<_, CompactionResponse>(channel, "/etcdserverpb.KV/Compact", with_token(request, token))
        });
        done.await.map(drop)
    }

    /// Opens a watch stream.
    pub(crate) async fn watch(
        &self,
        requests: impl Stream<Item = WatchRequest> + Send + 'static,
        patience: Duration,
    ) -> Result<(Streaming<WatchResponse>, MemberIndex), EtcdFault> {
        self.open("/etcdserverpb.Watch/Watch", requests, patience).await
    }

    /// Opens a stream that keeps leases alive.
    pub(crate) async fn keep_alive(
        &self,
        requests: impl Stream<Item = LeaseKeepAliveRequest> + Send + 'static,
        patience: Duration,
    ) -> Result<(Streaming<LeaseKeepAliveResponse>, MemberIndex), EtcdFault> {
        self.open("/etcdserverpb.Lease/LeaseKeepAlive", requests, patience).await
    }

    async fn open<Q, A>(
        &self,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
        patience: Duration,
    ) -> Result<(Streaming<A>, MemberIndex), EtcdFault>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let (member, channel, token) = self.choose().await?;
        let opening = async {
            let mut grpc = ready(channel).await?.max_decoding_message_size(usize::MAX);
            let request = with_leader(requests, token);
            grpc.streaming(request, PathAndQuery::from_static(path), ProstCodec::default()).await
        };
        let opened = tokio::time::timeout(patience, opening).await;
        match opened.unwrap_or_else(|_| Err(Status::deadline_exceeded("the stream is not opened in time"))) {
            Ok(answers) => Ok((answers.into_inner(), member)),
            Err(status) => Err(self.failed(member, &status)),
        }
    }

    /// Grants a lease of `ttl` seconds.
    pub(crate) async fn grant(&self, ttl: i64, patience: Duration) -> Result<i64, EtcdFault> {
        let request = LeaseGrantRequest { ttl, id: 0 };
        // A lease that was granted without an answer expires by itself.
        let granted = self.send_request(patience, RetryPolicy::Always, |channel, token| {
            unary::<_, LeaseGrantResponse>(channel, "/etcdserverpb.Lease/LeaseGrant", with_token(request, token))
        });
        granted.await.map(|granted| granted.id)
    }

    /// Reads the status of a member.
    pub(crate) async fn status(&self, patience: Duration) -> Result<StatusResponse, EtcdFault> {
        self.send_request(patience, RetryPolicy::Always, |channel, token| {
            unary(channel, "/etcdserverpb.Maintenance/Status", with_token(StatusRequest {}, token))
        })
        .await
    }

    /// Revokes a lease.
    pub(crate) async fn revoke(&self, id: i64, patience: Duration) -> Result<(), EtcdFault> {
        let request = LeaseRevokeRequest { id };
        let revoked = self.send_request(patience, RetryPolicy::Always, |channel, token| {
            unary::<_, LeaseRevokeResponse>(channel, "/etcdserverpb.Lease/LeaseRevoke", with_token(request, token))
        });
        revoked.await.map(drop)
    }

    /// Handles the failure of a stream, and classifies it.
    pub(crate) fn failed(&self, member: MemberIndex, status: &Status) -> EtcdFault {
        let fault = EtcdFault::of(status);
        self.note(member, &fault);
        fault.at(&self.urls[member.0])
    }

    /// Switches to the next member.
    pub(crate) fn switch_member(&self, member: MemberIndex) {
        let next = (member.0 + 1) % self.channels.len();
        // An error means that another task has switched already.
        let _ = self.current.compare_exchange(member.0, next, Ordering::AcqRel, Ordering::Acquire);
    }

    fn note(&self, member: MemberIndex, fault: &EtcdFault) {
        match fault {
            EtcdFault::Unreachable(_) | EtcdFault::Unknown(_) => self.switch_member(member),
            EtcdFault::Token => *self.token.write() = None,
            EtcdFault::Busy
            | EtcdFault::Full
            | EtcdFault::TooLarge(_)
            | EtcdFault::LargeAnswer
            | EtcdFault::Compacted
            | EtcdFault::Future
            | EtcdFault::Refused(_) => {}
        }
    }

    async fn choose(&self) -> Result<(MemberIndex, Channel, Option<MetadataValue<Ascii>>), EtcdFault> {
        let member = MemberIndex(self.current.load(Ordering::Acquire) % self.channels.len());
        let channel = self.channels[member.0].clone();
        let token = self.token(member, &channel).await?;
        Ok((member, channel, token))
    }

    /// Returns the user's token, fetched if there is none.
    async fn token(&self, member: MemberIndex, channel: &Channel) -> Result<Option<MetadataValue<Ascii>>, EtcdFault> {
        let Some((name, password)) = &self.user else { return Ok(None) };
        let known = self.token.read().clone();
        if known.is_some() {
            return Ok(known);
        }
        let request = AuthenticateRequest { name: name.clone(), password: password.0.clone() };
        let asked =
            unary::<_, AuthenticateResponse>(channel.clone(), "/etcdserverpb.Auth/Authenticate", Request::new(request));
        let answered = tokio::time::timeout(ATTEMPT_TIMEOUT, asked).await;
        let answer = answered.unwrap_or_else(|_| Err(Status::deadline_exceeded("no token in time")));
        let answer = answer.map_err(|status| match EtcdFault::of(&status) {
            // An unauthenticated request has changed nothing.
            EtcdFault::Unknown(why) => {
                self.switch_member(member);
                EtcdFault::Unreachable(why).at(&self.urls[member.0])
            }
            other => {
                self.note(member, &other);
                other.at(&self.urls[member.0])
            }
        })?;
        let token = MetadataValue::try_from(answer.into_inner().token);
        let token = token.map_err(|_| EtcdFault::Refused("etcd gave a token that is no header".into()))?;
        *self.token.write() = Some(token.clone());
        Ok(Some(token))
    }

    async fn send_request<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        patience: Duration,
        repeat: RetryPolicy,
        send: impl Fn(Channel, Option<MetadataValue<Ascii>>) -> F,
    ) -> Result<T, EtcdFault> {
        let deadline = Instant::now() + patience;
        loop {
            let fault = match self.choose().await {
                Err(fault) => fault,
                Ok((member, channel, token)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let wait = if repeat == RetryPolicy::Always { left.min(ATTEMPT_TIMEOUT) } else { left };
                    let answered = tokio::time::timeout(wait, send(channel, token)).await;
                    let answer = answered.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")));
                    match answer {
                        Ok(answer) => return Ok(answer.into_inner()),
                        Err(status) => self.failed(member, &status),
                    }
                }
            };
            let again = match &fault {
                EtcdFault::Unreachable(_) | EtcdFault::Token => true,
                EtcdFault::Unknown(_) => repeat == RetryPolicy::Always,
                EtcdFault::Busy
                | EtcdFault::Full
                | EtcdFault::TooLarge(_)
                | EtcdFault::LargeAnswer
                | EtcdFault::Compacted
                | EtcdFault::Future
                | EtcdFault::Refused(_) => false,
            };
            if !again || Instant::now() + RETRY_PAUSE >= deadline {
                return Err(fault);
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// Member of etcd, by its index among the endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberIndex(usize);

/// Makes a unary call.
async fn unary<Q, A>(channel: Channel, path: &'static str, request: Request<Q>) -> Result<Response<A>, Status>
where
    Q: prost::Message + 'static,
    A: prost::Message + Default + 'static,
{
    let mut grpc = ready(channel).await?.max_decoding_message_size(MAX_ANSWER);
    grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::default()).await
}

async fn ready(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(channel);
    // A channel that is not ready has sent nothing.
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(tonic::ConnectError(Box::new(error)))))?;
    Ok(grpc)
}

fn with_token<T>(message: T, token: Option<MetadataValue<Ascii>>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}

/// Adds the header that makes a stream end, not stall, when its member loses its leader.
fn with_leader<T>(message: T, token: Option<MetadataValue<Ascii>>) -> Request<T> {
    let mut request = with_token(message, token);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_tells_whether_it_may_have_been_done() {
        for (case, code, message, expected) in [
            (
                "compacted",
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
                EtcdFault::Compacted,
            ),
            ("future", Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision", EtcdFault::Future),
            ("no room", Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", EtcdFault::Full),
            ("busy", Code::ResourceExhausted, "etcdserver: too many requests", EtcdFault::Busy),
            ("token", Code::Unauthenticated, "etcdserver: invalid auth token", EtcdFault::Token),
            (
                "a time-out inside etcd",
                Code::Unavailable,
                "etcdserver: request timed out",
                EtcdFault::Unknown("Unavailable: etcdserver: request timed out".into()),
            ),
            (
                "a new leader",
                Code::Unavailable,
                "etcdserver: leader changed",
                EtcdFault::Unknown("Unavailable: etcdserver: leader changed".into()),
            ),
            (
                "too large",
                Code::InvalidArgument,
                "etcdserver: request is too large",
                EtcdFault::TooLarge("etcdserver: request is too large".into()),
            ),
            (
                "rights",
                Code::PermissionDenied,
                "etcdserver: permission denied",
                EtcdFault::Refused("etcdserver: permission denied".into()),
            ),
        ] {
            assert_eq!(EtcdFault::of(&Status::new(code, message)), expected, "{case}");
        }
    }

    #[test]
    fn startup_errors_name_the_endpoint() {
        let url = "https://10.0.0.1:2379";
        let unreachable = |why: &str| EtcdFault::Unreachable(why.into()).at(url);
        let refused = |why: &str| EtcdFault::Refused(why.into()).at(url);
        for (fault, words) in [
            (unreachable("tcp connect error: Connection refused"), "look at --etcd-endpoints, and whether"),
            (unreachable("invalid peer certificate: UnknownIssuer"), "look at --etcd-cafile"),
            (unreachable("received fatal alert: CertificateRequired"), "look at --etcd-certfile and --etcd-keyfile"),
            (
                EtcdFault::Unknown("Cancelled: connection closed".into()).at(url),
                "look at --etcd-certfile and --etcd-keyfile",
            ),
            (EtcdFault::Unknown("broken pipe".into()).at("http://10.0.0.1:2379"), "should begin with https://"),
            (unreachable("received corrupt message of type InvalidContentType"), "should begin with http://"),
            (refused("etcdserver: authentication failed, invalid user ID or password"), CREDENTIALS),
            (refused("etcdserver: user name is empty"), CREDENTIALS),
            (refused("etcdserver: permission denied"), "the rights of --etcd-user"),
        ] {
            let told = fault.with_hint();
            assert!(told.contains(words) && told.contains("://10.0.0.1:2379: "), "{told}");
        }
        assert!(EtcdFault::Full.with_hint().contains("alarm disarm"));
    }

    #[tokio::test]
    async fn a_refused_connection_fails_over_to_the_next_member() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let unanswered = format!("http://{}", taken.local_addr().unwrap());
        drop(taken);
        let next = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let somebody = format!("http://{}", next.local_addr().unwrap());
        let client = EtcdClient::new(&EtcdConfig::new(vec![unanswered, somebody])).unwrap();
        let (member, channel, _) = client.choose().await.unwrap();
        let sent = unary::<_, TxnResponse>(channel, "/etcdserverpb.KV/Txn", Request::new(TxnRequest::default())).await;
        let fault = client.failed(member, &sent.unwrap_err());
        let EtcdFault::Unreachable(why) = fault else { panic!("{fault:?}") };
        let expected = format!("{}: transport error: tcp connect error: Connection refused", client.urls[0]);
        assert!(why.starts_with(&expected), "{why}");
        client.current.store(0, Ordering::Release);
        tokio::select! {
            written = client.write(TxnRequest::default(), Duration::from_secs(60)) => panic!("{written:?}"),
            asked = next.accept() => drop(asked.unwrap()),
        }
        assert_eq!(client.current.load(Ordering::Acquire), 1);
    }
}
