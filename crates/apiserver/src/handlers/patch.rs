//! PATCH: JSON patch, merge patch, strategic merge patch.

use std::sync::Arc;

use http::{Response, header::CONTENT_TYPE};
use portolan_codec::{
    conversion,
    decode::{self, FieldValidation, MediaType},
};
use portolan_gocompat::print::go_print;
use portolan_kinds::Kind;
use portolan_merge::{apply::Conversions, patch};
use portolan_strategy::lifecycle;
use portolan_types::{GroupVersion, Reason, Status, json_patch::go_word, object, quoted::go_quoted};
use serde_json::{Value, json};

use crate::{
    ApiServer, Body,
    encode::ResponseShape,
    objects::{ManagerRecording, ObjectChange, ObjectWriter},
    options::WriteOptions,
    request::{RequestContext, ResourceTarget},
};

use super::{
    apply::{apply_patch, decode_apply_patch},
    body::{self, AnsweredWrite, RequestBody},
    update::{check_name, missing_name},
};

/// Format of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchFormat {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchFormat {
    /// Returns the format that the content type names. Custom resources have no strategic merge patch, because their
    /// schema has no merge keys.
    ///
    /// # Errors
    /// 415 for any other content type.
    pub(super) fn of(call: &RequestContext, target: &ResourceTarget) -> Result<Self, Status> {
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
            // The router of kube-apiserver refuses this type before a handler runs.
            _ => Err(Status::generic(Reason::UnsupportedMediaType, "415: Unsupported Media Type")),
        }
    }
}

pub(super) async fn patch(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    target: &ResourceTarget,
    subresource: Option<&str>,
) -> Result<Response<Body>, Status> {
    let kind = PatchFormat::of(call, target)?;
    let shape = ResponseShape::of(call, target, api.seams().clock.now())?;
    let options = WriteOptions::of(call)?;
    let writer = ObjectWriter {
        context: &api.writes,
        call,
        target,
        options: &options,
        recording: match kind {
            PatchFormat::Apply => ManagerRecording::Applied,
            PatchFormat::Json | PatchFormat::Merge | PatchFormat::Strategic => ManagerRecording::Tracked,
        },
        body: &RequestBody { call, target },
        conversions: Conversions::default(),
    };
    let key = target.key(call, &call.captures.name)?;
    let (code, result) = match kind {
        PatchFormat::Apply => apply_patch(&writer, &key, subresource).await?,
        kind => {
            let found = api.reads.find_object(call, target, &key).await?;
            let found = found.ok_or_else(|| Status::not_found(&target.resource(), &key.name))?;
            let patch = Patch::read(call, target, kind)?;
            let make = |old: &Value| patch.apply_typed(old, options.validation);
            let change = ObjectChange { key: &key, subresource, make: &make };
            (200, writer.change(&change, found).await?)
        }
    };
    body::write_response(&api.config.hooks, call, &shape, AnsweredWrite { code, result })
}

/// Applies the patch of a request to `old`. For an apply patch it returns the patch itself, because fields of other
/// managers are not the applier's.
///
/// # Errors
/// The errors of reading and applying the patch.
pub(super) fn apply_to(call: &RequestContext, target: &ResourceTarget, old: &Value) -> Result<Value, Status> {
    match PatchFormat::of(call, target)? {
        PatchFormat::Apply => decode_apply_patch(call),
        kind => Patch::read(call, target, kind)?.apply_raw(old),
    }
}

/// apiVersion and kind that a patched document names.
struct NamedKind<'a> {
    version: &'a str,
    kind: &'a str,
}

/// Patch that is parsed once and may be applied several times.
pub(super) struct Patch<'a> {
    call: &'a RequestContext,
    target: &'a ResourceTarget,
    kind: PatchFormat,
    tree: Value,
}

impl<'a> Patch<'a> {
    pub(super) fn read(
        call: &'a RequestContext,
        target: &'a ResourceTarget,
        kind: PatchFormat,
    ) -> Result<Self, Status> {
        let read = || match decode::decode_any(MediaType::Json, &call.body)? {
            tree @ Value::Object(_) => Ok(tree),
            Value::Null => Ok(json!({})),
            other => {
                let found = go_word(&other);
                Err(format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"))
            }
        };
        let tree = match kind {
            // JSON patches are lists; they are parsed where they are applied.
            PatchFormat::Json => Value::Null,
            PatchFormat::Strategic => read().map_err(|why: String| Status::bad_request(why))?,
            PatchFormat::Merge if call.body.trim_ascii() == b"null" => {
                return Err(Status::bad_request("Invalid JSON Patch"));
            }
            PatchFormat::Merge | PatchFormat::Apply => {
                read().map_err(|why: String| Status::bad_request(format!("error decoding patch: {why}")))?
            }
        };
        Ok(Self { call, target, kind, tree })
    }

    /// Applies the patch without checking the result. In a flattened view it is a patch of the object that the view
    /// shows.
    fn apply_raw(&self, old: &Value) -> Result<Value, Status> {
        let Some(names) = self.call.flattened() else { return self.apply_plain(old) };
        let mut shown = old.clone();
        names.show((&self.target.table, &self.target.kind), self.call.cluster.id, &mut shown);
        body::with_stored_names(self.call, self.target, self.apply_plain(&shown)?, Some(old))
    }

    fn apply_plain(&self, old: &Value) -> Result<Value, Status> {
        match self.kind {
            PatchFormat::Json => patch::json_patch(old, &self.call.body),
            PatchFormat::Merge => Ok(patch::merge_patch(old, &self.tree)),
            PatchFormat::Strategic => {
                patch::strategic_merge(&self.target.table, self.target.kind.schema, old, &self.tree)
            }
            PatchFormat::Apply => Err(Status::bad_request("apply patches are not supported here")),
        }
    }

    /// Applies the patch and decodes the result as the object's kind, under the same name and namespace.
    pub(super) fn apply_typed(&self, old: &Value, validation: FieldValidation) -> Result<Value, Status> {
        let mut new = self.apply_raw(old)?;
        let kind = self.named_kind(old, &mut new, validation)?;
        let repeated = self.duplicate_keys(validation);
        let prune = if self.kind == PatchFormat::Strategic { decode::prune_merged } else { decode::prune_patched };
        match prune(&self.target.table, kind, &mut new, validation, repeated.clone()) {
            Ok(mut warnings) => {
                if self.kind == PatchFormat::Strategic {
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
            Err(unfit) if self.kind == PatchFormat::Strategic => {
                let left = patch::left_of_patch(&self.target.table, self.target.kind.schema, old, &self.tree);
                Err(decode::unfit_patch(&go_print(&left), &unfit.converted()))
            }
            Err(unfit) => {
                let patched = self.apply_raw(old)?;
                let shown = self.print_patched(old, &patched);
                let told = decode::error_of_tree(&self.target.table, kind, patched);
                Err(decode::unfit_patch(&shown, &told.unwrap_or_else(|| unfit.decoded())))
            }
        }
    }

    /// Returns the errors for duplicate keys of the patch and for fields that its operations do not have.
    fn duplicate_keys(&self, validation: FieldValidation) -> Vec<String> {
        if validation == FieldValidation::Ignore {
            return Vec::new();
        }
        match self.kind {
            PatchFormat::Json => {
                let unclear = decode::unclear_operations(&self.call.body);
                unclear.into_iter().map(|field| format!("json patch {field}")).collect()
            }
            PatchFormat::Merge | PatchFormat::Strategic | PatchFormat::Apply => decode::repeated_keys(&self.call.body),
        }
    }

    /// Prints the patched document for an error message.
    fn print_patched(&self, old: &Value, patched: &Value) -> String {
        if !self.target.kind.is_typed() || !patched.is_object() {
            return patched.to_string();
        }
        let touched = match self.kind {
            PatchFormat::Json => patch::Touched::by_json(&self.call.body),
            PatchFormat::Merge | PatchFormat::Strategic | PatchFormat::Apply => {
                patch::Touched::by_merge(old, &self.tree)
            }
        };
        patch::echo(&self.target.table, self.target.kind.schema, patched, &touched)
    }

    /// Returns the kind that the patched document names: another version of the object's kind is allowed, anything else
    /// is not. A strategic patch keeps the kind of the object.
    fn named_kind(&self, old: &Value, new: &mut Value, validation: FieldValidation) -> Result<&Kind, Status> {
        let own = &*self.target.kind;
        if self.kind == PatchFormat::Strategic {
            for key in ["apiVersion", "kind"] {
                if new.get(key).is_none_or(Value::is_string) {
                    new[key] = old[key].clone();
                }
            }
            return Ok(own);
        }
        let unfit = |why: String| decode::unfit_patch(&self.print_patched(old, new), &why);
        let (version, kind) = decode::stated_type_meta(new).map_err(unfit)?;
        let (version, kind) = (version.to_owned(), kind.to_owned());
        let text = |key: &str| old.get(key).and_then(Value::as_str).unwrap_or_default();
        if (&*version, &*kind) == (text("apiVersion"), text("kind")) {
            return Ok(own);
        }
        if !own.is_typed() {
            return self
                .check_named_kind(old, new, &NamedKind { version: &version, kind: &kind }, validation)
                .map(|()| own);
        }
        let kind = if kind.is_empty() { text("kind").to_owned() } else { kind };
        let Some(version) = self.registered_version(&version) else {
            let shown = self.print_patched(old, new);
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
        Err(decode::unfit_patch(&self.print_patched(old, new), &why))
    }

    /// Returns the version as Go parses an `apiVersion`: the core group may stand before its slash as nothing, and the
    /// object's own group without a version means no version. Returns `None` for another group without a version.
    fn registered_version<'v>(&self, said: &'v str) -> Option<&'v str> {
        match said.split_once('/') {
            Some(("", version)) => Some(version),
            Some((group, "")) => (group == &*self.target.kind.gvk.group).then_some(""),
            Some(_) | None => Some(said),
        }
    }

    /// Handles a patched object without a version. kube-apiserver decodes it as the internal type, whose fields have
    /// other names. A custom resource has no internal type, so its scale keeps its kind.
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
            return Err(decode::unfit_patch(&self.print_patched(old, new), &why));
        }
        if !self.target.is_custom() {
            self.report_unknown_fields(old, new, &["apiVersion", "kind"], validation)?;
            return Err(missing_name(object::name(old)));
        }
        (new["apiVersion"], new["kind"]) = (old["apiVersion"].clone(), old["kind"].clone());
        Ok(own)
    }

    /// Checks the kind that a patched custom resource names. A wrong kind is found by validation; fields of an unknown
    /// version are not checked here.
    fn check_named_kind(
        &self,
        old: &Value,
        new: &Value,
        named: &NamedKind<'_>,
        validation: FieldValidation,
    ) -> Result<(), Status> {
        let NamedKind { version, kind } = *named;
        if kind.is_empty() {
            let shown = self.print_patched(old, new);
            return Err(decode::unfit_patch(&shown, &decode::missing_kind(&shown)));
        }
        if version.is_empty() {
            return Err(Status::internal("Object 'apiVersion' is missing in 'object has no apiVersion field'"));
        }
        let own = &self.target.kind.gvk;
        let (group, name) = version.rsplit_once('/').unwrap_or(("", version));
        let is_unknown = self.target.table.kind_named(group, name, kind).is_none();
        if is_unknown && group == &*own.group && kind == &*own.kind {
            self.report_unknown_fields(old, new, &["apiVersion", "kind", "metadata"], validation)
        } else {
            Ok(())
        }
    }

    /// Reports all fields of the patched document except the known ones.
    ///
    /// # Errors
    /// 422 under `Strict`.
    fn report_unknown_fields(
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
        let notes = [self.duplicate_keys(validation), notes].concat();
        match validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => self.call.warn(notes),
            FieldValidation::Strict if notes.is_empty() => {}
            FieldValidation::Strict => {
                return Err(decode::unfit_patch(&self.print_patched(old, new), &decode::strict_text(&notes)));
            }
        }
        Ok(())
    }

    /// Returns the built-in kind of this name that shares the storage of the target.
    fn other_version(&self, api_version: &str, kind: &str) -> Option<&Kind> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let found = self.target.table.kind_named(group, version, kind)?;
        (found.is_typed() && found.storage == self.target.kind.storage).then_some(&**found)
    }
}
