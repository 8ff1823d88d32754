package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
)

// addOpenAPI merges what only the OpenAPI definitions say into the reflected types.
func (t *table) addOpenAPI() error {
	definitions := generated.GetOpenAPIDefinitions(func(path string) spec.Ref { return spec.MustCreateRef(path) })
	for name, entry := range t.Types {
		definition, ok := definitions[name]
		if !ok {
			return fmt.Errorf("%s has no OpenAPI definition", name)
		}
		if err := t.addOpenAPIOf(entry, definition); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (t *table) addOpenAPIOf(e *typeEntry, definition common.OpenAPIDefinition) error {
	e.Map = extension(definition.Schema, "x-kubernetes-map-type")
	e.Unions = definition.Schema.Extensions["x-kubernetes-unions"]
	if e.Special != "" {
		return nil
	}
	for _, field := range e.Fields {
		if strings.Contains(field.Flags, "i") {
			continue
		}
		property, ok := definition.Schema.Properties[field.Name]
		if !ok {
			return fmt.Errorf("%s is not in the OpenAPI definition", field.Name)
		}
		if slices.Contains(definition.Schema.Required, field.Name) {
			field.Flags += "r"
		}
		if err := t.addProperty(field, property); err != nil {
			return fmt.Errorf("%s: %w", field.Name, err)
		}
	}
	return nil
}

func (t *table) addProperty(f *fieldEntry, property spec.Schema) error {
	f.List, f.Map = extension(property, "x-kubernetes-list-type"), extension(property, "x-kubernetes-map-type")
	if keys, ok := property.Extensions["x-kubernetes-list-map-keys"].([]interface{}); ok {
		for _, key := range keys {
			f.Keys = append(f.Keys, key.(string))
		}
	}
	if patch := extension(property, "x-kubernetes-patch-strategy"); patch != f.Patch {
		return fmt.Errorf("patch strategy %q in OpenAPI, %q in the tag", patch, f.Patch)
	}
	if key := extension(property, "x-kubernetes-patch-merge-key"); key != f.MergeKey {
		return fmt.Errorf("merge key %q in OpenAPI, %q in the tag", key, f.MergeKey)
	}
	if property.Ref.String() != "" && reflect.DeepEqual(property, spec.Schema{SchemaProps: spec.SchemaProps{Ref: property.Ref}}) {
		f.Flags += "b"
	}
	leaf := property
	switch {
	case property.Items != nil:
		leaf = *property.Items.Schema
	case property.AdditionalProperties != nil:
		leaf = *property.AdditionalProperties.Schema
	}
	for _, value := range leaf.Enum {
		f.Enum = append(f.Enum, value.(string))
	}
	f.Format = unexpectedFormat(f.Type, leaf.Format)
	return t.declare(f, property.Default)
}

// declare keeps a default unless it follows from the Go type.
func (t *table) declare(f *fieldEntry, value any) error {
	trivial := t.trivialDefault(f)
	if value == nil {
		if trivial != nil {
			return fmt.Errorf("expected the trivial default %v", trivial)
		}
		return nil
	}
	// One spelling for int and float64.
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}
	if !reflect.DeepEqual(value, trivial) {
		f.Declared = value
	}
	return nil
}

// trivialDefault is what the OpenAPI generator states for a field because of its Go type alone.
func (t *table) trivialDefault(f *fieldEntry) any {
	if strings.ContainsAny(f.Flags, "p") {
		return nil
	}
	switch f.Type {
	case "string", "bool", "int32", "int64", "uint32", "uint64", "double":
		if strings.ContainsAny(f.Flags, "oz") {
			return nil
		}
		return zero(f.Type)
	}
	if entry, ok := t.Types[f.Type]; ok && entry.Special == "" {
		return map[string]any{}
	}
	return nil
}

func zero(wire string) any {
	switch wire {
	case "string":
		return ""
	case "bool":
		return false
	default:
		return float64(0)
	}
}

// unexpectedFormat answers the format unless it follows from the type.
func unexpectedFormat(wire, format string) string {
	expected := map[string]string{"int32": "int32", "int64": "int64", "double": "double", "bytes": "byte", "uint32": "int64", "uint64": "int64"}
	if expected[strings.TrimLeft(wire, "[]{}")] == format {
		return ""
	}
	return format
}

func extension(schema spec.Schema, name string) string {
	value, _ := schema.Extensions.GetString(name)
	return value
}
