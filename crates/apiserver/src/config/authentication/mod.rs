//! Configuration of JWT authenticators: `AuthenticationConfiguration` of `apiserver.config.k8s.io`, with the field
//! rules of kube-apiserver.

mod checks;

use std::{collections::BTreeSet, path::PathBuf};

use portolan_codec::decode::{MediaType, decode_any};
use portolan_kinds::field::{FieldError, Path};
use serde::Deserialize;
use serde_json::Value;

/// Versions of the configuration that are read.
const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"];
const KIND: &str = "AuthenticationConfiguration";
/// Limit of issuers, as in kube-apiserver.
const MAX_ISSUERS: usize = 64;

/// Source of the configuration of JWT authenticators.
#[derive(Clone, Debug, Default)]
pub enum AuthenticationSource {
    /// No issuers.
    #[default]
    None,
    /// Configuration that does not change, such as the one from flags.
    Fixed(Box<AuthenticationConfiguration>),
    /// File that is reread when it changes.
    File(PathBuf),
}

/// `AuthenticationConfiguration`: the issuers of JSON Web Tokens, and who may come without credentials.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthenticationConfiguration {
    /// Group and version.
    #[serde(default)]
    pub api_version: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
    /// Authenticators; the issuer of a token selects one.
    #[serde(default)]
    pub jwt: Vec<JwtConfiguration>,
    /// Anonymous requests; allowed without it.
    #[serde(default)]
    pub anonymous: Option<AnonymousConfiguration>,
}

/// Configuration of anonymous requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnonymousConfiguration {
    /// False refuses all of them with 401.
    pub enabled: bool,
    /// Paths to which they are restricted; none means no restriction.
    #[serde(default)]
    pub conditions: Vec<AnonymousCondition>,
}

/// Path that anonymous requests may reach.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnonymousCondition {
    /// Whole path of the request, without the prefix of a logical cluster.
    pub path: String,
}

/// Configuration of one authenticator.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwtConfiguration {
    /// Issuer of the tokens.
    #[serde(default)]
    pub issuer: IssuerConfiguration,
    /// Rules that claims must satisfy.
    #[serde(default)]
    pub claim_validation_rules: Vec<ClaimRuleConfiguration>,
    /// Mapping of claims to a user.
    #[serde(default)]
    pub claim_mappings: ClaimMappingsConfiguration,
    /// Rules that the mapped user must satisfy.
    #[serde(default)]
    pub user_validation_rules: Vec<UserRuleConfiguration>,
    /// Signature algorithms; all asymmetric ones of kube-apiserver if empty. Only the flags set it.
    #[serde(skip)]
    pub algorithms: Vec<jsonwebtoken::Algorithm>,
}

/// Configuration of an issuer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IssuerConfiguration {
    /// `iss` of the tokens.
    #[serde(default)]
    pub url: String,
    /// URL of the discovery document, if it is not below `url`.
    #[serde(default, rename = "discoveryURL")]
    pub discovery_url: String,
    /// Certificates in PEM that the issuer's must chain to; the system's if empty.
    #[serde(default)]
    pub certificate_authority: String,
    /// Audiences, one of which a token must have.
    #[serde(default)]
    pub audiences: Vec<String>,
    /// `MatchAny`; required with several audiences.
    #[serde(default)]
    pub audience_match_policy: String,
}

/// Rule about claims: a claim with a value, or an expression.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimRuleConfiguration {
    /// Name of a claim.
    #[serde(default)]
    pub claim: String,
    /// Value that the claim must have.
    #[serde(default)]
    pub required_value: String,
    /// Expression over `claims` that must be true.
    #[serde(default)]
    pub expression: String,
    /// Message for the log when the expression is false.
    #[serde(default)]
    pub message: String,
}

/// Mapping of claims to the fields of a user.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimMappingsConfiguration {
    /// Name of the user.
    #[serde(default)]
    pub username: PrefixedClaimConfiguration,
    /// Groups of the user.
    #[serde(default)]
    pub groups: PrefixedClaimConfiguration,
    /// Uid of the user.
    #[serde(default)]
    pub uid: ClaimConfiguration,
    /// Further attributes.
    #[serde(default)]
    pub extra: Vec<ExtraConfiguration>,
}

/// Claim with a prefix, or an expression.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrefixedClaimConfiguration {
    /// Name of a claim.
    #[serde(default)]
    pub claim: String,
    /// Prefix of the value; required with `claim`, may be empty.
    #[serde(default)]
    pub prefix: Option<String>,
    /// Expression over `claims`.
    #[serde(default)]
    pub expression: String,
}

/// Claim, or an expression.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimConfiguration {
    /// Name of a claim.
    #[serde(default)]
    pub claim: String,
    /// Expression over `claims`.
    #[serde(default)]
    pub expression: String,
}

/// Attribute of a user.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExtraConfiguration {
    /// Key, a lowercase path with a domain, such as `example.com/team`.
    #[serde(default)]
    pub key: String,
    /// Expression over `claims`: a text or a list of texts.
    #[serde(default)]
    pub value_expression: String,
}

/// Rule about the mapped user.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UserRuleConfiguration {
    /// Expression over `user` that must be true.
    #[serde(default)]
    pub expression: String,
    /// Message for the log when it is false.
    #[serde(default)]
    pub message: String,
}

impl AuthenticationConfiguration {
    /// Reads a file in YAML or JSON. Unknown fields are errors.
    ///
    /// # Errors
    /// The fault of the text, or all faults of its fields, one per line.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let tree = decode_any(MediaType::Yaml, text)?;
        let word = |field: &str| tree.get(field).and_then(Value::as_str).unwrap_or_default();
        if !VERSIONS.contains(&word("apiVersion")) || word("kind") != KIND {
            return Err(format!(
                "no kind {:?} is registered for version {:?}; expected {KIND} of {}",
                word("kind"),
                word("apiVersion"),
                VERSIONS.join(" or ")
            ));
        }
        let parsed: Self = serde_json::from_value(tree).map_err(|error| error.to_string())?;
        parsed.validate()?;
        Ok(parsed)
    }

    /// Checks the fields, but not the expressions.
    ///
    /// # Errors
    /// All faults, one per line.
    pub fn validate(&self) -> Result<(), String> {
        let faults = self.faults();
        if faults.is_empty() { Ok(()) } else { Err(lines(&faults)) }
    }

    /// Returns the faults of the fields, without those of expressions.
    fn faults(&self) -> Vec<FieldError> {
        let jwt = Path::new("jwt");
        let mut faults = Vec::new();
        if self.jwt.len() > MAX_ISSUERS {
            faults.push(FieldError::invalid(
                &jwt,
                &self.jwt.len().into(),
                &format!("must have at most {MAX_ISSUERS} items"),
            ));
        }
        let (mut urls, mut discovered) = (BTreeSet::new(), BTreeSet::new());
        for (at, one) in self.jwt.iter().enumerate() {
            let path = jwt.index(at);
            one.issuer.check(&path.child("issuer"), &mut faults);
            let url = path.child("issuer").child("url");
            if !one.issuer.url.is_empty() && !urls.insert(&one.issuer.url) {
                faults.push(FieldError::duplicate(url, &one.issuer.url.as_str().into()));
            }
            let discovery = &one.issuer.discovery_url;
            if !discovery.is_empty() && !discovered.insert(discovery) {
                faults.push(FieldError::duplicate(
                    path.child("issuer").child("discoveryURL"),
                    &discovery.as_str().into(),
                ));
            }
            one.check(&path, &mut faults);
        }
        if let Some(anonymous) = &self.anonymous
            && !anonymous.enabled
            && !anonymous.conditions.is_empty()
        {
            let conditions = Path::new("anonymous").child("conditions");
            faults.push(FieldError::invalid_hidden(
                conditions,
                "enabled should be set to true when conditions are defined",
            ));
        }
        faults
    }
}

/// Returns one line per fault.
pub(crate) fn lines(faults: &[FieldError]) -> String {
    faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect::<Vec<_>>().join("\n")
}
