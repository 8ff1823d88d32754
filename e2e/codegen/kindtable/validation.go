package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/capabilities"
)

// base is a good object. Each case changes one place in it.
type base struct {
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
	// Brief, where it is there, is the only part in which places are changed, and each once. So a part that other kinds
	// have as well is judged in full in one of them, and in the others as far as it takes to see that it is judged at all.
	Brief string `json:"brief,omitempty"`
	// New says that the object has what the registry drops from new ones, or never stores for another reason: it is judged
	// as a new one and not as one that is there.
	New bool `json:"new,omitempty"`
	// Refused says that the object is no good one: it has what no object may have. It is judged as it is.
	Refused bool            `json:"refused,omitempty"`
	Object  json.RawMessage `json:"object"`
}

// readBases reads a base a line.
func readBases(from string) ([]base, error) {
	text, err := os.ReadFile(from)
	if err != nil {
		return nil, err
	}
	var bases []base
	for i, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		var b base
		if err := json.Unmarshal(line, &b); err != nil {
			return nil, fmt.Errorf("base %d: %w", i, err)
		}
		bases = append(bases, b)
	}
	return bases, nil
}

// writeVerdicts asks the registries about every base with every place in it changed in several ways. `whole` keeps
// long texts as they are.
func writeVerdicts(from, to string, whole bool) error {
	klog.SetLogger(logr.Discard()) // each error that is found twice is logged
	capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true})
	stores, err := registries()
	if err != nil {
		return err
	}
	bases, err := readBases(from)
	if err != nil {
		return err
	}
	out := &verdicts{texts: map[string]int{}, whole: whole}
	var refused []error
	for i, b := range bases {
		if err := out.judge(i, b, stores); err != nil {
			refused = append(refused, fmt.Errorf("base %d (%s): %w", i, b.Resource, err))
		}
	}
	if err := errors.Join(refused...); err != nil {
		return err
	}
	return out.write(to)
}

// judgement holds what is needed to judge changes of one base.
type judgement struct {
	info  *request.RequestInfo
	store *genericregistry.Store
	base  map[string]any
	isNew bool
}

// judgementOf gives what judges a base, and the part of it that is changed.
func judgementOf(b base, stores map[schema.GroupResource]*genericregistry.Store) (j judgement, place string, err error) {
	var tree map[string]any
	if err := json.Unmarshal(b.Object, &tree); err != nil {
		return j, "", err
	}
	gv, err := schema.ParseGroupVersion(tree["apiVersion"].(string))
	if err != nil {
		return j, "", err
	}
	resource := b.Resource
	switch b.Subresource {
	case "":
	case "status", "approval":
		place = "/status/"
	default:
		place = "/spec/"
	}
	if b.Subresource != "" {
		resource += "/" + b.Subresource
	}
	store := stores[schema.GroupResource{Group: gv.Group, Resource: resource}]
	if store == nil {
		return j, "", fmt.Errorf("no registry for %s", resource)
	}
	info := &request.RequestInfo{IsResourceRequest: true, APIGroup: gv.Group, APIVersion: gv.Version,
		Resource: b.Resource, Subresource: b.Subresource}
	return judgement{store: store, info: info, base: tree, isNew: b.New}, place, nil
}

func (v *verdicts) judge(at int, b base, stores map[schema.GroupResource]*genericregistry.Store) error {
	j, place, err := judgementOf(b, stores)
	if err != nil {
		return err
	}
	own, err := j.ask(j.base)
	if err != nil {
		return err
	}
	if isRefused := len(own.create)+len(own.update) != 0; isRefused != b.Refused {
		return fmt.Errorf("the base itself is refused (%v): %v %v", isRefused, own.create, own.update)
	}
	if b.Refused {
		return v.add(verdict{Base: at, Cases: [][]any{v.caseOf(change{}, own)}})
	}
	var line verdict
	for _, change := range b.changes(j.base) {
		if !strings.HasPrefix(change.path, place) {
			continue
		}
		changed := runtime.DeepCopyJSON(j.base)
		put(changed, strings.Split(change.path, "/")[1:], change.value, change.remove)
		found, err := j.ask(changed)
		if err != nil {
			continue // refused before it is looked at
		}
		if change.remove && !j.isNew {
			found.added = j.askAdded(changed)
		}
		if line.Path != change.path {
			if err := v.add(line); err != nil {
				return err
			}
			line = verdict{Base: at, Path: change.path}
		}
		line.Cases = append(line.Cases, v.caseOf(change, found))
	}
	return v.add(line)
}

// ask creates the changed object and puts it in place of the base, as far as the registry's checks. A subresource is only
// ever updated.
func (j judgement) ask(changed map[string]any) (found answers, err error) {
	if j.info.Subresource == "" {
		if found.create, err = j.askWrite(nil, changed); err != nil {
			return found, err
		}
	}
	if j.isNew {
		return found, nil
	}
	found.update, err = j.askWrite(j.base, changed)
	return found, err
}

// askAdded puts the base in place of the object that lacks a part of it. It gives nil where no such object can be stored.
func (j judgement) askAdded(lacking map[string]any) *[]metav1.StatusCause {
	causes, err := j.askWrite(lacking, j.base)
	if err != nil || slices.ContainsFunc(causes, tellsNow) {
		return nil
	}
	return &causes
}

// tellsNow tells whether the present time, which the registry filled in, is in a message.
func tellsNow(cause metav1.StatusCause) bool {
	return strings.Contains(cause.Message, time.Now().UTC().Format("2006-01-02T15:"))
}

// askWrite goes as far as the registry's checks of an object that is new, or takes the place of an old one.
func (j judgement) askWrite(old, changed map[string]any) (causes []metav1.StatusCause, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause) // a real server answers 500 then
		}
	}()
	ctx := j.context()
	if old == nil {
		object, err := j.decoded(changed, "")
		if err != nil {
			return nil, err
		}
		return causesOf(j.create(ctx, object))
	}
	before, err := j.stored(old)
	if err != nil {
		return nil, err
	}
	after, err := j.decoded(changed, "1")
	if err != nil {
		return nil, err
	}
	return causesOf(j.update(ctx, after, before))
}

// context is that of a request by one who may do all. Policies ask whether the user may read their parameters; the first
// group of all may.
func (j judgement) context() context.Context {
	namespace := ""
	if j.store.UpdateStrategy.NamespaceScoped() {
		namespace = "ns"
	}
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	return request.WithUser(request.WithRequestInfo(request.WithNamespace(context.Background(), namespace), j.info), admin)
}

// decoded reads an object into the internal form, at a resourceVersion.
func (j judgement) decoded(tree map[string]any, version string) (runtime.Object, error) {
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	codecs, _ := codecsOf(j.info.APIGroup)
	object, _, err := codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(object)
	if err == nil {
		accessor.SetResourceVersion(version)
	}
	return object, err
}

// stored reads an object as one that comes from the store, where empty lists and maps are not kept.
func (j judgement) stored(tree map[string]any) (runtime.Object, error) {
	object, err := j.decoded(tree, "1")
	if err != nil {
		return nil, err
	}
	codecs, _ := codecsOf(j.info.APIGroup)
	codec := codecs.LegacyCodec(schema.GroupVersion{Group: j.info.APIGroup, Version: j.info.APIVersion})
	text, err := runtime.Encode(codec, object)
	if err != nil {
		return nil, err
	}
	return runtime.Decode(codec, text)
}

// create goes as far as the registry goes before it stores an object: services are given what they have of their own first.
func (j judgement) create(ctx context.Context, object runtime.Object) error {
	if j.store.BeginCreate != nil {
		if _, err := j.store.BeginCreate(ctx, object, &metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			return err
		}
	}
	return rest.BeforeCreate(j.store.CreateStrategy, ctx, object)
}

// update goes as far as the registry goes before it stores an object in place of another.
func (j judgement) update(ctx context.Context, after, before runtime.Object) error {
	if j.store.BeginUpdate != nil {
		if _, err := j.store.BeginUpdate(ctx, after, before, &metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			return err
		}
	}
	return rest.BeforeUpdate(j.store.UpdateStrategy, ctx, after, before)
}

// causesOf gives the causes of a 422; other errors are none of validation's.
func causesOf(err error) ([]metav1.StatusCause, error) {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil, nil
	case apierrors.IsInvalid(err) && errors.As(err, &status):
		return steady(status.Status().Details.Causes), nil
	default:
		return nil, err
	}
}

// steady sorts causes that stand next to each other and are about entries of one map of capacities or attributes, which
// upstream goes through in no order.
func steady(causes []metav1.StatusCause) []metav1.StatusCause {
	place := func(cause metav1.StatusCause) (of, key string) {
		for _, name := range []string{".capacity[", ".attributes["} {
			of, rest, _ := strings.Cut(cause.Field, name)
			if key, _, found := strings.Cut(rest, "]"); found {
				return of + name, key
			}
		}
		return "", ""
	}
	for from := 0; from < len(causes); {
		of, _ := place(causes[from])
		to := from + 1
		for ; to < len(causes) && of != ""; to++ {
			if other, _ := place(causes[to]); other != of {
				break
			}
		}
		slices.SortStableFunc(causes[from:to], func(a, b metav1.StatusCause) int {
			_, first := place(a)
			_, second := place(b)
			return strings.Compare(first, second)
		})
		from = to
	}
	return causes
}
