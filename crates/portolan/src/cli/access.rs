//! Flags of identities, authorization and certificates, as kube-apiserver has them.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use portolan_apiserver::config::{
    AccessConfig, CertificateFiles, ExternalUrl, RequestHeaderConfig, ServingConfig, TokenWebhookConfig,
};

use super::values;

/// Flags of identities and authorization.
#[derive(Args, Debug, Default)]
#[group(skip)]
pub(super) struct AccessArgs {
    /// Certificate authorities (PEM) whose client certificates are accepted beside the server's own: the common name is
    /// the user, the organizations are the groups.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Certificate authorities (PEM) of proxies that authenticate their clients and state them in headers. The headers
    /// count on connections with such a certificate only.
    #[arg(long, value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Common names of the proxies' certificates; any if not given.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "requestheader_client_ca_file")]
    requestheader_allowed_names: Vec<String>,
    /// Headers with the name of the user.
    #[arg(
        long,
        value_name = "HEADERS",
        value_delimiter = ',',
        default_value = "X-Remote-User",
        requires = "requestheader_client_ca_file"
    )]
    requestheader_username_headers: Vec<String>,
    /// Headers with the uid of the user.
    #[arg(
        long,
        value_name = "HEADERS",
        value_delimiter = ',',
        default_value = "X-Remote-Uid",
        requires = "requestheader_client_ca_file"
    )]
    requestheader_uid_headers: Vec<String>,
    /// Headers with groups of the user.
    #[arg(
        long,
        value_name = "HEADERS",
        value_delimiter = ',',
        default_value = "X-Remote-Group",
        requires = "requestheader_client_ca_file"
    )]
    requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with further attributes of the user.
    #[arg(
        long,
        value_name = "PREFIXES",
        value_delimiter = ',',
        default_value = "X-Remote-Extra-",
        requires = "requestheader_client_ca_file"
    )]
    requestheader_extra_headers_prefix: Vec<String>,
    /// Kubeconfig of a webhook that reviews bearer tokens which the server does not know (TokenReview of
    /// authentication.k8s.io/v1).
    #[arg(long, value_name = "FILE")]
    authentication_token_webhook_config_file: Option<PathBuf>,
    /// Time that its answers are remembered. Seconds, or with units.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = values::time, requires = "authentication_token_webhook_config_file")]
    authentication_token_webhook_cache_ttl: Option<Duration>,
    /// File with an AuthorizationConfiguration of apiserver.config.k8s.io/v1: webhooks that decide before or after the
    /// roles of the workspace.
    #[arg(long, value_name = "FILE")]
    authorization_config: Option<PathBuf>,
    /// Certificate chain (PEM) that is presented to clients which connect by one of its DNS names; reread when it
    /// changes. Other clients get the server's own certificate.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// URL at which clients reach the server, such as https://portolan.example.com:6443, without a path: in
    /// admin.kubeconfig, and in the URLs of workspaces and of views of exports. Its host is in the server's
    /// certificate. By default the address that the server listens on.
    #[arg(long, value_name = "URL")]
    external_url: Option<ExternalUrl>,
    /// Oldest version of TLS that is served.
    #[arg(long, value_enum, value_name = "VERSION", default_value_t)]
    tls_min_version: TlsVersion,
    /// Cipher suites of TLS 1.2 that are served; those of TLS 1.3 always are.
    #[arg(long, value_name = "SUITES", value_delimiter = ',')]
    tls_cipher_suites: Vec<String>,
}

/// Version of TLS, as kube-apiserver names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum TlsVersion {
    #[default]
    #[value(name = "VersionTLS12")]
    Tls12,
    #[value(name = "VersionTLS13")]
    Tls13,
}

impl AccessArgs {
    /// Returns the configuration of identities and authorization.
    pub(super) fn access(&self) -> AccessConfig {
        let request_header = self.requestheader_client_ca_file.clone().map(|client_ca| RequestHeaderConfig {
            client_ca,
            allowed_names: self.requestheader_allowed_names.clone(),
            username_headers: self.requestheader_username_headers.clone(),
            uid_headers: self.requestheader_uid_headers.clone(),
            group_headers: self.requestheader_group_headers.clone(),
            extra_prefixes: self.requestheader_extra_headers_prefix.clone(),
        });
        let token_webhook = self.authentication_token_webhook_config_file.clone().map(|kubeconfig| {
            TokenWebhookConfig { kubeconfig, cache: self.authentication_token_webhook_cache_ttl.unwrap_or_default() }
        });
        AccessConfig {
            client_ca: self.client_ca_file.clone(),
            request_header,
            token_webhook,
            authorization: self.authorization_config.clone(),
        }
    }

    /// Returns the configuration of TLS.
    pub(super) fn serving(&self) -> ServingConfig {
        let files = self.tls_cert_file.clone().zip(self.tls_private_key_file.clone());
        ServingConfig {
            files: files.map(|(certificate, key)| CertificateFiles { certificate, key }),
            only_tls13: self.tls_min_version == TlsVersion::Tls13,
            cipher_suites: self.tls_cipher_suites.clone(),
            external_url: self.external_url.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        access: AccessArgs,
    }

    #[test]
    fn flags_are_those_of_kube_apiserver() {
        let parse = |flags: &str| Line::try_parse_from(["server"].into_iter().chain(flags.split_whitespace()));
        let none = parse("").unwrap().access;
        assert_eq!((none.access(), none.serving()), (AccessConfig::default(), ServingConfig::default()));
        let proxy = parse("--requestheader-client-ca-file ca --requestheader-allowed-names a,b").unwrap().access;
        let headers = proxy.access().request_header.unwrap();
        assert_eq!((headers.allowed_names.len(), &*headers.username_headers[0]), (2, "X-Remote-User"));
        let tls = "--tls-cert-file c --tls-private-key-file k --tls-min-version VersionTLS13";
        let tls = parse(tls).unwrap().access.serving();
        assert!(tls.only_tls13 && tls.files.is_some());
        for (flags, words) in [
            ("--tls-cert-file c", "--tls-private-key-file"),
            ("--requestheader-allowed-names a", "--requestheader-client-ca-file"),
            ("--tls-min-version VersionTLS10", "possible values: VersionTLS12, VersionTLS13"),
        ] {
            let why = parse(flags).err().unwrap().to_string();
            assert!(why.contains(words), "{flags}: {why}");
        }
    }
}
