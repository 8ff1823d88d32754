//! Fills Secrets of the type `kubernetes.io/service-account-token`, and deletes those whose account is gone. Behaves
//! like the tokens controller of kube-controller-manager.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event, RangeRequest, RangeScope, StoreError};
use portolan_strategy::lifecycle::{DeleteOptions, Propagation};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, NamespaceName, ObjectKey, Record, ResourceVersion,
    Status, object, work::WorkKey,
};
use serde_json::Value;

use crate::{
    plane::{Plane, PlaneChange, PlaneError},
    runtime::{Controller, WorkOutcome},
};

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";
const TOKEN: &str = "token";
/// Delay in which a check of the tokens of a namespace collects deletions of accounts.
const LINGER: Duration = Duration::from_millis(100);

/// Claims of a token.
#[derive(Clone, Debug)]
pub struct SecretToken {
    /// Logical cluster in which it is valid.
    pub cluster: LogicalClusterId,
    /// Namespace of the account and of the Secret.
    pub namespace: String,
    /// Name of the account.
    pub account: String,
    /// Uid of the account.
    pub uid: String,
    /// Name of the Secret that contains it, with which it ends.
    pub secret: String,
}

/// Function that signs tokens as the API server verifies them.
pub type TokenSigner = Arc<dyn Fn(SecretToken) -> Result<String, Status> + Send + Sync>;

/// Controller of tokens in Secrets.
pub struct TokenSecretController {
    plane: Arc<Plane>,
    secrets: &'static Kind,
    accounts: &'static Kind,
    /// Certificate as in the data of a Secret.
    root_ca: String,
    sign: TokenSigner,
}

/// Key of a reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Secret that contains a token, or should.
    Secret(ObjectKey),
    /// All Secrets of a namespace with deleted accounts.
    Tokens(LogicalClusterId, NamespaceName),
    /// Account that may name a deleted Secret.
    Names(ObjectKey, String),
}

impl WorkKey for Key {
    type Tenant = LogicalClusterId;

    fn tenant(&self) -> LogicalClusterId {
        match self {
            Self::Secret(key) | Self::Names(key, _) => key.cluster,
            Self::Tokens(cluster, _) => *cluster,
        }
    }
}

impl TokenSecretController {
    /// Makes the controller; `root_ca` is PEM.
    pub fn new(plane: Arc<Plane>, root_ca: &str, sign: TokenSigner) -> Self {
        let kind = |name| plane.table().kind(&GroupVersionKind::new("", "v1", name)).expect("the table has core/v1");
        let (secrets, accounts) = (kind("Secret"), kind("ServiceAccount"));
        Self { secrets, accounts, root_ca: BASE64.encode(root_ca), sign, plane }
    }

    /// Returns the key of the account of a token Secret.
    fn account_of(&self, key: &ObjectKey, secret: &Value) -> Option<ObjectKey> {
        let name = object::annotation(secret, ACCOUNT)?.parse().ok()?;
        Some(ObjectKey { resource: self.accounts.group_resource(), name, ..key.clone() })
    }

    async fn reconcile_secret(&self, key: &ObjectKey) -> Result<(), PlaneError> {
        let Some(secret) = self.plane.get_reconciled(key).await?.filter(|found| is_token(&found.object)) else {
            return Ok(());
        };
        let account = match self.account_of(key, &secret.object) {
            Some(account) => match self.plane.get(&account).await {
                // It exists. When it is deleted, its tokens are checked again.
                Err(PlaneError::Store(StoreError::Damaged { .. })) => return Ok(()),
                account => account?,
            },
            None => None,
        };
        let wanted = object::annotation(&secret.object, ACCOUNT_UID).unwrap_or_default();
        let is_wanted = |uid: &str| wanted.is_empty() || wanted == uid;
        match account.filter(|account| is_wanted(object::meta_text(&account.object, "uid"))) {
            Some(_) if self.missing_fields(&secret.object).is_empty() => Ok(()),
            Some(account) => self.fill(key, &account.object).await,
            None => self.delete(key, object::meta_text(&secret.object, "uid")).await,
        }
    }

    /// Returns the missing data of a token Secret.
    fn missing_fields(&self, secret: &Value) -> Vec<&'static str> {
        let held = |name: &str| secret.get("data").and_then(|data| data.get(name)?.as_str()).unwrap_or_default();
        let mut lacks: Vec<_> = [NAMESPACE, TOKEN].into_iter().filter(|name| held(name).is_empty()).collect();
        lacks.extend((held(CA) != self.root_ca).then_some(CA));
        lacks
    }

    async fn fill(&self, key: &ObjectKey, account: &Value) -> Result<(), PlaneError> {
        let token = SecretToken {
            cluster: key.cluster,
            namespace: object::namespace(account).to_owned(),
            account: object::name(account).to_owned(),
            uid: object::meta_text(account, "uid").to_owned(),
            secret: key.name.to_string(),
        };
        let signed = BASE64.encode((self.sign)(token.clone())?);
        let change = |secret: &mut Value| {
            let lacks = self.missing_fields(secret);
            if !is_token(secret) || lacks.is_empty() {
                return PlaneChange::Keep;
            }
            let data = object::child_mut(secret.as_object_mut().expect("an API object is a JSON object"), "data");
            for name in lacks {
                let value = match name {
                    CA => self.root_ca.clone(),
                    NAMESPACE => BASE64.encode(&token.namespace),
                    _ => signed.clone(),
                };
                data.insert(name.into(), value.into());
            }
            let annotations = object::child_mut(object::metadata_mut(secret), "annotations");
            annotations.insert(ACCOUNT.into(), token.account.clone().into());
            annotations.insert(ACCOUNT_UID.into(), token.uid.clone().into());
            PlaneChange::Write(None)
        };
        self.plane.change(self.secrets, key, change).await.map(drop)
    }

    async fn delete(&self, key: &ObjectKey, uid: &str) -> Result<(), PlaneError> {
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            uid: Some(uid.to_owned()),
            ..DeleteOptions::default()
        };
        match self.plane.delete(self.secrets, key, &options).await {
            // The name belongs to another object by now.
            Err(PlaneError::Refused(status)) if status.code() == 409 => Ok(()),
            done => done,
        }
    }

    /// Deletes the tokens of accounts that are gone. A new account of the name has another uid. A failure does not
    /// stop the others.
    async fn reconcile_namespace(
        &self,
        cluster: LogicalClusterId,
        namespace: &NamespaceName,
    ) -> Result<(), PlaneError> {
        let scope = RangeScope::Namespace(cluster, self.secrets.group_resource(), namespace.clone());
        let (mut slice, mut done) = (RangeRequest::slices(scope).skip_damaged(), Ok(()));
        loop {
            let page = self.plane.store().range(slice.clone()).await?;
            for stored in page.objects.iter().filter(|stored| token_in(&stored.record).is_some()) {
                done = done.and(self.reconcile_secret(&stored.key).await);
            }
            match slice.next(&page) {
                Some(next) => slice = next,
                None => return done,
            }
        }
    }

    /// Removes a deleted Secret from the list of its account.
    async fn remove_secret_name(&self, account: &ObjectKey, secret: &str) -> Result<(), PlaneError> {
        let key = ObjectKey {
            resource: self.secrets.group_resource(),
            name: secret.parse().map_err(|error: portolan_types::InvalidName| Status::internal(error))?,
            ..account.clone()
        };
        if self.plane.get(&key).await?.is_some() {
            return Ok(());
        }
        let change = |account: &mut Value| {
            let Some(names) = account.get_mut("secrets").and_then(Value::as_array_mut) else {
                return PlaneChange::Keep;
            };
            let before = names.len();
            names.retain(|reference| reference["name"] != secret);
            if names.len() == before { PlaneChange::Keep } else { PlaneChange::Write(None) }
        };
        self.plane.change(self.accounts, account, change).await.map(drop)
    }
}

fn is_token(secret: &Value) -> bool {
    secret.get("type").and_then(Value::as_str) == Some(TYPE)
}

/// Returns the Secret of a record, if it contains a token. Records without the type are not even parsed.
fn token_in(record: &Record) -> Option<Value> {
    let speaks = std::str::from_utf8(record.body()).is_ok_and(|text| text.contains(TYPE));
    speaks.then(|| record.to_value(ResourceVersion::FIRST).ok()).flatten().filter(is_token)
}

impl Controller for TokenSecretController {
    type Key = Key;

    fn name(&self) -> &'static str {
        "token-secrets"
    }

    fn resources(&self) -> Vec<GroupResource> {
        [self.secrets, self.accounts].map(Kind::group_resource).to_vec()
    }

    fn keys(&self, event: &Event) -> Vec<Key> {
        let is_gone = event.change == ChangeKind::Deleted;
        if event.key.resource == self.accounts.group_resource() {
            let namespace = event.key.namespace().filter(|_| is_gone).cloned();
            return namespace.map(|namespace| Key::Tokens(event.key.cluster, namespace)).into_iter().collect();
        }
        let Some(secret) = token_in(&event.record) else { return Vec::new() };
        if is_gone {
            let account = self.account_of(&event.key, &secret);
            account.map(|account| Key::Names(account, event.key.name.to_string())).into_iter().collect()
        } else {
            vec![Key::Secret(event.key.clone())]
        }
    }

    fn linger(&self, _: &Event, key: &Key) -> Duration {
        if matches!(key, Key::Tokens(..)) { LINGER } else { Duration::ZERO }
    }

    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            match key {
                Key::Secret(key) => self.reconcile_secret(key).await?,
                Key::Tokens(cluster, namespace) => self.reconcile_namespace(*cluster, namespace).await?,
                Key::Names(account, secret) => self.remove_secret_name(account, secret).await?,
            }
            Ok(WorkOutcome::Done)
        })
    }
}
