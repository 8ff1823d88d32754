//! Mapping of the claims of a token to a user, and the rules about both.

use std::collections::{BTreeMap, HashSet};

use portolan_cel::{CelType, Environment, Expression, ExpressionAnswer, ExpressionVariables, PER_CALL_LIMIT};
use portolan_kinds::field::{FieldError, Path};
use portolan_strategy::rbac::User;
use serde_json::{Value, json};

use crate::config::{ClaimRuleConfiguration, JwtConfiguration, PrefixedClaimConfiguration};

use super::super::with_authenticated;

/// Prefix of the names and groups of the system, which no issuer may hand out.
const RESERVED: &str = "system:";

/// Compiled mapping of claims to a user.
#[derive(Debug)]
pub(super) struct ClaimMapper {
    username: ClaimSource,
    groups: Option<ClaimSource>,
    uid: Option<ClaimSource>,
    extra: Vec<(String, Expression)>,
    claim_rules: Vec<ClaimRule>,
    user_rules: Vec<RuleExpression>,
}

/// Source of a field of a user.
#[derive(Debug)]
enum ClaimSource {
    /// A claim, and the prefix of its value.
    Claim { name: String, prefix: String },
    /// An expression over `claims`.
    Expression(Expression),
}

/// Rule about claims.
#[derive(Debug)]
enum ClaimRule {
    Required { claim: String, value: String },
    Expression(RuleExpression),
}

/// Expression that must be true.
#[derive(Debug)]
struct RuleExpression {
    expression: Expression,
    message: String,
}

/// Compiler of the expressions of one authenticator.
struct MappingCompiler {
    claims: Environment,
    user: Environment,
    faults: Vec<FieldError>,
}

impl MappingCompiler {
    fn new() -> Self {
        let of = |name: &str| {
            let variable = (name.into(), CelType::map(CelType::String, CelType::Dyn));
            Environment { variables: [variable].into(), ..Environment::default() }
        };
        Self { claims: of("claims"), user: of("user"), faults: Vec::new() }
    }

    /// Compiles an expression whose type must be one of `types`; a dynamic one is checked at run time.
    fn compile(&mut self, path: Path, text: &str, is_about_user: bool, types: &[CelType]) -> Option<Expression> {
        let environment = if is_about_user { &self.user } else { &self.claims };
        let compiled = Expression::compile(text, environment).map_err(|why| format!("compilation failed: {why}"));
        let checked = compiled.and_then(|expression| {
            let output = expression.output();
            if matches!(output, CelType::Dyn | CelType::Any) || types.contains(output) {
                return Ok(expression);
            }
            let names: Vec<_> = types.iter().map(ToString::to_string).collect();
            Err(format!("must evaluate to {}", names.join(" or ")))
        });
        checked.map_err(|why| self.faults.push(FieldError::invalid(path, &text.into(), &why))).ok()
    }

    fn source(&mut self, path: &Path, from: &PrefixedClaimConfiguration, types: &[CelType]) -> Option<ClaimSource> {
        if !from.claim.is_empty() {
            let prefix = from.prefix.clone().unwrap_or_default();
            return Some(ClaimSource::Claim { name: from.claim.clone(), prefix });
        }
        if from.expression.is_empty() {
            return None;
        }
        self.compile(path.child("expression"), &from.expression, false, types).map(ClaimSource::Expression)
    }

    fn claim_rule(&mut self, path: &Path, rule: &ClaimRuleConfiguration) -> Option<ClaimRule> {
        if !rule.claim.is_empty() {
            return Some(ClaimRule::Required { claim: rule.claim.clone(), value: rule.required_value.clone() });
        }
        let expression = self.compile(path.child("expression"), &rule.expression, false, &[CelType::Bool])?;
        Some(ClaimRule::Expression(RuleExpression { expression, message: rule.message.clone() }))
    }
}

impl ClaimMapper {
    /// Compiles the mapping of an authenticator whose fields are valid.
    ///
    /// # Errors
    /// The expressions that do not compile, or that cannot have the type of their field.
    pub(super) fn compile(path: &Path, from: &JwtConfiguration) -> Result<Self, Vec<FieldError>> {
        let mut compiler = MappingCompiler::new();
        let (text, texts) = (CelType::String, CelType::list(CelType::String));
        let mappings = path.child("claimMappings");
        let username = mappings.child("username");
        let named = compiler.source(&username, &from.claim_mappings.username, std::slice::from_ref(&text));
        let any_list = CelType::list(CelType::Dyn);
        let groups = compiler.source(
            &mappings.child("groups"),
            &from.claim_mappings.groups,
            &[text.clone(), texts.clone(), any_list.clone()],
        );
        let uid = PrefixedClaimConfiguration {
            claim: from.claim_mappings.uid.claim.clone(),
            prefix: None,
            expression: from.claim_mappings.uid.expression.clone(),
        };
        let uid = compiler.source(&mappings.child("uid"), &uid, std::slice::from_ref(&text));
        let mut extra = Vec::new();
        for (at, one) in from.claim_mappings.extra.iter().enumerate() {
            let path = mappings.child("extra").index(at).child("valueExpression");
            let types = [text.clone(), texts.clone(), any_list.clone()];
            extra.extend(
                compiler.compile(path, &one.value_expression, false, &types).map(|value| (one.key.clone(), value)),
            );
        }
        let rules = path.child("claimValidationRules");
        let claim_rules = from.claim_validation_rules.iter().enumerate();
        let claim_rules = claim_rules.filter_map(|(at, rule)| compiler.claim_rule(&rules.index(at), rule)).collect();
        let rules = path.child("userValidationRules");
        let mut user_rules = Vec::new();
        for (at, rule) in from.user_validation_rules.iter().enumerate() {
            let compiled =
                compiler.compile(rules.index(at).child("expression"), &rule.expression, true, &[CelType::Bool]);
            let message = rule.message.clone();
            user_rules.extend(compiled.map(|expression| RuleExpression { expression, message }));
        }
        match named {
            Some(username) if compiler.faults.is_empty() => {
                Ok(Self { username, groups, uid, extra, claim_rules, user_rules })
            }
            _ => Err(compiler.faults),
        }
    }

    /// Returns the user of a token.
    ///
    /// # Errors
    /// A claim that is missing or has another type, a rule that is broken, or a reserved name: for the log.
    pub(super) fn user(&self, claims: &Value) -> Result<User, String> {
        for rule in &self.claim_rules {
            rule.check(claims)?;
        }
        let name = self.username.username(claims)?;
        let groups = self.groups.as_ref().map(|source| source.texts(claims)).transpose()?.unwrap_or_default();
        let uid = self.uid.as_ref().map(|source| source.text(claims)).transpose()?.unwrap_or_default();
        let mut extra = BTreeMap::new();
        for (key, value) in &self.extra {
            let values = texts_of(value, claims)?;
            if !values.is_empty() {
                extra.insert(key.clone(), values);
            }
        }
        let reserved = std::iter::once(&name).chain(&groups).find(|text| text.starts_with(RESERVED));
        if let Some(reserved) = reserved {
            return Err(format!("{reserved:?} is reserved for the system"));
        }
        let mut user = User { name, uid, groups, extra };
        let shown = json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
        for rule in &self.user_rules {
            rule.check("user", &shown)?;
        }
        user.groups = with_authenticated(without_duplicates(user.groups));
        Ok(user)
    }
}

fn without_duplicates(groups: Vec<String>) -> Vec<String> {
    let mut known = HashSet::new();
    groups.into_iter().filter(|group| known.insert(group.clone())).collect()
}

impl ClaimRule {
    fn check(&self, claims: &Value) -> Result<(), String> {
        match self {
            Self::Required { claim, value } => match claims.get(claim) {
                None => Err(format!("required claim {claim} not present in ID token")),
                Some(Value::String(own)) if own == value => Ok(()),
                Some(Value::String(_)) => Err(format!("required claim {claim} value does not match")),
                Some(_) => Err(format!("claim {claim} is not a string")),
            },
            Self::Expression(rule) => rule.check("claims", claims),
        }
    }
}

impl RuleExpression {
    fn check(&self, variable: &str, value: &Value) -> Result<(), String> {
        match evaluate(&self.expression, variable, value)? {
            ExpressionAnswer::Bool(true) => Ok(()),
            ExpressionAnswer::Bool(false) if self.message.is_empty() => {
                Err("a validation rule evaluated to false".into())
            }
            ExpressionAnswer::Bool(false) => Err(self.message.clone()),
            _ => Err("a validation rule did not evaluate to a bool".into()),
        }
    }
}

impl ClaimSource {
    /// Returns the name of the user. A claim `email` counts only when the issuer has not said that it is unverified.
    fn username(&self, claims: &Value) -> Result<String, String> {
        if let Self::Claim { name, .. } = self
            && name == "email"
            && claims.get("email_verified").is_some_and(|verified| *verified != Value::Bool(true))
        {
            return Err("email not verified".into());
        }
        match self.text(claims)? {
            name if name.is_empty() => Err("the name of the user is empty".into()),
            name => Ok(name),
        }
    }

    fn text(&self, claims: &Value) -> Result<String, String> {
        match self {
            Self::Claim { name, prefix } => match claims.get(name) {
                Some(Value::String(text)) if text.is_empty() => Ok(String::new()),
                Some(Value::String(text)) => Ok(format!("{prefix}{text}")),
                Some(_) => Err(format!("claim {name} is not a string")),
                None => Err(format!("claim {name} not present")),
            },
            Self::Expression(expression) => match evaluate(expression, "claims", claims)? {
                ExpressionAnswer::Text(text) => Ok(text),
                _ => Err("an expression did not evaluate to a text".into()),
            },
        }
    }

    /// Returns the texts of a claim that is a text or a list of texts, and may be missing.
    fn texts(&self, claims: &Value) -> Result<Vec<String>, String> {
        let Self::Claim { name, prefix } = self else {
            let Self::Expression(expression) = self else { return Ok(Vec::new()) };
            return texts_of(expression, claims);
        };
        let items = match claims.get(name) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(items)) => items.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        let text = |item: &Value| item.as_str().map(|text| format!("{prefix}{text}"));
        let texts: Option<Vec<String>> = items.iter().map(text).collect();
        texts.ok_or_else(|| format!("claim {name} is neither a text nor a list of texts"))
    }
}

/// Returns the texts of an expression that is a text or a list of texts, without empty ones.
fn texts_of(expression: &Expression, claims: &Value) -> Result<Vec<String>, String> {
    let texts = match evaluate(expression, "claims", claims)? {
        ExpressionAnswer::Null => Vec::new(),
        ExpressionAnswer::Text(text) => vec![text],
        ExpressionAnswer::Texts(texts) => texts,
        ExpressionAnswer::Bool(_) | ExpressionAnswer::Other => {
            return Err("an expression did not evaluate to a text or a list of texts".into());
        }
    };
    Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
}

fn evaluate(expression: &Expression, variable: &str, value: &Value) -> Result<ExpressionAnswer, String> {
    let data = [(variable, value)];
    let variables = ExpressionVariables { data: &data, ..ExpressionVariables::default() };
    expression.evaluate(&variables, PER_CALL_LIMIT).answer.map_err(|error| error.message)
}
