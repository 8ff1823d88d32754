//! PATCH: JSON patch, merge patch, strategic merge patch, server-side apply.

use std::sync::Arc;

use http::{Response, header::CONTENT_TYPE};
use portolan_machinery::{
    apply::{self, ApplyRequest, Conversions},
    conversion,
    decode::{self, FieldValidation, MediaType},
    kinds::Kind,
    lifecycle, patch,
};
use portolan_types::{BoxFuture, GroupVersion, ObjectKey, Reason, Status, object, quoted::go_quoted};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    call::{Call, Target},
    encode::Shape,
    objects::{Changed, Put, Writer},
    options::WriteOptions,
};

use super::{
    body,
    update::{check_name, may_create, nameless},
};

/// How a patch is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchKind {
    /// From the content type. There is nothing that a strategic merge of custom resources could go by.
    ///
    /// # Errors
    /// 415 for anything else.
    pub(super) fn of(call: &Call, target: &Target) -> Result<Self, Status> {
        let text = call.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        match text.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            _ if !target.kind.is_typed() => Err(Status::new(
                Reason::UnsupportedMediaType,
                "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            )),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            // The router refuses it, before anything of ours sees it.
            _ => Err(Status::generic(Reason::UnsupportedMediaType, "415: Unsupported Media Type")),
        }
    }
}

pub(super) async fn patch(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    target: &Target,
    subresource: Option<&str>,
) -> Result<Response<Body>, Status> {
    let kind = PatchKind::of(call, target)?;
    let shape = Shape::of(call, target, api.seams.clock.now())?;
    let options = WriteOptions::of(call)?;
    let writer = Writer {
        api,
        call,
        target,
        options: &options,
        applied: kind == PatchKind::Apply,
        conversions: Conversions::default(),
    };
    let key = target.key(call, &call.captures.name)?;
    let (code, changed) = match kind {
        PatchKind::Apply => applied(api, call, &writer, &key, subresource).await?,
        kind => {
            let found = api.find(call, target, &key).await?;
            let found = found.ok_or_else(|| Status::not_found(&target.resource(), &key.name))?;
            let patch = Patch::read(call, target, kind)?;
            let make = |old: &Value| patch.typed(old, options.validation);
            (200, writer.change(&key, found, subresource, &make).await?)
        }
    };
    body::changed(api, call, &shape, code, changed)
}

/// What the patch of a call makes of an object, as it stands; an apply patch itself, since what others own is not of who applies.
///
/// # Errors
/// As where it is applied.
pub(super) fn patched(call: &Call, target: &Target, old: &Value) -> Result<Value, Status> {
    match PatchKind::of(call, target)? {
        PatchKind::Apply => applied_body(call),
        kind => Patch::read(call, target, kind)?.raw(old),
    }
}

/// A patch that has been read once and may be tried several times.
pub(super) struct Patch<'a> {
    call: &'a Call,
    target: &'a Target,
    kind: PatchKind,
    tree: Value,
}

impl<'a> Patch<'a> {
    pub(super) fn read(call: &'a Call, target: &'a Target, kind: PatchKind) -> Result<Self, Status> {
        let read = || match decode::decode_any(MediaType::Json, &call.body)? {
            tree @ Value::Object(_) => Ok(tree),
            Value::Null => Ok(json!({})),
            other => {
                let found = decode::go_word(&other);
                Err(format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"))
            }
        };
        let tree = match kind {
            // These are lists and are read where they are applied.
            PatchKind::Json => Value::Null,
            PatchKind::Strategic => read().map_err(|why: String| Status::bad_request(why))?,
            PatchKind::Merge if call.body.trim_ascii() == b"null" => {
                return Err(Status::bad_request("Invalid JSON Patch"));
            }
            PatchKind::Merge | PatchKind::Apply => {
                read().map_err(|why: String| Status::bad_request(format!("error decoding patch: {why}")))?
            }
        };
        Ok(Self { call, target, kind, tree })
    }

    /// The patched document, whatever it is of.
    fn raw(&self, old: &Value) -> Result<Value, Status> {
        match self.kind {
            PatchKind::Json => patch::json_patch(old, &self.call.body),
            PatchKind::Merge => Ok(patch::merge_patch(old, &self.tree)),
            PatchKind::Strategic => {
                patch::strategic_merge(&self.target.table, self.target.kind.schema, old, &self.tree)
            }
            PatchKind::Apply => Err(Status::bad_request("an apply patch is not taken here")),
        }
    }

    /// The patched object, read as one of its kind that is still called as before.
    pub(super) fn typed(&self, old: &Value, validation: FieldValidation) -> Result<Value, Status> {
        let mut new = self.raw(old)?;
        let kind = self.said_kind(old, &mut new, validation)?;
        let repeated = self.repeated(validation);
        let prune = if self.kind == PatchKind::Strategic { decode::prune_merged } else { decode::prune_patched };
        match prune(&self.target.table, kind, &mut new, validation, repeated.clone()) {
            Ok(mut warnings) => {
                if self.kind == PatchKind::Strategic {
                    let first = repeated.len().min(warnings.len());
                    warnings[first..].sort();
                }
                self.call.warn(warnings);
                if kind.gvk != self.target.kind.gvk {
                    new = conversion::from_storage(&self.target.kind, conversion::to_storage(kind, new));
                }
                lifecycle::match_namespace(&self.target.kind, &mut new, Some(object::namespace(old)))?;
                check_name(object::name(&new), object::name(old))?;
                body::warn_of_server_keys(self.call, &new, Some(old));
                Ok(new)
            }
            Err(unfit) if self.kind == PatchKind::Strategic => {
                let left = patch::left_of_patch(&self.target.table, self.target.kind.schema, old, &self.tree);
                Err(decode::unfit_patch(&decode::go_print(&left), &unfit.converted()))
            }
            Err(unfit) => {
                let patched = self.raw(old)?;
                let shown = self.echo(old, &patched);
                let told = decode::told_of_tree(&self.target.table, kind, patched);
                Err(decode::unfit_patch(&shown, &told.unwrap_or_else(|| unfit.decoded())))
            }
        }
    }

    /// What is said of keys that stand in the patch more than once, and of fields that its operations do not have.
    fn repeated(&self, validation: FieldValidation) -> Vec<String> {
        if validation == FieldValidation::Ignore {
            return Vec::new();
        }
        match self.kind {
            PatchKind::Json => {
                let unclear = decode::unclear_operations(&self.call.body);
                unclear.into_iter().map(|field| format!("json patch {field}")).collect()
            }
            PatchKind::Merge | PatchKind::Strategic | PatchKind::Apply => decode::repeated_keys(&self.call.body),
        }
    }

    /// The patched document as text.
    fn echo(&self, old: &Value, patched: &Value) -> String {
        if !self.target.kind.is_typed() || !patched.is_object() {
            return patched.to_string();
        }
        let touched = match self.kind {
            PatchKind::Json => patch::Touched::by_json(&self.call.body),
            PatchKind::Merge | PatchKind::Strategic | PatchKind::Apply => patch::Touched::by_merge(old, &self.tree),
        };
        patch::echo(&self.target.table, self.target.kind.schema, patched, &touched)
    }

    /// The kind that the patched document says it is of, which may be another version of the object's. What else the object is
    /// cannot be patched. A strategic patch is laid into an object of the kind, whatever it says.
    fn said_kind(&self, old: &Value, new: &mut Value, validation: FieldValidation) -> Result<&Kind, Status> {
        let own = &*self.target.kind;
        if self.kind == PatchKind::Strategic {
            for key in ["apiVersion", "kind"] {
                if new.get(key).is_none_or(Value::is_string) {
                    new[key] = old[key].clone();
                }
            }
            return Ok(own);
        }
        let unfit = |why: String| decode::unfit_patch(&self.echo(old, new), &why);
        let (version, kind) = decode::said_head(new).map_err(unfit)?;
        let (version, kind) = (version.to_owned(), kind.to_owned());
        let text = |key: &str| old.get(key).and_then(Value::as_str).unwrap_or_default();
        if (&*version, &*kind) == (text("apiVersion"), text("kind")) {
            return Ok(own);
        }
        if !own.is_typed() {
            return self.check_said(old, new, (&version, &kind), validation).map(|()| own);
        }
        let kind = if kind.is_empty() { text("kind").to_owned() } else { kind };
        let Some(version) = self.registered_version(&version) else {
            let shown = self.echo(old, new);
            return Err(decode::unfit_patch(&shown, &decode::missing_version(&shown)));
        };
        if version.is_empty() {
            return self.without_version(old, new, &kind, validation);
        }
        let found = if (version, &*kind) == (text("apiVersion"), text("kind")) {
            Some(own)
        } else {
            self.other_version(version, &kind)
        };
        if let Some(found) = found {
            (new["apiVersion"], new["kind"]) = (version.into(), kind.into());
            return Ok(found);
        }
        let why = decode::other_type(&self.target.table, own, (version, &kind), new);
        Err(decode::unfit_patch(&self.echo(old, new), &why))
    }

    /// The version that Go takes an `apiVersion` for: the core's group may be written before its slash, and the object's own group
    /// without a version is none. `None` where there is a group, another one, and no version.
    fn registered_version<'v>(&self, said: &'v str) -> Option<&'v str> {
        match said.split_once('/') {
            Some(("", version)) => Some(version),
            Some((group, "")) => (group == &*self.target.kind.gvk.group).then_some(""),
            Some(_) | None => Some(said),
        }
    }

    /// Upstream reads an object without a version as one of its inner types, which have none of its fields by their names. A custom
    /// resource has no such type, so that its scale is what it was.
    fn without_version(
        &self,
        old: &Value,
        new: &mut Value,
        kind: &str,
        validation: FieldValidation,
    ) -> Result<&Kind, Status> {
        let own = &*self.target.kind;
        if kind != &*own.gvk.kind {
            let inner = GroupVersion { version: decode::INNER_VERSION.into(), ..own.group_version() }.to_string();
            let why = decode::other_type(&self.target.table, own, (&inner, kind), new);
            return Err(decode::unfit_patch(&self.echo(old, new), &why));
        }
        if !self.target.is_custom() {
            self.note_unknown(old, new, &["apiVersion", "kind"], validation)?;
            return Err(nameless(object::name(old)));
        }
        (new["apiVersion"], new["kind"]) = (old["apiVersion"].clone(), old["kind"].clone());
        Ok(own)
    }

    /// A custom resource must say what it is. That it is something else is found when it is validated; of another version nothing is
    /// known until then.
    fn check_said(
        &self,
        old: &Value,
        new: &Value,
        (version, kind): (&str, &str),
        validation: FieldValidation,
    ) -> Result<(), Status> {
        if kind.is_empty() {
            let shown = self.echo(old, new);
            return Err(decode::unfit_patch(&shown, &decode::missing_kind(&shown)));
        }
        if version.is_empty() {
            return Err(Status::internal("Object 'apiVersion' is missing in 'object has no apiVersion field'"));
        }
        let own = &self.target.kind.gvk;
        let (group, name) = version.rsplit_once('/').unwrap_or(("", version));
        let is_unknown = self.target.table.kind_named(group, name, kind).is_none();
        match is_unknown && group == &*own.group && kind == &*own.kind {
            true => self.note_unknown(old, new, &["apiVersion", "kind", "metadata"], validation),
            false => Ok(()),
        }
    }

    /// Tells of all fields of the patched document but those that are known.
    ///
    /// # Errors
    /// 422 under `Strict`.
    fn note_unknown(
        &self,
        old: &Value,
        new: &Value,
        known: &[&str],
        validation: FieldValidation,
    ) -> Result<(), Status> {
        let unknown = new.as_object().into_iter().flatten().map(|(name, _)| name);
        let unknown = unknown.filter(|name| !known.contains(&name.as_str()));
        let mut notes: Vec<String> = unknown.map(|name| format!("unknown field {}", go_quoted(name))).collect();
        notes.sort();
        let notes = [self.repeated(validation), notes].concat();
        match validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => self.call.warn(notes),
            FieldValidation::Strict if notes.is_empty() => {}
            FieldValidation::Strict => {
                return Err(decode::unfit_patch(&self.echo(old, new), &decode::strict_text(&notes)));
            }
        }
        Ok(())
    }

    /// A built-in kind of this name that is stored as the target's.
    fn other_version(&self, api_version: &str, kind: &str) -> Option<&Kind> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let found = self.target.table.kind_named(group, version, kind)?;
        (found.is_typed() && found.storage == self.target.kind.storage).then_some(&**found)
    }
}

async fn applied(
    api: &Arc<ApiServer>,
    call: &Arc<Call>,
    writer: &Writer<'_>,
    key: &ObjectKey,
    subresource: Option<&str>,
) -> Result<(u16, Changed), Status> {
    let (target, options) = (writer.target, writer.options);
    let wanted = applied_body(call)?;
    let now = api.seams.now_text();
    let make = |live: Option<&Value>| {
        body::warn_of_server_keys(call, &wanted, live);
        let request = ApplyRequest {
            live,
            applied: wanted.clone(),
            manager: &options.manager,
            force: call.query.flag("force"),
            subresource,
            now: &now,
            conversions: &writer.conversions,
        };
        let mut merged = apply::apply(&target.table, &target.kind, request)?;
        decode::make_applied_canonical(&target.table, &target.kind, &wanted, &mut merged)?;
        check_repeated(call, options.validation)?;
        lifecycle::match_namespace(&target.kind, &mut merged, target.namespace.as_deref())?;
        check_name(object::name(&merged), &key.name)?;
        Ok(merged)
    };
    let allowed = || -> BoxFuture<'_, Result<(), Status>> {
        Box::pin(async {
            if subresource.is_some() && !lifecycle::creates_on_update(&target.kind, subresource) {
                return Err(Status::not_found(&target.resource(), &key.name));
            }
            may_create(api, call).await?;
            check_wants_none(target, key, &wanted)
        })
    };
    let put = Put { may_create: &allowed, fresh: &|| make(None), changed: &|old| make(Some(old)) };
    writer.put(key, subresource, &put).await
}

/// What creates its object asks for none that was there.
fn check_wants_none(target: &Target, key: &ObjectKey, wanted: &Value) -> Result<(), Status> {
    let Some(uid) = object::uid(wanted) else { return Ok(()) };
    let why = format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
    Err(Status::conflict(&target.resource(), &key.name, why))
}

/// The body of an apply patch.
///
/// # Errors
/// 400 when it is no YAML or no object.
pub(super) fn applied_body(call: &Call) -> Result<Value, Status> {
    let bad = |why: String| Status::bad_request(format!("error decoding YAML: error {why}"));
    let unread = |why: String| bad(format!("converting YAML to JSON: {why}"));
    match decode::decode_any(MediaType::Yaml, &call.body).map_err(unread)? {
        wanted @ Value::Object(_) => Ok(wanted),
        Value::Null => Ok(json!({})),
        other => Err(bad(format!(
            "unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            decode::go_word(&other)
        ))),
    }
}

/// Tells of keys that stand in an apply patch more than once. Upstream looks for them after it has laid the patch over.
///
/// # Errors
/// 400 where they are not allowed.
pub(super) fn check_repeated(call: &Call, validation: FieldValidation) -> Result<(), Status> {
    let repeated = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn | FieldValidation::Strict => decode::repeated_in_yaml(&call.body),
    };
    if validation == FieldValidation::Strict && !repeated.is_empty() {
        let lines = repeated.join("\n  ");
        return Err(Status::bad_request(format!(
            "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {lines}"
        )));
    }
    call.warn(repeated);
    Ok(())
}
