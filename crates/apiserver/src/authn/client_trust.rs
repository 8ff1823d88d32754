//! Trust in client certificates: those of the server's own authority, of further authorities, and of front proxies,
//! which alone may state the identity of their clients in headers.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode_str;
use portolan_strategy::rbac::User;
use portolan_types::agent::{AGENT_BOOTSTRAPPERS, AGENTS};
use rustls::{
    RootCertStore,
    crypto::ring,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::{
    config::{AccessConfig, ConfigError, RequestHeaderConfig},
    pki::certificates,
};

use super::{user_of_certificate, with_authenticated};

/// Most groups and attributes that a front proxy can state.
const MAX_VALUES: usize = 1024;

/// Authorities of client certificates.
pub(crate) struct ClientTrust {
    own: ClientAuthority,
    further: Option<ClientAuthority>,
    proxies: Option<(ClientAuthority, Arc<FrontProxyHeaders>)>,
}

/// Certificates of one or several authorities.
struct ClientAuthority {
    trusted: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// Meaning of a verified client certificate.
#[derive(Clone, Debug, Default)]
pub(crate) struct CertifiedClient {
    /// User of the certificate; `None` for a front proxy without a user of its own.
    pub(crate) user: Option<Arc<User>>,
    /// Headers that are believed on its connection.
    pub(crate) proxy: Option<Arc<FrontProxyHeaders>>,
}

/// Headers of front proxies.
#[derive(Debug)]
pub(crate) struct FrontProxyHeaders {
    config: RequestHeaderConfig,
}

impl ClientTrust {
    /// Reads the authorities. `own` is the certificate of the server's own one, PEM.
    ///
    /// # Errors
    /// Files that cannot be read, or that have no certificates.
    pub(crate) fn open(own: &str, config: &AccessConfig) -> Result<Self, ConfigError> {
        let proxies = match &config.request_header {
            None => None,
            Some(headers) => {
                check_header_names(headers)?;
                let authority = ClientAuthority::read(&headers.client_ca)?;
                Some((authority, Arc::new(FrontProxyHeaders { config: headers.clone() })))
            }
        };
        let own = certificates(own).map_err(ConfigError::Crypto)?;
        Ok(Self {
            own: ClientAuthority::new(own).map_err(ConfigError::Crypto)?,
            further: config.client_ca.as_deref().map(ClientAuthority::read).transpose()?,
            proxies,
        })
    }

    /// Returns the certificates of all authorities, for the handshake.
    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        let authorities =
            [Some(&self.own), self.further.as_ref(), self.proxies.as_ref().map(|(authority, _)| authority)];
        for authority in authorities.into_iter().flatten() {
            roots.add_parsable_certificates(authority.trusted.iter().cloned());
        }
        roots
    }

    /// Returns the meaning of a certificate chain that the handshake has verified; `None` if it means no user.
    pub(crate) fn client(&self, chain: &[CertificateDer<'_>]) -> Option<CertifiedClient> {
        let (leaf, between) = chain.split_first()?;
        let user = user_of_certificate(leaf);
        if self.own.has_signed(leaf, between) {
            return user.map(|user| CertifiedClient { user: Some(Arc::new(user)), proxy: None });
        }
        let name = user.as_ref().map(|user| user.name.as_str()).unwrap_or_default();
        let proxy = self.proxies.as_ref().filter(|(authority, headers)| {
            let allowed = &headers.config.allowed_names;
            (allowed.is_empty() || allowed.iter().any(|allowed| allowed == name)) && authority.has_signed(leaf, between)
        });
        let user = user.filter(|user| {
            self.further.as_ref().is_some_and(|further| further.has_signed(leaf, between)) && !is_agent(user)
        });
        let client = CertifiedClient { user: user.map(Arc::new), proxy: proxy.map(|(_, headers)| headers.clone()) };
        (client.user.is_some() || client.proxy.is_some()).then_some(client)
    }
}

impl ClientAuthority {
    fn read(path: &Path) -> Result<Self, ConfigError> {
        let wrong = |what: String| ConfigError::Content { path: path.to_owned(), what };
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::File { path: path.to_owned(), source })?;
        Self::new(certificates(&text).map_err(wrong)?).map_err(wrong)
    }

    fn new(trusted: Vec<CertificateDer<'static>>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in &trusted {
            roots.add(certificate.clone()).map_err(|error| error.to_string())?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Self { trusted, verifier: verifier.map_err(|error| error.to_string())? })
    }

    fn has_signed(&self, leaf: &CertificateDer<'_>, between: &[CertificateDer<'_>]) -> bool {
        // The handshake has just checked the time; this finds the authority.
        self.verifier.verify_client_cert(leaf, between, UnixTime::now()).is_ok()
    }
}

impl FrontProxyHeaders {
    /// Returns the user that a front proxy states; `None` without a name.
    pub(crate) fn user(&self, headers: &HeaderMap) -> Option<User> {
        let RequestHeaderConfig { username_headers, uid_headers, group_headers, extra_prefixes, .. } = &self.config;
        let first =
            |names: &[String]| names.iter().find_map(|name| values(headers, name).find(|text| !text.is_empty()));
        let name = first(username_headers)?;
        let groups: Vec<String> =
            group_headers.iter().flat_map(|name| values(headers, name)).take(MAX_VALUES).collect();
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (header, value) in headers.iter().take(MAX_VALUES) {
            let key = extra_prefixes.iter().find_map(|prefix| strip_prefix(header, prefix));
            if let (Some(key), Ok(value)) = (key, value.to_str()) {
                let key = percent_decode_str(&key).decode_utf8_lossy().into_owned();
                extra.entry(key).or_default().push(value.to_owned());
            }
        }
        let uid = first(uid_headers).unwrap_or_default();
        let user = User { name, uid, groups: with_authenticated(groups), extra };
        (!is_agent(&user)).then_some(user)
    }
}

/// Returns true for users that only the server's own authority may make.
fn is_agent(user: &User) -> bool {
    user.is_in(AGENTS) || user.is_in(AGENT_BOOTSTRAPPERS)
}

fn values<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = String> + use<'a> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok();
    let all = name.into_iter().flat_map(|name| headers.get_all(name).iter());
    all.filter_map(|value| value.to_str().ok().map(str::to_owned))
}

fn strip_prefix(header: &HeaderName, prefix: &str) -> Option<String> {
    let (start, rest) = header.as_str().split_at_checked(prefix.len())?;
    (start.eq_ignore_ascii_case(prefix) && !rest.is_empty()).then(|| rest.to_owned())
}

fn check_header_names(config: &RequestHeaderConfig) -> Result<(), ConfigError> {
    let RequestHeaderConfig { username_headers, uid_headers, group_headers, extra_prefixes, .. } = config;
    for name in [username_headers, uid_headers, group_headers, extra_prefixes].into_iter().flatten() {
        // Headers of other names are not removed from the requests of other clients.
        if HeaderName::from_bytes(name.as_bytes()).is_err() || !name.to_lowercase().starts_with("x-remote-") {
            let what = format!("{name:?} is not a header that begins with X-Remote-");
            return Err(ConfigError::Content { path: "--requestheader-*-headers".into(), what });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

    use super::*;

    struct Authority {
        pem: String,
        issuer: Issuer<'static, KeyPair>,
    }

    fn authority() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    impl Authority {
        fn client(&self, name: &str, group: &str) -> CertificateDer<'static> {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.distinguished_name.push(DnType::OrganizationName, group);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            params.signed_by(&KeyPair::generate().unwrap(), &self.issuer).unwrap().der().clone()
        }
    }

    fn headers(config: &[(&str, &str)]) -> HeaderMap {
        let header = |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        config.iter().map(header).collect()
    }

    fn proxy_config(client_ca: &Path, username: &str) -> RequestHeaderConfig {
        RequestHeaderConfig {
            client_ca: client_ca.to_owned(),
            allowed_names: vec!["front".into()],
            username_headers: vec![username.into()],
            uid_headers: vec!["X-Remote-Uid".into()],
            group_headers: vec!["X-Remote-Group".into()],
            extra_prefixes: vec!["X-Remote-Extra-".into()],
        }
    }

    #[test]
    fn a_certificate_is_limited_to_its_authoritys_scope() {
        let folder = tempfile::tempdir().unwrap();
        let [own, further, proxies, stranger] = [authority(), authority(), authority(), authority()];
        let file = |name: &str, of: &Authority| {
            let path = folder.path().join(name);
            std::fs::write(&path, &of.pem).unwrap();
            path
        };
        let config = AccessConfig {
            client_ca: Some(file("further.crt", &further)),
            request_header: Some(proxy_config(&file("proxies.crt", &proxies), "X-Remote-User")),
            ..AccessConfig::default()
        };
        let trust = ClientTrust::open(&own.pem, &config).unwrap();
        assert_eq!(trust.roots().len(), 3);
        for (case, certificate, user, is_proxy) in [
            ("the own authority", own.client("ann", "dev"), Some("ann"), false),
            ("it makes agents", own.client("a", AGENTS), Some("a"), false),
            ("a further authority", further.client("bob", "dev"), Some("bob"), false),
            ("it makes no agents", further.client("a", AGENTS), None, false),
            ("nor does it vouch for proxies", further.client("front", "x"), Some("front"), false),
            ("a proxy", proxies.client("front", "x"), None, true),
            ("a proxy of another name", proxies.client("back", "x"), None, false),
            ("a stranger", stranger.client("ann", "dev"), None, false),
        ] {
            let found = trust.client(&[certificate]).unwrap_or_default();
            let name = found.user.as_ref().map(|user| user.name.as_str());
            assert_eq!((name, found.proxy.is_some()), (user, is_proxy), "{case}");
        }
    }

    #[test]
    fn proxies_state_users_in_headers() {
        let proxy = FrontProxyHeaders { config: proxy_config(Path::new("x"), "X-Remote-User") };
        let stated = headers(&[
            ("x-remote-user", "ann"),
            ("x-remote-group", "dev"),
            ("x-remote-group", "ops"),
            ("x-remote-uid", "7"),
            ("x-remote-extra-acme.com%2fteam", "a"),
            ("x-remote-extra-acme.com%2fteam", "b"),
        ]);
        let user = proxy.user(&stated).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("ann", "7"));
        assert_eq!(user.groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!(user.extra["acme.com/team"], ["a", "b"]);
        for (case, stated) in [
            ("no name", headers(&[("x-remote-group", "dev")])),
            ("an empty name", headers(&[("x-remote-user", "")])),
            ("an agent", headers(&[("x-remote-user", "a"), ("x-remote-group", AGENTS)])),
        ] {
            assert_eq!(proxy.user(&stated), None, "{case}");
        }
        let why = check_header_names(&proxy_config(Path::new("x"), "X-User")).unwrap_err().to_string();
        assert!(why.contains("\"X-User\" is not a header that begins with X-Remote-"), "{why}");
    }
}
