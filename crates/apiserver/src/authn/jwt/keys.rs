//! Documents of an issuer: its discovery document, the JSON Web Key Set and the endpoints that this names.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use parking_lot::RwLock;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    net::TcpStream,
    sync::{Mutex, OwnedMutexGuard},
    time::Instant,
};
use tokio_rustls::TlsConnector;

use crate::{
    config::IssuerConfiguration,
    webhooks::{CheckedAddresses, trust_of_bundle},
};

/// Size limit of a document of an issuer, in bytes.
const MAX_DOCUMENT: usize = 1024 * 1024;
/// Limit of the keys of an issuer.
const MAX_KEYS: usize = 256;
/// Time for fetching the discovery document and the keys.
const FETCH: Duration = Duration::from_secs(10);
/// Pause between two fetches. Tokens with unknown key ids cause no additional fetches.
const REFETCH: Duration = Duration::from_secs(10);
/// Time for which the endpoints of an issuer are not fetched again.
const ENDPOINTS_KEPT: Duration = Duration::from_secs(300);

/// Keys of one issuer, fetched when a token names an unknown one.
pub(super) struct IssuerKeys {
    issuer: String,
    discovery: String,
    tls: Arc<ClientConfig>,
    /// Addresses that the issuer of a tenant may have; `None` for any.
    allowed: Option<CheckedAddresses>,
    known: RwLock<Arc<Vec<Jwk>>>,
    /// Time of the last fetch. The lock is held while one runs.
    fetched: Arc<Mutex<Option<Instant>>>,
    /// Endpoints and the time of their fetch. The lock is held while one runs.
    endpoints: Mutex<Option<(Instant, SignInEndpoints)>>,
}

/// Endpoints of an issuer for sign-ins.
#[derive(Clone)]
pub(super) struct SignInEndpoints {
    pub(super) authorization: String,
    pub(super) token: String,
    pub(super) scopes: Vec<String>,
}

/// Discovery document of an issuer (OpenID Connect Discovery 1.0).
#[derive(Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    jwks_uri: String,
    authorization_endpoint: Option<String>,
    token_endpoint: Option<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
}

#[derive(Deserialize)]
struct KeyDocument {
    keys: Vec<Value>,
}

impl IssuerKeys {
    /// Creates the keys of an issuer; nothing is fetched yet. `allowed` are the addresses that it may have, if a tenant
    /// names it.
    ///
    /// # Errors
    /// An unusable certificate authority.
    pub(super) fn new(of: &IssuerConfiguration, allowed: Option<CheckedAddresses>) -> Result<Self, String> {
        let discovery = if of.discovery_url.is_empty() {
            format!("{}/.well-known/openid-configuration", of.url.trim_end_matches('/'))
        } else {
            of.discovery_url.clone()
        };
        let tls = Arc::new(trust_of_bundle(of.certificate_authority.as_bytes())?);
        Ok(Self {
            issuer: of.url.clone(),
            discovery,
            tls,
            allowed,
            known: RwLock::default(),
            fetched: Arc::default(),
            endpoints: Mutex::default(),
        })
    }

    /// Returns the keys that may have signed a token: those of its key id, or all if it names none.
    ///
    /// # Errors
    /// The failure to fetch the keys, while none are known.
    pub(super) async fn candidates(self: &Arc<Self>, id: Option<&str>) -> Result<Vec<Jwk>, String> {
        let found = self.known_candidates(id);
        if !found.is_empty() {
            return Ok(found);
        }
        let fetched = self.fetched.clone().lock_owned().await;
        let found = self.known_candidates(id);
        if !found.is_empty() || fetched.is_some_and(|at| at.elapsed() < REFETCH) {
            return Ok(found);
        }
        // Runs in a separate task, so that clients that disconnect before the answer cause no further fetch.
        let keys = self.clone();
        let renewal = tokio::spawn(async move { keys.renew(fetched).await });
        renewal.await.map_err(|error| error.to_string())??;
        Ok(self.known_candidates(id))
    }

    /// Fetches the keys. Holds the lock meanwhile, and notes the time in it.
    async fn renew(&self, mut fetched: OwnedMutexGuard<Option<Instant>>) -> Result<(), String> {
        let keys = tokio::time::timeout(FETCH, self.fetch()).await;
        *fetched = Some(Instant::now());
        *self.known.write() = Arc::new(keys.map_err(|_| "the issuer does not answer in time")??);
        Ok(())
    }

    fn known_candidates(&self, id: Option<&str>) -> Vec<Jwk> {
        let known = self.known.read().clone();
        let is_candidate = |key: &&Jwk| id.is_none() || key.common.key_id.as_deref() == id;
        known.iter().filter(is_candidate).cloned().collect()
    }

    /// Returns the endpoints for sign-ins.
    ///
    /// # Errors
    /// A failure to fetch them, or an issuer without.
    pub(super) async fn endpoints(&self) -> Result<SignInEndpoints, String> {
        let mut known = self.endpoints.lock().await;
        if let Some((_, endpoints)) = known.as_ref().filter(|(at, _)| at.elapsed() < ENDPOINTS_KEPT) {
            return Ok(endpoints.clone());
        }
        let document = tokio::time::timeout(FETCH, self.discover()).await;
        let document = document.map_err(|_| "the issuer does not answer in time")??;
        let both = document.authorization_endpoint.zip(document.token_endpoint);
        let (authorization, token) = both.ok_or("the issuer has no endpoints for sign-ins")?;
        let endpoints = SignInEndpoints { authorization, token, scopes: document.scopes_supported };
        *known = Some((Instant::now(), endpoints.clone()));
        Ok(endpoints)
    }

    /// Posts a form to an endpoint of the issuer.
    ///
    /// # Errors
    /// A refusal, or no answer within [`FETCH`].
    pub(super) async fn post<T: serde::de::DeserializeOwned>(&self, url: &str, form: String) -> Result<T, String> {
        let answer = tokio::time::timeout(FETCH, self.exchange(url, Some(form))).await;
        answer.map_err(|_| "the issuer does not answer in time")?
    }

    async fn discover(&self) -> Result<DiscoveryDocument, String> {
        let document: DiscoveryDocument = self.exchange(&self.discovery, None).await?;
        if document.issuer != self.issuer {
            return Err(format!("the discovery document is of the issuer {:?}", document.issuer));
        }
        Ok(document)
    }

    async fn fetch(&self) -> Result<Vec<Jwk>, String> {
        let document = self.discover().await?;
        let keys: KeyDocument = self.exchange(&document.jwks_uri, None).await?;
        // Keys of unknown types, and those for encryption, are left out.
        let read = |key: Value| serde_json::from_value::<Jwk>(key).ok().filter(is_for_signatures);
        Ok(keys.keys.into_iter().filter_map(read).take(MAX_KEYS).collect())
    }

    /// Fetches a document, or posts a form. Redirects are not followed.
    async fn exchange<T: serde::de::DeserializeOwned>(&self, url: &str, form: Option<String>) -> Result<T, String> {
        let method = if form.is_some() { Method::POST } else { Method::GET };
        let verb = if form.is_some() { "Post" } else { "Get" };
        let failed = |why: &dyn std::fmt::Display| format!("{verb} {url:?}: {why}");
        let uri: Uri = url.parse().map_err(|error| failed(&error))?;
        if uri.scheme_str() != Some("https") {
            return Err(failed(&"URL scheme must be https"));
        }
        let host = uri.host().unwrap_or_default();
        let dialed = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(dialed.clone()).map_err(|error| failed(&error))?;
        let port = uri.port_u16().unwrap_or(443);
        let stream = match &self.allowed {
            Some(allowed) => allowed.dial(&dialed, port).await.map_err(|why| failed(&why))?,
            None => TcpStream::connect((dialed, port)).await.map_err(|error| failed(&error))?,
        };
        let stream =
            TlsConnector::from(self.tls.clone()).connect(name, stream).await.map_err(|error| failed(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let mut request = Request::builder().method(method).uri(path);
        if form.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        let request = request
            .header(header::HOST, authority)
            .header(header::ACCEPT, "application/json")
            .body(Full::new(Bytes::from(form.unwrap_or_default())))
            .map_err(|error| failed(&error))?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
            if !response.status().is_success() {
                return Err(failed(&response.status()));
            }
            let body =
                Limited::new(response.into_body(), MAX_DOCUMENT).collect().await.map_err(|error| failed(&error))?;
            serde_json::from_slice(&body.to_bytes()).map_err(|error| failed(&error))
        };
        let mut connection = std::pin::pin!(connection);
        let mut exchange = std::pin::pin!(exchange);
        tokio::select! {
            found = &mut exchange => found,
            // The answer may have arrived with the end of the connection.
            _ = &mut connection => exchange.await,
        }
    }
}

fn is_for_signatures(key: &Jwk) -> bool {
    key.common.public_key_use.as_ref().is_none_or(|purpose| *purpose == PublicKeyUse::Signature)
}
