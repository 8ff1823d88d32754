//! Fills Secrets of the type `kubernetes.io/service-account-token`, and takes away those whose account is gone. As the
//! tokens controller of kube-controller-manager does it.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use portolan_machinery::{
    kinds::Kind,
    lifecycle::{DeleteOptions, Propagation},
};
use portolan_store::{Change, Event, RangeRequest, RangeScope};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, Record, ResourceVersion, Status, object,
    work::WorkKey,
};
use serde_json::Value;

use crate::{
    plane::{Plane, PlaneError, Step},
    runtime::{Controller, Outcome},
};

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";
const TOKEN: &str = "token";

/// What a token says.
#[derive(Clone, Debug)]
pub struct SecretToken {
    /// The only logical cluster where it counts.
    pub cluster: LogicalClusterId,
    /// Namespace of the account and of the Secret.
    pub namespace: String,
    /// Name of the account.
    pub account: String,
    /// Uid of the account.
    pub uid: String,
    /// Name of the Secret that it is kept in, and dies with.
    pub secret: String,
}

/// Signs tokens as the API server verifies them.
pub type Sign = Arc<dyn Fn(SecretToken) -> Result<String, Status> + Send + Sync>;

/// The loop of tokens in Secrets.
pub struct TokenSecrets {
    plane: Arc<Plane>,
    secrets: &'static Kind,
    accounts: &'static Kind,
    /// As it is in the data of a Secret.
    root_ca: String,
    sign: Sign,
}

/// What may need a look.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A Secret that holds a token, or has to.
    Secret(ObjectKey),
    /// An account that is gone, with its uid.
    Gone(ObjectKey, String),
    /// An account that may name a Secret which is gone.
    Names(ObjectKey, String),
}

impl WorkKey for Key {
    type Tenant = LogicalClusterId;

    fn tenant(&self) -> LogicalClusterId {
        match self {
            Self::Secret(key) | Self::Gone(key, _) | Self::Names(key, _) => key.cluster,
        }
    }
}

impl TokenSecrets {
    /// On the objects of `plane`; `root_ca` is PEM.
    pub fn new(plane: Arc<Plane>, root_ca: &str, sign: Sign) -> Self {
        let kind = |name| plane.table().kind(&GroupVersionKind::new("", "v1", name)).expect("the table has core/v1");
        let (secrets, accounts) = (kind("Secret"), kind("ServiceAccount"));
        Self { secrets, accounts, root_ca: BASE64.encode(root_ca), sign, plane }
    }

    /// Where the account is that a token Secret names.
    fn account_of(&self, key: &ObjectKey, secret: &Value) -> Option<ObjectKey> {
        let name = object::annotation(secret, ACCOUNT)?.parse().ok()?;
        Some(ObjectKey { resource: self.accounts.group_resource(), name, ..key.clone() })
    }

    async fn look_at(&self, key: &ObjectKey) -> Result<(), PlaneError> {
        let Some(secret) = self.plane.get(key).await?.filter(|found| is_token(&found.object)) else { return Ok(()) };
        let account = match self.account_of(key, &secret.object) {
            Some(account) => self.plane.get(&account).await?,
            None => None,
        };
        let wanted = object::annotation(&secret.object, ACCOUNT_UID).unwrap_or_default();
        let is_wanted = |uid: &str| wanted.is_empty() || wanted == uid;
        match account.filter(|account| is_wanted(object::meta_text(&account.object, "uid"))) {
            Some(_) if self.lacks(&secret.object).is_empty() => Ok(()),
            Some(account) => self.fill(key, &account.object).await,
            None => self.delete(key, object::meta_text(&secret.object, "uid")).await,
        }
    }

    /// The data that a token Secret has to have, and this one does not.
    fn lacks(&self, secret: &Value) -> Vec<&'static str> {
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
            let lacks = self.lacks(secret);
            if !is_token(secret) || lacks.is_empty() {
                return Step::Keep;
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
            Step::Write(None)
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
            // Another one has the name by now.
            Err(PlaneError::Refused(status)) if status.code() == 409 => Ok(()),
            done => done,
        }
    }

    /// Takes away the tokens of an account that is gone. One of the same name that was made since has another uid.
    async fn forget(&self, account: &ObjectKey, uid: &str) -> Result<(), PlaneError> {
        let Some(namespace) = account.namespace() else { return Ok(()) };
        let scope = RangeScope::Namespace(account.cluster, self.secrets.group_resource(), namespace.clone());
        let mut slice = RangeRequest::slices(scope).past_damage();
        loop {
            let page = self.plane.store().range(slice.clone()).await?;
            for stored in &page.objects {
                let Some(secret) = token_in(&stored.record) else { continue };
                let is_its = self.account_of(&stored.key, &secret).as_ref() == Some(account)
                    && object::annotation(&secret, ACCOUNT_UID).is_some_and(|own| own == uid);
                if is_its {
                    self.delete(&stored.key, &stored.record.header.uid.to_string()).await?;
                }
            }
            match slice.next(&page) {
                Some(next) => slice = next,
                None => return Ok(()),
            }
        }
    }

    /// Takes a Secret that is gone out of the list of its account.
    async fn unname(&self, account: &ObjectKey, secret: &str) -> Result<(), PlaneError> {
        let key = ObjectKey {
            resource: self.secrets.group_resource(),
            name: secret.parse().map_err(|error: portolan_types::InvalidName| Status::internal(error))?,
            ..account.clone()
        };
        if self.plane.get(&key).await?.is_some() {
            return Ok(());
        }
        let change = |account: &mut Value| {
            let Some(names) = account.get_mut("secrets").and_then(Value::as_array_mut) else { return Step::Keep };
            let before = names.len();
            names.retain(|reference| reference["name"] != secret);
            if names.len() == before { Step::Keep } else { Step::Write(None) }
        };
        self.plane.change(self.accounts, account, change).await.map(drop)
    }
}

fn is_token(secret: &Value) -> bool {
    secret.get("type").and_then(Value::as_str) == Some(TYPE)
}

/// The Secret of a record, if it is a token. Few of very many are: those that do not speak of it are not even parsed.
fn token_in(record: &Record) -> Option<Value> {
    let speaks = std::str::from_utf8(record.body()).is_ok_and(|text| text.contains(TYPE));
    speaks.then(|| record.to_value(ResourceVersion::FIRST).ok()).flatten().filter(is_token)
}

impl Controller for TokenSecrets {
    type Key = Key;

    fn name(&self) -> &'static str {
        "token-secrets"
    }

    fn resources(&self) -> Vec<GroupResource> {
        [self.secrets, self.accounts].map(Kind::group_resource).to_vec()
    }

    fn keys(&self, event: &Event) -> Vec<Key> {
        let is_gone = event.change == Change::Deleted;
        if event.key.resource == self.accounts.group_resource() {
            let uid = event.record.header.uid.to_string();
            return if is_gone { vec![Key::Gone(event.key.clone(), uid)] } else { Vec::new() };
        }
        let Some(secret) = token_in(&event.record) else { return Vec::new() };
        match is_gone {
            false => vec![Key::Secret(event.key.clone())],
            true => {
                let account = self.account_of(&event.key, &secret);
                account.map(|account| Key::Names(account, event.key.name.to_string())).into_iter().collect()
            }
        }
    }

    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            match key {
                Key::Secret(key) => self.look_at(key).await?,
                Key::Gone(account, uid) => self.forget(account, uid).await?,
                Key::Names(account, secret) => self.unname(account, secret).await?,
            }
            Ok(Outcome::Done)
        })
    }
}
