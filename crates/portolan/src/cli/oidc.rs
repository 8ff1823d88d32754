//! Flags of authentication by an OpenID provider, as kube-apiserver has them.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Args;
use portolan_apiserver::authn::{
    AuthenticationConfiguration, AuthenticationSource, ClaimMappingsConfiguration, ClaimRuleConfiguration,
    IssuerConfiguration, JwtConfiguration, PrefixedClaimConfiguration,
};

/// Value that means no prefix.
const NO_PREFIX: &str = "-";

/// Flags of authentication.
#[derive(Args, Debug, Default)]
#[group(skip)]
pub(super) struct AuthenticationArgs {
    /// File with an AuthenticationConfiguration of apiserver.config.k8s.io/v1: issuers of tokens, mappings of their
    /// claims, and anonymous requests. It is reread when it changes. Not with --oidc-* flags.
    #[arg(long, value_name = "FILE")]
    authentication_config: Option<PathBuf>,
    /// URL of an OpenID provider whose ID tokens are accepted; https only.
    #[arg(long, value_name = "URL", requires = "oidc_client_id", conflicts_with = "authentication_config")]
    oidc_issuer_url: Option<String>,
    /// Audience that the tokens must have.
    #[arg(long, value_name = "ID", requires = "oidc_issuer_url")]
    oidc_client_id: Option<String>,
    /// Claim with the name of the user.
    #[arg(long, value_name = "CLAIM", default_value = "sub", requires = "oidc_issuer_url")]
    oidc_username_claim: String,
    /// Prefix of names; `-` for none. Without it, names of claims other than email begin with the issuer's URL and #.
    #[arg(long, value_name = "PREFIX", requires = "oidc_issuer_url")]
    oidc_username_prefix: Option<String>,
    /// Claim with the groups of the user: a text or a list of texts.
    #[arg(long, value_name = "CLAIM", requires = "oidc_issuer_url")]
    oidc_groups_claim: Option<String>,
    /// Prefix of groups.
    #[arg(long, value_name = "PREFIX", requires = "oidc_groups_claim")]
    oidc_groups_prefix: Option<String>,
    /// Claim that must have a value; may be repeated.
    #[arg(long = "oidc-required-claim", value_name = "CLAIM=VALUE", requires = "oidc_issuer_url")]
    oidc_required_claims: Vec<String>,
    /// Signature algorithms that are accepted.
    #[arg(
        long,
        value_name = "ALGORITHMS",
        value_delimiter = ',',
        default_value = "RS256",
        requires = "oidc_issuer_url"
    )]
    oidc_signing_algs: Vec<String>,
    /// Certificates (PEM) that the provider's must chain to; the system's by default.
    #[arg(long, value_name = "FILE", requires = "oidc_issuer_url")]
    oidc_ca_file: Option<PathBuf>,
}

impl AuthenticationArgs {
    /// Returns the source of the configuration.
    ///
    /// # Errors
    /// A CA file that cannot be read, an unknown algorithm, or a required claim without a value.
    pub(super) fn source(&self) -> anyhow::Result<AuthenticationSource> {
        if let Some(file) = &self.authentication_config {
            return Ok(AuthenticationSource::File(file.clone()));
        }
        let Some(url) = &self.oidc_issuer_url else { return Ok(AuthenticationSource::None) };
        let jwt = self.jwt(url)?;
        let configuration = AuthenticationConfiguration { jwt: vec![jwt], ..AuthenticationConfiguration::default() };
        configuration.validate().map_err(|why| anyhow::anyhow!("--oidc-issuer-url: {why}"))?;
        Ok(AuthenticationSource::Fixed(Box::new(configuration)))
    }

    fn jwt(&self, url: &str) -> anyhow::Result<JwtConfiguration> {
        let ca = self
            .oidc_ca_file
            .as_ref()
            .map(|file| std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display())));
        let issuer = IssuerConfiguration {
            url: url.to_owned(),
            audiences: self.oidc_client_id.iter().cloned().collect(),
            certificate_authority: ca.transpose()?.unwrap_or_default(),
            ..IssuerConfiguration::default()
        };
        let username = PrefixedClaimConfiguration {
            claim: self.oidc_username_claim.clone(),
            prefix: Some(self.username_prefix(url)),
            ..PrefixedClaimConfiguration::default()
        };
        let groups = self.oidc_groups_claim.as_ref().map(|claim| PrefixedClaimConfiguration {
            claim: claim.clone(),
            prefix: Some(self.oidc_groups_prefix.clone().unwrap_or_default()),
            ..PrefixedClaimConfiguration::default()
        });
        let claim_mappings = ClaimMappingsConfiguration {
            username,
            groups: groups.unwrap_or_default(),
            ..ClaimMappingsConfiguration::default()
        };
        let claim_validation_rules = self.oidc_required_claims.iter().map(|text| required_claim(text));
        Ok(JwtConfiguration {
            issuer,
            claim_mappings,
            claim_validation_rules: claim_validation_rules.collect::<anyhow::Result<_>>()?,
            algorithms: self.algorithms()?,
            ..JwtConfiguration::default()
        })
    }

    /// Returns the prefix of names, as kube-apiserver defaults it.
    fn username_prefix(&self, url: &str) -> String {
        match self.oidc_username_prefix.as_deref() {
            Some(NO_PREFIX) => String::new(),
            Some(prefix) => prefix.to_owned(),
            None if self.oidc_username_claim == "email" => String::new(),
            None => format!("{url}#"),
        }
    }

    fn algorithms(&self) -> anyhow::Result<Vec<portolan_apiserver::authn::SignatureAlgorithm>> {
        let parse = |text: &String| text.parse().map_err(|_| anyhow::anyhow!("unknown signature algorithm {text:?}"));
        self.oidc_signing_algs.iter().map(parse).collect()
    }
}

fn required_claim(text: &str) -> anyhow::Result<ClaimRuleConfiguration> {
    let (claim, value) = text.split_once('=').unwrap_or((text, ""));
    ensure!(!claim.is_empty() && !value.is_empty(), "{text:?} is no CLAIM=VALUE");
    Ok(ClaimRuleConfiguration {
        claim: claim.to_owned(),
        required_value: value.to_owned(),
        ..ClaimRuleConfiguration::default()
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        authentication: AuthenticationArgs,
    }

    fn source(flags: &[&str]) -> Result<AuthenticationSource, String> {
        let parsed = Flags::try_parse_from([&["portolan"], flags].concat()).map_err(|error| error.to_string())?;
        parsed.authentication.source().map_err(|error| error.to_string())
    }

    fn fixed(flags: &[&str]) -> JwtConfiguration {
        let flags = [&["--oidc-issuer-url=https://a", "--oidc-client-id=b"], flags].concat();
        match source(&flags).unwrap() {
            AuthenticationSource::Fixed(configuration) => configuration.jwt.into_iter().next().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_have_kube_apiservers_meaning() {
        let prefix = |flags: &[&str]| fixed(flags).claim_mappings.username.prefix.unwrap();
        assert_eq!(prefix(&[]), "https://a#");
        assert_eq!(prefix(&["--oidc-username-claim=email"]), "");
        assert_eq!(prefix(&["--oidc-username-prefix=-"]), "");
        assert_eq!(prefix(&["--oidc-username-prefix=x:"]), "x:");
        let all = fixed(&[
            "--oidc-groups-claim=g",
            "--oidc-groups-prefix=p:",
            "--oidc-required-claim=hd=example.com",
            "--oidc-signing-algs=RS256,ES256",
        ]);
        let groups = (all.claim_mappings.groups.claim, all.claim_mappings.groups.prefix);
        assert_eq!(groups, ("g".to_owned(), Some("p:".to_owned())));
        assert_eq!(all.claim_validation_rules[0].required_value, "example.com");
        assert_eq!((all.issuer.audiences, all.algorithms.len()), (vec!["b".to_owned()], 2));
        assert!(matches!(source(&[]), Ok(AuthenticationSource::None)));
    }

    #[test]
    fn flags_that_contradict_are_refused() {
        let usual = ["--oidc-issuer-url=https://a", "--oidc-client-id=b"];
        for (flags, expected) in [
            (vec!["--oidc-issuer-url=https://a"], "--oidc-client-id"),
            (vec!["--oidc-client-id=b"], "--oidc-issuer-url"),
            (vec![usual[0], usual[1], "--authentication-config=f"], "cannot be used with"),
            (vec!["--oidc-issuer-url=http://a", usual[1]], "URL scheme must be https"),
            (vec![usual[0], usual[1], "--oidc-required-claim=hd"], "is no CLAIM=VALUE"),
            (vec![usual[0], usual[1], "--oidc-signing-algs=none"], "unknown signature algorithm"),
            (vec![usual[0], usual[1], "--oidc-ca-file=/nothing"], "/nothing cannot be read"),
        ] {
            let refused = source(&flags).unwrap_err();
            assert!(refused.contains(expected), "{flags:?}: {refused}");
        }
    }
}
