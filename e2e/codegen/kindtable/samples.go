package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"reflect"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// rounds is how many objects of each kind are tried.
const rounds = 600

// sample is an object in both forms, made by the real types.
type sample struct {
	JSON     json.RawMessage `json:"json"`
	Protobuf string          `json:"protobuf"`
}

// writeSamples writes objects that together hold every field of every type with a value, one per line.
func writeSamples(path string, t *table) error {
	types, err := versionedScheme()
	if err != nil {
		return err
	}
	metav1.AddToGroupVersion(types, schema.GroupVersion{Version: "v1"})
	s := sampler{table: t, random: rand.New(rand.NewSource(7)), covered: map[string]int{}}
	codec := protobuf.NewSerializer(types, types)
	var kept []keptSample
	for _, object := range t.Objects {
		kind := schema.GroupVersionKind{Group: object.Group, Version: object.Version, Kind: object.Kind}
		if object.Kind == "WatchEvent" {
			continue // a frame, not an enveloped object
		}
		if object.Group == "meta.k8s.io" {
			kind.Group = "" // known in every group
		}
		value, err := types.New(kind)
		if err != nil {
			continue
		}
		if _, ok := value.(interface{ Marshal() ([]byte, error) }); !ok {
			continue
		}
		for round := range rounds {
			filled := s.object(reflect.TypeOf(value).Elem())
			fields := s.fields(reflect.ValueOf(filled).Elem())
			if found := s.cover(fields); found == 0 || round < rounds/2 && found < 8 {
				s.uncover(fields)
				continue
			}
			line, err := encodeSample(codec, filled.(runtime.Object), kind)
			if err != nil {
				return fmt.Errorf("%v: %w", kind, err)
			}
			kept = append(kept, keptSample{line, fields})
		}
	}
	return os.WriteFile(path, s.prune(kept), 0o644)
}

// keptSample is a line and the fields which have a value in it.
type keptSample struct {
	line   []byte
	fields []string
}

// prune leaves out the samples whose every field has a value in another one, the longest first.
func (s *sampler) prune(kept []keptSample) []byte {
	longest := make([]int, len(kept))
	for i := range kept {
		longest[i] = i
	}
	slices.SortStableFunc(longest, func(a, b int) int { return len(kept[b].line) - len(kept[a].line) })
	for _, i := range longest {
		if slices.ContainsFunc(kept[i].fields, func(field string) bool { return s.covered[field] == 1 }) {
			continue
		}
		s.uncover(kept[i].fields)
		kept[i].line = nil
	}
	var out bytes.Buffer
	for _, sample := range kept {
		out.Write(sample.line)
	}
	return out.Bytes()
}

// encodeSample goes through protobuf once, so that both forms agree on what is empty and what is absent.
func encodeSample(codec *protobuf.Serializer, object runtime.Object, kind schema.GroupVersionKind) ([]byte, error) {
	var first, second bytes.Buffer
	object.GetObjectKind().SetGroupVersionKind(kind)
	if err := codec.Encode(object, &first); err != nil {
		return nil, err
	}
	decoded, _, err := codec.Decode(first.Bytes(), nil, nil)
	if err != nil {
		return nil, err
	}
	decoded.GetObjectKind().SetGroupVersionKind(kind)
	if err := codec.Encode(decoded, &second); err != nil {
		return nil, err
	}
	text, err := json.Marshal(decoded)
	if err != nil {
		return nil, err
	}
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	err = enc.Encode(sample{text, base64.StdEncoding.EncodeToString(second.Bytes())})
	return line.Bytes(), err
}

type sampler struct {
	table   *table
	random  *rand.Rand
	covered map[string]int
}

func (s *sampler) object(t reflect.Type) any {
	value := reflect.New(t)
	s.fill(value.Elem(), 0)
	return value.Interface()
}

// fields lists the fields with a value in an object.
func (s *sampler) fields(value reflect.Value) []string {
	seen := map[string]bool{}
	s.visit(value, func(field string) { seen[field] = true })
	return slices.Sorted(maps.Keys(seen))
}

// cover counts the fields, and answers how many had no value in any sample before.
func (s *sampler) cover(fields []string) int {
	found := 0
	for _, field := range fields {
		if s.covered[field]++; s.covered[field] == 1 {
			found++
		}
	}
	return found
}

func (s *sampler) uncover(fields []string) {
	for _, field := range fields {
		s.covered[field]--
	}
}

func (s *sampler) visit(value reflect.Value, found func(string)) {
	switch value.Kind() {
	case reflect.Pointer:
		if !value.IsNil() {
			s.visit(value.Elem(), found)
		}
	case reflect.Slice:
		for i := range value.Len() {
			s.visit(value.Index(i), found)
		}
	case reflect.Map:
		for _, key := range value.MapKeys() {
			s.visit(value.MapIndex(key), found)
		}
	case reflect.Struct:
		if _, special := specials[goPath(value.Type())]; special {
			return
		}
		for i := range value.NumField() {
			field := value.Type().Field(i)
			if field.IsExported() && !value.Field(i).IsZero() && jsonName(field) != "" {
				found(goPath(value.Type()) + "." + field.Name)
				s.visit(value.Field(i), found)
			} else if field.Anonymous {
				s.visit(value.Field(i), found)
			}
		}
	}
}

// fill sets a value at random. The deeper, the less is set.
func (s *sampler) fill(value reflect.Value, depth int) {
	r := s.random
	if depth > 12 {
		return
	}
	switch target := value.Addr().Interface().(type) {
	case *metav1.Time:
		if r.Intn(4) > 0 {
			*target = metav1.NewTime(time.Unix(r.Int63n(1<<32), 0).UTC())
		}
		return
	case *metav1.MicroTime:
		if r.Intn(4) > 0 {
			*target = metav1.NewMicroTime(time.Unix(r.Int63n(1<<32), r.Int63n(1e6)*1000).UTC())
		}
		return
	case *resource.Quantity:
		*target = resource.MustParse([]string{"0", "1", "100m", "1Gi", "5e3", "-3"}[r.Intn(6)])
		return
	case *intstr.IntOrString:
		*target = []intstr.IntOrString{intstr.FromInt32(0), intstr.FromInt32(-7), intstr.FromString("25%")}[r.Intn(3)]
		return
	case *metav1.FieldsV1:
		target.Raw = []byte(`{"f:metadata":{".":{}}}`)
		return
	case *runtime.RawExtension:
		target.Raw = []byte(`{"a":[1,"ä",null],"b":1.5}`)
		return
	case *apiextensionsv1.JSON:
		target.Raw = []byte([]string{`{"a":1}`, `"x"`, `[true]`, `0`}[r.Intn(4)])
		return
	case *apiextensionsv1.JSONSchemaPropsOrBool:
		if target.Allows = r.Intn(2) == 0; target.Allows {
			s.fillPointer(reflect.ValueOf(&target.Schema).Elem(), depth+3)
		}
		return
	case *metav1.TypeMeta:
		return
	}
	switch value.Kind() {
	case reflect.String:
		value.SetString([]string{"", "a", "Kö<&>", "name-1", "v1"}[r.Intn(5)])
	case reflect.Bool:
		value.SetBool(r.Intn(2) == 0)
	case reflect.Int32, reflect.Int64:
		value.SetInt([]int64{0, 1, -1, 8080, 1<<31 - 1}[r.Intn(5)])
	case reflect.Float64:
		value.SetFloat([]float64{0, 1, -2.5, 1e100}[r.Intn(4)])
	case reflect.Pointer:
		s.fillPointer(value, depth)
	case reflect.Slice:
		s.fillSlice(value, depth)
	case reflect.Map:
		if s.set(depth) {
			value.Set(reflect.MakeMap(value.Type()))
			for range 1 + r.Intn(2) {
				key, element := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
				key.SetString([]string{"a", "example.com/b"}[r.Intn(2)])
				s.fill(element, depth+1)
				value.SetMapIndex(key, element)
			}
		}
	case reflect.Struct:
		for i := range value.NumField() {
			s.fill(value.Field(i), depth+1)
		}
	}
}

func (s *sampler) fillPointer(value reflect.Value, depth int) {
	if s.set(depth) {
		value.Set(reflect.New(value.Type().Elem()))
		s.fill(value.Elem(), depth)
		if text, err := json.Marshal(value.Interface()); err != nil || string(text) == "null" {
			value.SetZero() // JSON cannot tell a pointer to nothing from none
		}
	}
}

func (s *sampler) fillSlice(value reflect.Value, depth int) {
	if !s.set(depth) {
		return
	}
	if value.Type().Elem().Kind() == reflect.Uint8 {
		value.SetBytes([]byte{0, 255, 'x'})
		return
	}
	length := 1 + s.random.Intn(2)
	value.Set(reflect.MakeSlice(value.Type(), length, length))
	for i := range length {
		s.fill(value.Index(i), depth+1)
	}
}

// set decides whether something that may be absent is set.
func (s *sampler) set(depth int) bool { return s.random.Intn(4+depth*2) < 3 }
