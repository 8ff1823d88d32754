//! Field rules of the configuration.

use std::collections::BTreeSet;

use http::Uri;
use portolan_kinds::field::{FieldError, Path};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

use super::{
    ClaimRuleConfiguration, ExtraConfiguration, IssuerConfiguration, JwtConfiguration, PrefixedClaimConfiguration,
};

impl IssuerConfiguration {
    pub(super) fn check(&self, path: &Path, faults: &mut Vec<FieldError>) {
        let url = path.child("url");
        if self.url.is_empty() {
            faults.push(FieldError::required(&url, "URL is required"));
        } else if let Err(why) = check_url(&self.url) {
            faults.push(FieldError::invalid(&url, &self.url.as_str().into(), &why));
        }
        let discovery = path.child("discoveryURL");
        if !self.discovery_url.is_empty() {
            let value = self.discovery_url.as_str().into();
            if self.discovery_url.trim_end_matches('/') == self.url.trim_end_matches('/') {
                faults.push(FieldError::invalid(&discovery, &value, "discoveryURL must be different from URL"));
            } else if let Err(why) = check_url(&self.discovery_url) {
                faults.push(FieldError::invalid(&discovery, &value, &why));
            }
        }
        let ca = path.child("certificateAuthority");
        if !self.certificate_authority.is_empty()
            && CertificateDer::pem_slice_iter(self.certificate_authority.as_bytes()).flatten().next().is_none()
        {
            faults.push(FieldError::invalid_hidden(ca, "data does not contain any valid RSA or ECDSA certificates"));
        }
        self.check_audiences(path, faults);
    }

    fn check_audiences(&self, path: &Path, faults: &mut Vec<FieldError>) {
        let audiences = path.child("audiences");
        if self.audiences.is_empty() {
            faults.push(FieldError::required(&audiences, &format!("at least one {audiences} is required")));
        }
        let mut known = BTreeSet::new();
        for (at, audience) in self.audiences.iter().enumerate() {
            if audience.is_empty() {
                faults.push(FieldError::required(audiences.index(at), "audience can't be empty"));
            } else if !known.insert(audience) {
                faults.push(FieldError::duplicate(audiences.index(at), &audience.as_str().into()));
            }
        }
        let policy = path.child("audienceMatchPolicy");
        match (&*self.audience_match_policy, self.audiences.len()) {
            ("MatchAny", _) | ("", 0 | 1) => {}
            ("", _) => faults.push(FieldError::invalid(
                policy,
                &"".into(),
                "audienceMatchPolicy must be set to MatchAny when multiple audiences are specified",
            )),
            (other, _) => faults.push(FieldError::not_supported(policy, &other.into(), &["MatchAny"])),
        }
    }
}

fn check_url(text: &str) -> Result<(), String> {
    let (plain, fragment) = text.split_once('#').map_or((text, None), |(plain, fragment)| (plain, Some(fragment)));
    let url: Uri = plain.parse().map_err(|error| format!("{error}"))?;
    if url.scheme_str() != Some("https") {
        return Err("URL scheme must be https".into());
    }
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("URL must not contain a username or password".into());
    }
    if url.query().is_some() {
        return Err("URL must not contain a query".into());
    }
    if fragment.is_some() { Err("URL must not contain a fragment".into()) } else { Ok(()) }
}

impl JwtConfiguration {
    pub(super) fn check(&self, path: &Path, faults: &mut Vec<FieldError>) {
        let rules = path.child("claimValidationRules");
        let mut known = BTreeSet::new();
        for (at, rule) in self.claim_validation_rules.iter().enumerate() {
            rule.check(&rules.index(at), faults);
            let named = if rule.claim.is_empty() { &rule.expression } else { &rule.claim };
            if !named.is_empty() && !known.insert(named) {
                faults.push(FieldError::duplicate(rules.index(at), &named.as_str().into()));
            }
        }
        self.check_mappings(&path.child("claimMappings"), faults);
        let rules = path.child("userValidationRules");
        let mut known = BTreeSet::new();
        for (at, rule) in self.user_validation_rules.iter().enumerate() {
            if rule.expression.is_empty() {
                faults.push(FieldError::required(rules.index(at).child("expression"), "expression is required"));
            } else if !known.insert(&rule.expression) {
                faults
                    .push(FieldError::duplicate(rules.index(at).child("expression"), &rule.expression.as_str().into()));
            }
        }
    }

    fn check_mappings(&self, path: &Path, faults: &mut Vec<FieldError>) {
        let mappings = &self.claim_mappings;
        let username = path.child("username");
        if mappings.username.claim.is_empty() && mappings.username.expression.is_empty() {
            faults.push(FieldError::required(&username, "claim or expression is required"));
        }
        mappings.username.check(&username, faults);
        mappings.groups.check(&path.child("groups"), faults);
        if !mappings.uid.claim.is_empty() && !mappings.uid.expression.is_empty() {
            let uid = path.child("uid");
            faults.push(FieldError::invalid_hidden(uid, "claim and expression can't both be set"));
        }
        let extra = path.child("extra");
        let mut known = BTreeSet::new();
        for (at, one) in mappings.extra.iter().enumerate() {
            one.check(&extra.index(at), faults);
            if !one.key.is_empty() && !known.insert(&one.key) {
                faults.push(FieldError::duplicate(extra.index(at).child("key"), &one.key.as_str().into()));
            }
        }
        if self.uses("claims.email") && !self.uses("claims.email_verified") && !mappings.username.expression.is_empty()
        {
            faults.push(FieldError::invalid(
                username.child("expression"),
                &mappings.username.expression.as_str().into(),
                "claims.email_verified must be used in claimMappings.username.expression or \
                 claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used \
                 in claimMappings.username.expression",
            ));
        }
    }

    /// Returns true if the name of the user depends on a claim, or any expression does that may guard it.
    fn uses(&self, claim: &str) -> bool {
        let named = |text: &str| {
            text.match_indices(claim).any(|(at, _)| {
                !text[at + claim.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
            })
        };
        let extra = self.claim_mappings.extra.iter().map(|one| &one.value_expression);
        let rules = self.claim_validation_rules.iter().map(|one| &one.expression);
        let guards = extra.chain(rules).filter(|_| claim.ends_with("verified"));
        std::iter::once(&self.claim_mappings.username.expression).chain(guards).any(|text| named(text))
    }
}

impl ClaimRuleConfiguration {
    fn check(&self, path: &Path, faults: &mut Vec<FieldError>) {
        match (self.claim.is_empty(), self.expression.is_empty()) {
            (false, false) => faults.push(FieldError::invalid_hidden(path, "claim and expression can't both be set")),
            (true, true) => faults.push(FieldError::required(path, "claim or expression is required")),
            (false, true) if !self.message.is_empty() => {
                let message = path.child("message");
                faults.push(FieldError::invalid(
                    message,
                    &self.message.as_str().into(),
                    "message can't be set when claim is set",
                ));
            }
            (true, false) if !self.required_value.is_empty() => {
                let value = path.child("requiredValue");
                faults.push(FieldError::invalid(
                    value,
                    &self.required_value.as_str().into(),
                    "requiredValue can't be set when expression is set",
                ));
            }
            _ => {}
        }
    }
}

impl PrefixedClaimConfiguration {
    fn check(&self, path: &Path, faults: &mut Vec<FieldError>) {
        match (self.claim.is_empty(), self.expression.is_empty()) {
            (false, false) => faults.push(FieldError::invalid_hidden(path, "claim and expression can't both be set")),
            (true, _) if self.prefix.is_some() => {
                let prefix = path.child("prefix");
                faults.push(FieldError::invalid_hidden(prefix, "prefix can't be set when expression is set"));
            }
            (false, true) if self.prefix.is_none() => faults.push(FieldError::required(
                path.child("prefix"),
                "prefix is required when claim is set. It can be set to an empty string to disable prefixing",
            )),
            _ => {}
        }
    }
}

impl ExtraConfiguration {
    fn check(&self, path: &Path, faults: &mut Vec<FieldError>) {
        let key = path.child("key");
        let value = || self.key.as_str().into();
        if self.key.is_empty() {
            faults.push(FieldError::required(&key, "key is required"));
        } else if self.key.to_lowercase() != self.key {
            faults.push(FieldError::invalid(&key, &value(), "key must be lowercase"));
        } else if !self.key.split_once('/').is_some_and(|(domain, name)| domain.contains('.') && !name.is_empty()) {
            faults.push(FieldError::invalid(
                &key,
                &value(),
                "must be a domain-prefixed path (such as \"acme.io/foo\")",
            ));
        } else if self.key.split('/').next().is_some_and(is_reserved_domain) {
            faults.push(FieldError::invalid(
                &key,
                &value(),
                "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use",
            ));
        }
        if self.value_expression.is_empty() {
            faults.push(FieldError::required(path.child("valueExpression"), "valueExpression is required"));
        }
    }
}

fn is_reserved_domain(domain: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|own| domain == *own || domain.ends_with(&format!(".{own}")))
}
