package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
)

// Times in bases are moved so far back that ages do not change from day to day.
const timeOfBases, longAgo = "2026-11-21T00:00:00", "2000-01-01T00:00:00"

// record is what the real server makes of a base with one place changed: numbers of texts. Changes that make no difference
// to what is made of the base itself, whose path is empty, are left out.
type record struct {
	Base  int             `json:"b"`
	Path  string          `json:"p"`
	Value json.RawMessage `json:"v,omitempty"`
	Made  []int           `json:"m,omitempty"`
}

// writeRecords asks `make` about every base and every change of it.
func writeRecords(from, to string, make func(map[string]any) ([]string, error)) error {
	bases, err := readBases(from)
	if err != nil {
		return err
	}
	out := &verdicts{texts: map[string]int{}}
	for i, b := range bases {
		b.Object = bytes.ReplaceAll(b.Object, []byte(timeOfBases), []byte(longAgo))
		if err := out.record(i, b, make); err != nil {
			return fmt.Errorf("base %d (%s): %w", i, b.Resource, err)
		}
	}
	return out.write(to)
}

// isNow tells whether the present time was filled in.
func isNow(text string) bool { return strings.Contains(text, "/timeAdded=") }

var errNotMade = errors.New("nothing is made of objects of this kind")

func (v *verdicts) record(at int, b base, make func(map[string]any) ([]string, error)) error {
	var tree map[string]any
	if err := json.Unmarshal(b.Object, &tree); err != nil {
		return err
	}
	own, err := make(tree)
	if errors.Is(err, errNotMade) {
		return nil
	} else if err != nil {
		return err
	}
	if err := v.line(record{Base: at, Made: v.numbered(own)}); err != nil {
		return err
	}
	for _, change := range b.changes(tree) {
		changed := runtime.DeepCopyJSON(tree)
		put(changed, strings.Split(change.path, "/")[1:], change.value, change.remove)
		made, err := make(changed)
		if err != nil || slices.Equal(made, own) || slices.ContainsFunc(made, isNow) {
			continue
		}
		line := record{Base: at, Path: change.path, Made: v.numbered(made)}
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

// codecsOf gives the codecs and the scheme that know a group.
func codecsOf(group string) (serializer.CodecFactory, *runtime.Scheme) {
	switch group {
	case "apiregistration.k8s.io":
		return aggregatorscheme.Codecs, aggregatorscheme.Scheme
	case "apiextensions.k8s.io":
		return apiextensionsserver.Codecs, apiextensionsserver.Scheme
	default:
		return legacyscheme.Codecs, legacyscheme.Scheme
	}
}

// decoded reads an object as a request's body is read: defaulted, in the internal form.
func decoded(tree map[string]any) (internal, plain runtime.Object, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause) // a real server answers 500 then
		}
	}()
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, nil, err
	}
	gv, err := schema.ParseGroupVersion(tree["apiVersion"].(string))
	if err != nil {
		return nil, nil, err
	}
	codecs, _ := codecsOf(gv.Group)
	if plain, _, err = codecs.UniversalDeserializer().Decode(text, nil, nil); err != nil {
		return nil, nil, err
	}
	internal, _, err = codecs.UniversalDecoder().Decode(text, nil, nil)
	return internal, plain, err
}

// defaulted lists what is filled into an object when it is read: places and values.
func defaulted(tree map[string]any) ([]string, error) {
	internal, plain, err := decoded(tree)
	if err != nil {
		return nil, err
	}
	gvk := plain.GetObjectKind().GroupVersionKind()
	_, scheme := codecsOf(gvk.Group)
	after, err := scheme.ConvertToVersion(internal, gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	var trees [2]any
	for i, object := range []runtime.Object{plain, after} {
		text, err := json.Marshal(object)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &trees[i]); err != nil {
			return nil, err
		}
	}
	return filled(trees[0], trees[1], "")
}

// filled lists what differs between two trees, with the later value.
func filled(before, after any, path string) ([]string, error) {
	var out []string
	switch after := after.(type) {
	case map[string]any:
		if before, ok := before.(map[string]any); ok {
			for _, key := range slices.Sorted(maps.Keys(after)) {
				more, err := filled(before[key], after[key], path+"/"+escaper.Replace(key))
				if err != nil {
					return nil, err
				}
				out = append(out, more...)
			}
			for _, key := range slices.Sorted(maps.Keys(before)) {
				if _, ok := after[key]; !ok {
					out = append(out, path+"/"+escaper.Replace(key)+"=")
				}
			}
			return out, nil
		}
	case []any:
		if before, ok := before.([]any); ok && len(before) == len(after) {
			for i := range after {
				more, err := filled(before[i], after[i], path+"/"+strconv.Itoa(i))
				if err != nil {
					return nil, err
				}
				out = append(out, more...)
			}
			return out, nil
		}
	}
	if reflect.DeepEqual(before, after) {
		return nil, nil
	}
	text, err := json.Marshal(after)
	return []string{path + "=" + string(text)}, err
}

var tables = printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)}

// row gives the cells of an object in a table.
func row(tree map[string]any) (out []string, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause) // a real server answers 500 then
		}
	}()
	internal, _, err := decoded(tree)
	if err != nil {
		return nil, err
	}
	switch reflect.TypeOf(internal).Elem().Name() {
	case "APIService", "CSIStorageCapacity":
		return nil, errNotMade // their registries do not ask the printers
	}
	table, err := tables.ConvertToTable(context.Background(), internal, &metav1.TableOptions{NoHeaders: true})
	if err != nil {
		return nil, errNotMade
	}
	for _, cell := range table.Rows[0].Cells {
		text, err := json.Marshal(cell)
		if err != nil {
			return nil, err
		}
		out = append(out, string(text))
	}
	return out, nil
}
