package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"reflect"
	"slices"
	"strings"

	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// trials is how often a default has to hold with random values around it before it counts as unconditional.
const trials = 200

// step leads from a struct to one of its fields, through a pointer or the first element of a list. Maps are not entered:
// of the maps of structs one has defaults below it (`nodeAllocatableResourceMappings`), and those stand in the code.
type step struct {
	field int
	name  string
}

// place is a struct within an object of some kind.
type place struct {
	kind  schema.GroupVersionKind
	root  reflect.Type
	steps []step
	at    reflect.Type
}

func (p place) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s/%s %s ", p.kind.Group, p.kind.Version, p.kind.Kind)
	for _, step := range p.steps {
		if step.name != "" {
			out.WriteString("." + step.name)
		}
	}
	return out.String()
}

// prober learns defaults by running the real defaulting functions.
type prober struct {
	table  *table
	random *rand.Rand
	// seen counts the places of each type; found and always count, by type, field and value, those with a default.
	seen   map[string]int
	always map[string]map[string]map[string]int
	// placed lists where, under the same keys; for defaults that only some places of a type have.
	placed map[[3]string][]place
	report map[string][]string
}

func (t *table) addDefaults(types *runtime.Scheme, report bool) error {
	p := &prober{table: t, random: rand.New(rand.NewSource(1)), seen: map[string]int{},
		always: map[string]map[string]map[string]int{}, placed: map[[3]string][]place{}, report: map[string][]string{}}
	for _, object := range t.Objects {
		kind := schema.GroupVersionKind{Group: object.Group, Version: object.Version, Kind: object.Kind}
		if object.Group == "meta.k8s.io" || strings.HasSuffix(object.Kind, "List") || !types.Recognizes(kind) {
			continue
		}
		value, err := types.New(kind)
		if err != nil {
			return err
		}
		root := reflect.TypeOf(value).Elem()
		if err := p.walk(place{kind: kind, root: root, at: root}, map[reflect.Type]bool{}); err != nil {
			return err
		}
	}
	return p.settle(report)
}

// walk probes a place and those below it. A type is not entered twice on one way down.
func (p *prober) walk(here place, above map[reflect.Type]bool) error {
	if _, special := specials[goPath(here.at)]; special || above[here.at] {
		return nil
	}
	above[here.at] = true
	defer delete(above, here.at)
	if err := p.probe(here); err != nil {
		return fmt.Errorf("%v: %w", here, err)
	}
	for i := range here.at.NumField() {
		field := here.at.Field(i)
		inner := field.Type
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if inner.Kind() != reflect.Struct || field.Name == "ObjectMeta" || field.Name == "TypeMeta" {
			continue
		}
		below := here
		below.at = inner
		below.steps = append(slices.Clone(here.steps), step{i, jsonName(field)})
		if err := p.walk(below, above); err != nil {
			return err
		}
	}
	return nil
}

// probe looks which fields of the struct at a place are filled in: first alone, then with random values around it.
func (p *prober) probe(here place) error {
	name := definitionName(here.at)
	p.seen[name]++
	root := reflect.New(here.root)
	descend(root.Elem(), here.steps)
	alone, err := p.filled(here, root)
	if err != nil {
		return err
	}
	for range trials {
		if len(alone) == 0 {
			return nil
		}
		root := reflect.New(here.root)
		p.surround(root.Elem(), here.steps)
		target := descend(root.Elem(), here.steps)
		tested := map[string]bool{}
		for i := range here.at.NumField() {
			field := jsonName(here.at.Field(i))
			if _, ok := alone[field]; ok && p.random.Intn(2) == 0 {
				target.Field(i).SetZero()
				tested[field] = true
			}
		}
		after, err := p.filled(here, root)
		if err != nil {
			return err
		}
		for field := range tested {
			if after[field] != alone[field] {
				p.note(name, field, fmt.Sprintf("%s when alone, else also %s, at %v", alone[field], after[field], here))
				delete(alone, field)
			}
		}
	}
	for field, value := range alone {
		values := entry(entry(p.always, name), field)
		values[value]++
		key := [3]string{name, field, value}
		p.placed[key] = append(p.placed[key], here)
	}
	return nil
}

// filled runs the defaulting and answers, by JSON name, the fields of the place which it filled.
func (p *prober) filled(here place, root reflect.Value) (map[string]string, error) {
	before := reflect.New(here.at).Elem()
	before.Set(descend(root.Elem(), here.steps))
	object := root.Interface().(runtime.Object)
	switch here.kind.Group {
	case "apiextensions.k8s.io":
		apiextensionsserver.Scheme.Default(object)
	case "apiregistration.k8s.io":
		aggregatorscheme.Scheme.Default(object)
	default:
		legacyscheme.Scheme.Default(object)
	}
	after := descend(root.Elem(), here.steps)
	out := map[string]string{}
	for i := range here.at.NumField() {
		field := here.at.Field(i)
		if jsonName(field) == "" || !before.Field(i).IsZero() || after.Field(i).IsZero() {
			continue
		}
		if field.Type.Kind() == reflect.Struct && specials[goPath(field.Type)] == "" {
			continue // filled by the defaults of its own fields
		}
		if field.Type.Kind() == reflect.Map && after.Field(i).Len() == 0 {
			continue // an empty map does not show
		}
		if _, isTime := after.Field(i).Interface().(*metav1.Time); isTime {
			continue // the present time
		}
		text, err := json.Marshal(after.Field(i).Interface())
		if err != nil {
			return nil, err
		}
		out[jsonName(field)] = string(text)
	}
	return out, nil
}

// settle enters the defaults that hold wherever their type occurs.
func (p *prober) settle(report bool) error {
	for _, name := range slices.Sorted(maps.Keys(p.always)) {
		for field, values := range p.always[name] {
			for value, count := range values {
				if count != p.seen[name] {
					p.note(name, field, fmt.Sprintf("%s at %d of %d places", value, count, p.seen[name]))
					for _, place := range p.placed[[3]string{name, field, value}] {
						if err := p.table.addPlaced(place, field, value); err != nil {
							return err
						}
					}
					continue
				}
				into := p.table.Types[name].field(field)
				if into == nil {
					return fmt.Errorf("%s.%s has a default but is not in the table", name, field)
				}
				if err := json.Unmarshal([]byte(value), &into.Default); err != nil {
					return err
				}
			}
		}
	}
	if report {
		for _, key := range slices.Sorted(maps.Keys(p.report)) {
			fmt.Fprintf(os.Stderr, "%s: %s (and %d more)\n", key, p.report[key][0], len(p.report[key])-1)
		}
	}
	return nil
}

// addPlaced enters a default of one kind's own.
func (t *table) addPlaced(at place, field, value string) error {
	entry := placedEntry{}
	for _, step := range at.steps {
		if step.name != "" {
			entry.Path = append(entry.Path, step.name)
		}
	}
	entry.Path = append(entry.Path, field)
	if err := json.Unmarshal([]byte(value), &entry.Value); err != nil {
		return err
	}
	for _, kind := range t.Kinds {
		if kind.Group == at.kind.Group && kind.Version == at.kind.Version && kind.Kind == at.kind.Kind {
			kind.Defaults = append(kind.Defaults, entry)
			slices.SortFunc(kind.Defaults, func(a, b placedEntry) int { return slices.Compare(a.Path, b.Path) })
		}
	}
	return nil
}

func (p *prober) note(name, field, text string) {
	p.report[name+"."+field] = append(p.report[name+"."+field], text)
}

func (e *typeEntry) field(name string) *fieldEntry {
	for _, field := range e.Fields {
		if field.Name == name {
			return field
		}
	}
	return nil
}

// descend follows the steps, making what is not there.
func descend(value reflect.Value, steps []step) reflect.Value {
	for _, step := range steps {
		value = value.Field(step.field)
		for value.Kind() != reflect.Struct {
			switch value.Kind() {
			case reflect.Pointer:
				if value.IsNil() {
					value.Set(reflect.New(value.Type().Elem()))
				}
				value = value.Elem()
			case reflect.Slice:
				if value.Len() == 0 {
					value.Set(reflect.MakeSlice(value.Type(), 1, 1))
				}
				value = value.Index(0)
			}
		}
	}
	return value
}

func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

func entry[V any](of map[string]map[string]V, key string) map[string]V {
	if of[key] == nil {
		of[key] = map[string]V{}
	}
	return of[key]
}
