package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

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
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"
)

// base is a good object. Each case changes one place in it.
type base struct {
	Resource    string          `json:"resource"`
	Subresource string          `json:"subresource,omitempty"`
	Object      json.RawMessage `json:"object"`
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

// verdicts are what the real registries say of changed objects: texts once, cases as numbers of texts.
type verdicts struct {
	texts map[string]int
	order []string
	lines bytes.Buffer
}

// verdict is one case: the base, the place that is changed, what is put there (nothing: it is taken out), and what is wrong
// with the object then, when it is new and when it takes the place of the base: field, reason and message, by number.
type verdict struct {
	Base   int             `json:"b"`
	Path   string          `json:"p"`
	Value  json.RawMessage `json:"v,omitempty"`
	Create []int           `json:"c,omitempty"`
	Update []int           `json:"u,omitempty"`
}

// writeVerdicts asks the registries about every base with every place in it changed in several ways.
func writeVerdicts(from, to string) error {
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
	out := &verdicts{texts: map[string]int{}}
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

// write writes the texts, an empty line, and the cases.
func (v *verdicts) write(to string) error {
	texts, err := json.Marshal(v.order)
	if err != nil {
		return err
	}
	split := bytes.ReplaceAll(texts, []byte(`","`), []byte("\",\n\""))
	return os.WriteFile(to, append(append(split, []byte("\n\n")...), v.lines.Bytes()...), 0o644)
}

// line adds a case.
func (v *verdicts) line(value any) error {
	text, err := json.Marshal(value)
	v.lines.Write(append(text, '\n'))
	return err
}

// judgement holds what is needed to judge changes of one base.
type judgement struct {
	info  *request.RequestInfo
	store *genericregistry.Store
}

func (v *verdicts) judge(at int, b base, stores map[schema.GroupResource]*genericregistry.Store) error {
	var tree map[string]any
	if err := json.Unmarshal(b.Object, &tree); err != nil {
		return err
	}
	gv, err := schema.ParseGroupVersion(tree["apiVersion"].(string))
	if err != nil {
		return err
	}
	resource := b.Resource
	if b.Subresource != "" {
		resource += "/" + b.Subresource
	}
	store := stores[schema.GroupResource{Group: gv.Group, Resource: resource}]
	if store == nil {
		return fmt.Errorf("no registry for %s", resource)
	}
	j := judgement{store: store, info: &request.RequestInfo{IsResourceRequest: true, APIGroup: gv.Group, APIVersion: gv.Version,
		Resource: b.Resource, Subresource: b.Subresource}}
	create, update, err := j.ask(tree, tree, b.Subresource != "")
	if err != nil {
		return err
	}
	if len(create)+len(update) != 0 {
		return fmt.Errorf("the base itself is refused: %v %v", create, update)
	}
	place := "/spec"
	if b.Subresource == "status" {
		place = "/status"
	}
	for _, change := range changes(tree, "") {
		if b.Subresource != "" && !strings.HasPrefix(change.path, place+"/") {
			continue
		}
		changed := runtime.DeepCopyJSON(tree)
		put(changed, strings.Split(change.path, "/")[1:], change.value, change.remove)
		create, update, err := j.ask(tree, changed, b.Subresource != "")
		if err != nil {
			continue // refused before it is looked at
		}
		line := verdict{Base: at, Path: change.path, Create: v.numbers(create), Update: v.numbers(update)}
		if !change.remove {
			if line.Value, err = json.Marshal(change.value); err != nil {
				return err
			}
		}
		if err := v.line(line); err != nil {
			return err
		}
	}
	return nil
}

func (v *verdicts) numbers(causes []metav1.StatusCause) []int {
	var out []int
	for _, cause := range causes {
		out = append(out, v.numbered([]string{cause.Field, string(cause.Type), cause.Message})...)
	}
	return out
}

// numbered gives each text its number.
func (v *verdicts) numbered(texts []string) []int {
	var out []int
	for _, text := range texts {
		number, ok := v.texts[text]
		if !ok {
			number = len(v.order)
			v.texts[text] = number
			v.order = append(v.order, text)
		}
		out = append(out, number)
	}
	return out
}

// ask creates the changed object and puts it in place of the old one, as far as the registry's checks.
func (j judgement) ask(old, changed map[string]any, onlyUpdate bool) (create, update []metav1.StatusCause, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause) // a real server answers 500 then
		}
	}()
	namespace := ""
	if j.store.UpdateStrategy.NamespaceScoped() {
		namespace = "ns"
	}
	// Policies ask whether the user may read their parameters; the first group of all may.
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	ctx := request.WithUser(request.WithRequestInfo(request.WithNamespace(context.Background(), namespace), j.info), admin)
	fresh := func(tree map[string]any, version string) (runtime.Object, error) {
		text, err := json.Marshal(tree)
		if err != nil {
			return nil, err
		}
		codecs := legacyscheme.Codecs
		if j.info.APIGroup == apiregistration.GroupName {
			codecs = aggregatorscheme.Codecs
		}
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
	if !onlyUpdate {
		object, err := fresh(changed, "")
		if err != nil {
			return nil, nil, err
		}
		if create, err = causesOf(j.create(ctx, object)); err != nil {
			return nil, nil, err
		}
	}
	before, err := fresh(old, "1")
	if err != nil {
		return nil, nil, err
	}
	after, err := fresh(changed, "1")
	if err != nil {
		return nil, nil, err
	}
	update, err = causesOf(j.update(ctx, after, before))
	return create, update, err
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

// steady sorts causes that stand next to each other and are about entries of one map of capacities, which upstream goes
// through in no order.
func steady(causes []metav1.StatusCause) []metav1.StatusCause {
	place := func(cause metav1.StatusCause) (of, key string) {
		of, rest, _ := strings.Cut(cause.Field, ".capacity[")
		key, _, found := strings.Cut(rest, "]")
		if !found {
			return "", ""
		}
		return of, key
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

// change is one change of one place.
type change struct {
	path   string
	value  any
	remove bool
}

// escaper makes steps of JSON pointers.
var escaper, unescaper = strings.NewReplacer("~", "~0", "/", "~1"), strings.NewReplacer("~1", "/", "~0", "~")

// changes lists the changes of a tree, in order of their places.
func changes(tree any, path string) []change {
	var out []change
	switch tree := tree.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(tree)) {
			at := path + "/" + escaper.Replace(key)
			if skipped(at) {
				continue
			}
			out = append(out, change{path: at, remove: true})
			out = append(out, others(tree[key], at)...)
			out = append(out, changes(tree[key], at)...)
		}
	case []any:
		for i, element := range tree {
			at := path + "/" + strconv.Itoa(i)
			out = append(out, others(element, at)...)
			out = append(out, changes(element, at)...)
		}
	}
	return out
}

// skipped are the places that say what an object is.
func skipped(path string) bool {
	switch path {
	case "/apiVersion", "/kind", "/metadata/uid", "/metadata/namespace", "/metadata/creationTimestamp", "/metadata/name":
		return true
	}
	return false
}

// others lists what can stand in place of a value.
func others(value any, path string) []change {
	var instead []any
	switch value := value.(type) {
	case string:
		instead = []any{"", "Bad Value!", "other"}
		if strings.ContainsAny(value, "/.") {
			instead = append(instead, "/a/../b")
		}
	case float64:
		instead = []any{-1, 0, 70000}
	case bool:
		instead = []any{!value}
	case []any:
		instead = []any{[]any{}}
		if len(value) > 0 {
			instead = append(instead, append(slices.Clone(value), value[0]))
		}
	case map[string]any:
		instead = []any{map[string]any{}}
	}
	var out []change
	for _, value := range instead {
		out = append(out, change{path: path, value: value})
	}
	return out
}

// put changes one place of a tree.
func put(tree any, path []string, value any, remove bool) {
	switch tree := tree.(type) {
	case map[string]any:
		key := unescaper.Replace(path[0])
		switch {
		case len(path) > 1:
			put(tree[key], path[1:], value, remove)
		case remove:
			delete(tree, key)
		default:
			tree[key] = normal(value)
		}
	case []any:
		at, err := strconv.Atoi(path[0])
		if err != nil {
			return
		}
		if len(path) > 1 {
			put(tree[at], path[1:], value, remove)
		} else {
			tree[at] = normal(value)
		}
	}
}

// normal gives numbers the type that JSON trees have.
func normal(value any) any {
	if number, ok := value.(int); ok {
		return int64(number)
	}
	return value
}
