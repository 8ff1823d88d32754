package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

const (
	stepsOfHistory = 8
	// More update than managedFields keep apart.
	managersOfCrowd = 14
	// The bases behind these are more of the same kinds.
	basesOfHistories = 128
)

// clockStart is where the clock of each history starts. Times after the year of it are from the real clock.
var clockStart = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// history is what managers do to an object of one base, one after the other. One that was kept has a name.
type history struct {
	Base  int         `json:"base"`
	Seed  int64       `json:"seed,omitempty"`
	Name  string      `json:"name,omitempty"`
	Steps []writeStep `json:"steps"`
}

// writeStep is one write, and the object or the refusal that the real field manager makes of it.
type writeStep struct {
	Manager string         `json:"manager"`
	Apply   bool           `json:"apply,omitempty"`
	Force   bool           `json:"force,omitempty"`
	Now     string         `json:"now"`
	Object  map[string]any `json:"object"`
	After   map[string]any `json:"after,omitempty"`
	Refused *metav1.Status `json:"refused,omitempty"`
}

// writeHistories prints histories of writes, a line each, as the real field manager does them: types from the published
// OpenAPI documents, defaults from the real scheme. First come those that were kept, then `count` for each base, made up from
// seeds on from `seed`. Equal seeds give equal histories.
func writeHistories(from, kept string, count int, seed int64) error {
	bases, err := readBases(from)
	if err != nil {
		return err
	}
	writers, err := writersOf(bases)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := repeat(kept, writers, out); err != nil {
		return err
	}
	for i, w := range writers {
		for n := range count {
			if w == nil {
				break
			}
			one := history{Base: i, Seed: seed + int64(n)}
			w.random = rand.New(rand.NewSource(one.Seed))
			one.Steps = w.history()
			if err := out.Encode(one); err != nil {
				return err
			}
		}
	}
	return nil
}

// writersOf gives each base that is written as a whole a writer.
func writersOf(bases []base) ([]*writer, error) {
	stores, err := registries()
	if err != nil {
		return nil, err
	}
	types := map[schema.GroupVersion]managedfields.TypeConverter{}
	bases = bases[:min(len(bases), basesOfHistories)]
	writers := make([]*writer, len(bases))
	for i, b := range bases {
		w, err := newWriter(b)
		if err != nil {
			return nil, fmt.Errorf("base %d: %w", i, err)
		}
		store := stores[schema.GroupResource{Group: w.gvk.Group, Resource: b.Resource}]
		if b.Subresource != "" || store == nil || !legacyscheme.Scheme.Recognizes(w.gvk) {
			continue
		}
		gv := w.gvk.GroupVersion()
		if types[gv] == nil {
			if types[gv], err = typesOf(gv); err != nil {
				return nil, err
			}
		}
		if err := w.manage(types[gv], store.GetResetFields()); err != nil {
			return nil, fmt.Errorf("base %d: %w", i, err)
		}
		writers[i] = w
	}
	return writers, nil
}

// repeat does the writes of kept histories again: a line each, with a name and the steps without what comes of them.
func repeat(kept string, writers []*writer, out *json.Encoder) error {
	if kept == "" {
		return nil
	}
	text, err := os.ReadFile(kept)
	if err != nil {
		return err
	}
	for i, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		var one history
		if err := json.Unmarshal(line, &one); err != nil {
			return fmt.Errorf("%s:%d: %w", kept, i+1, err)
		}
		first := one.Steps[0].Object
		one.Base = slices.IndexFunc(writers, func(w *writer) bool {
			return w != nil && w.base["apiVersion"] == first["apiVersion"] && w.base["kind"] == first["kind"]
		})
		if one.Base < 0 {
			return fmt.Errorf("%s:%d: no base is of that kind", kept, i+1)
		}
		w := writers[one.Base]
		w.start()
		for n, step := range one.Steps {
			if one.Steps[n], err = w.write(&step); err != nil {
				return fmt.Errorf("%s:%d: step %d: %w", kept, i+1, n, err)
			}
		}
		if err := out.Encode(one); err != nil {
			return err
		}
	}
	return nil
}

// writer makes the histories of one base.
type writer struct {
	gvk     schema.GroupVersionKind
	base    map[string]any
	manager *managedfields.FieldManager
	storage runtime.Serializer
	random  *rand.Rand
	live    runtime.Object
	after   map[string]any
	writes  int
	pause   time.Duration
}

func newWriter(b base) (*writer, error) {
	w := &writer{storage: protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme)}
	if err := json.Unmarshal(b.Object, &w.base); err != nil {
		return nil, err
	}
	gv, err := schema.ParseGroupVersion(w.base["apiVersion"].(string))
	w.gvk = gv.WithKind(w.base["kind"].(string))
	return w, err
}

func (w *writer) manage(types managedfields.TypeConverter, reset map[fieldpath.APIVersion]*fieldpath.Set) (err error) {
	for _, set := range reset {
		if set.Has(fieldpath.MakePathOrDie("status")) {
			delete(w.base, "status")
		}
	}
	scheme := legacyscheme.Scheme
	w.manager, err = managedfields.NewDefaultFieldManager(types, scheme, scheme, scheme, w.gvk, hubOf(w.gvk), "",
		fieldpath.NewExcludeFilterSetMap(reset))
	return err
}

// hubOf is the version in which a server has an object in hand.
func hubOf(gvk schema.GroupVersionKind) schema.GroupVersion {
	return schema.GroupVersion{Group: gvk.Group, Version: runtime.APIVersionInternal}
}

// typesOf reads the types of a version from its published OpenAPI document.
func typesOf(gv schema.GroupVersion) (managedfields.TypeConverter, error) {
	name := "api__" + gv.Version
	if gv.Group != "" {
		name = "apis__" + gv.Group + "__" + gv.Version
	}
	text, err := moduleFile("api/openapi-spec/v3/" + name + "_openapi.json")
	if err != nil {
		return nil, err
	}
	var document struct {
		Components struct {
			Schemas map[string]*spec.Schema `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return managedfields.NewTypeConverter(document.Components.Schemas, false)
}

func (w *writer) start() {
	// Two writes come in the same second.
	w.live, w.after, w.writes, w.pause = nil, nil, 0, time.Second/2
}

func (w *writer) history() []writeStep {
	w.start()
	managers, applies := []string{"a", "b", "c"}, 3
	if w.random.Intn(8) == 0 {
		// Who of a crowd was first shall not depend on the real clock, which is ahead.
		applies, w.pause = 1, time.Second
		for n := range managersOfCrowd {
			managers = append(managers, fmt.Sprintf("crowd-%02d", n))
		}
	}
	var steps []writeStep
	for len(steps) < max(stepsOfHistory, len(managers)+2) {
		step := writeStep{Manager: managers[w.random.Intn(len(managers))], Apply: w.random.Intn(5) < applies, Force: w.random.Intn(2) == 0}
		if step.Apply {
			step.Object = w.configuration()
		} else {
			step.Object = w.changed()
		}
		if made, err := w.write(&step); err == nil {
			steps = append(steps, made)
		}
	}
	return steps
}

// write does the step; what cannot be read as an object of the kind is none.
func (w *writer) write(step *writeStep) (writeStep, error) {
	now := metav1.NewTime(clockStart.Add(time.Duration(w.writes) * w.pause))
	step.Now = now.Format(time.RFC3339)
	live := w.live
	if live == nil {
		empty, err := legacyscheme.Scheme.New(w.gvk)
		if err != nil {
			return *step, err
		}
		live = empty
	}
	object, _, err := decoded(step.Object)
	if err != nil {
		return *step, err
	}
	var after runtime.Object
	if step.Apply {
		patch := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(step.Object)}
		after, err = w.manager.Apply(live.DeepCopyObject(), patch, step.Manager, step.Force)
	} else {
		after, err = w.manager.Update(live.DeepCopyObject(), object, step.Manager)
	}
	w.writes++
	if err != nil {
		step.Refused = refusal(err)
		return *step, nil
	}
	accessor, err := meta.Accessor(after)
	if err != nil {
		return *step, err
	}
	accessor.SetUID("u") // what has none is about to be created
	owners := accessor.GetManagedFields()
	for i := range owners {
		if owners[i].Time != nil && owners[i].Time.Year() > clockStart.Year() {
			owners[i].Time = &now
		}
	}
	slices.SortFunc(owners, inOrder)
	accessor.SetManagedFields(owners)
	if w.live, err = w.stored(after); err != nil {
		return *step, err
	}
	w.after, err = w.plain(w.live)
	step.After = w.after
	return *step, err
}

// inOrder is the order of owners, which depends on the times that the history's clock replaces.
func inOrder(a, b metav1.ManagedFieldsEntry) int {
	seconds := func(e metav1.ManagedFieldsEntry) int64 {
		if e.Time == nil {
			return 0
		}
		return e.Time.Unix()
	}
	return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(seconds(a), seconds(b)),
		cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.APIVersion, b.APIVersion))
}

// stored is an object as it comes back from the store, where nothing tells an empty list from none.
func (w *writer) stored(object runtime.Object) (runtime.Object, error) {
	codec := legacyscheme.Codecs.CodecForVersions(w.storage, w.storage, w.gvk.GroupVersion(), hubOf(w.gvk))
	bytes, err := runtime.Encode(codec, object)
	if err != nil {
		return nil, err
	}
	return runtime.Decode(codec, bytes)
}

// plain is an object as a client reads it.
func (w *writer) plain(object runtime.Object) (map[string]any, error) {
	published, err := legacyscheme.Scheme.ConvertToVersion(object, w.gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(published)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	return tree, json.Unmarshal(text, &tree)
}

func refusal(err error) *metav1.Status {
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		status := known.Status()
		return &status
	}
	return &metav1.Status{Message: err.Error(), Code: 500}
}

// configuration is a part of the base, with some values changed.
func (w *writer) configuration() map[string]any {
	tree := w.part(w.base, "").(map[string]any)
	metadata := metadataOf(tree)
	for _, key := range []string{"uid", "creationTimestamp"} {
		delete(metadata, key)
	}
	return w.named(tree, metadata)
}

// changed is the live object with parts of the base laid over it and some taken out, as a client writes it back.
func (w *writer) changed() map[string]any {
	if w.after == nil {
		return full(w.configuration()).(map[string]any)
	}
	tree := w.mixed(runtime.DeepCopyJSON(w.after), full(w.part(w.base, "")), "").(map[string]any)
	metadata := metadataOf(tree)
	delete(metadata, "managedFields")
	if owners, ok := w.after["metadata"].(map[string]any)["managedFields"].([]any); ok {
		metadata["managedFields"] = w.edited(runtime.DeepCopyJSONValue(owners).([]any))
	}
	return w.named(tree, metadata)
}

// edited are owners as a client sends them back, which now and then edits them.
func (w *writer) edited(owners []any) []any {
	if w.random.Intn(12) > 0 {
		return owners
	}
	at := w.random.Intn(len(owners))
	entry := owners[at].(map[string]any)
	switch w.random.Intn(5) {
	case 0:
		return []any{}
	case 1:
		return []any{map[string]any{}}
	case 2:
		return slices.Delete(owners, at, at+1)
	case 3:
		entry["operation"] = "Apply"
	case 4:
		withoutMembers(entry["fieldsV1"].(map[string]any))
	}
	return owners
}

// withoutMembers leaves only the leaves owned.
func withoutMembers(fields map[string]any) {
	for _, below := range fields {
		withoutMembers(below.(map[string]any))
	}
	if len(fields) > 1 {
		delete(fields, ".")
	}
}

func metadataOf(tree map[string]any) map[string]any {
	if metadata, ok := tree["metadata"].(map[string]any); ok {
		return metadata
	}
	return map[string]any{}
}

func (w *writer) named(tree, metadata map[string]any) map[string]any {
	metadata["name"] = "x"
	if namespace, ok := w.base["metadata"].(map[string]any)["namespace"]; ok {
		metadata["namespace"] = namespace
	}
	tree["apiVersion"], tree["kind"], tree["metadata"] = w.base["apiVersion"], w.base["kind"], metadata
	return tree
}

// part leaves out fields and elements, changes the order of lists, and values.
func (w *writer) part(value any, key string) any {
	switch value := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			_, scalar := value[key].(string)
			if w.random.Intn(10) < 7 || scalar && w.random.Intn(4) > 0 {
				out[key] = w.part(value[key], key)
			}
		}
		return out
	case []any:
		out := []any{}
		for _, element := range value {
			if w.random.Intn(10) < 7 {
				out = append(out, w.part(element, key))
			}
		}
		if w.random.Intn(4) == 0 {
			w.random.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		}
		return out
	}
	if w.random.Intn(100) == 0 {
		return nil
	}
	if w.random.Intn(5) > 0 {
		return value
	}
	return w.other(value)
}

// mixed lays one tree over another.
func (w *writer) mixed(under, over any, key string) any {
	switch over := over.(type) {
	case map[string]any:
		tree, ok := under.(map[string]any)
		if !ok {
			return over
		}
		for _, key := range slices.Sorted(maps.Keys(over)) {
			if w.random.Intn(6) == 0 {
				tree[key] = w.mixed(tree[key], over[key], key)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(tree)) {
			if w.random.Intn(20) == 0 {
				delete(tree, key)
			}
		}
		return tree
	case nil:
		return under
	}
	return over
}

// full leaves out empty lists: whether one takes the place of none is forgotten by the store.
func full(value any) any {
	switch value := value.(type) {
	case map[string]any:
		maps.DeleteFunc(value, func(_ string, inner any) bool {
			list, ok := full(inner).([]any)
			return ok && len(list) == 0
		})
	case []any:
		for _, element := range value {
			full(element)
		}
	}
	return value
}

// typed are texts of another form, which not any text can replace.
var typed = regexp.MustCompile(`^([0-9.]+[a-zA-Z]*|\d{4}-.*Z|[A-Za-z0-9+/]*=)$`)

func (w *writer) other(value any) any {
	switch value := value.(type) {
	case string:
		if typed.MatchString(value) || strings.Contains(value, "/") {
			return value
		}
		return []string{"other", value + "x", "", value + "<é\u2028\x7f"}[w.random.Intn(4)]
	case float64:
		return value + float64(w.random.Intn(3)-1)
	case bool:
		return !value
	}
	return value
}
