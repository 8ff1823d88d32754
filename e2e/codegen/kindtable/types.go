package main

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	openapiutil "k8s.io/kube-openapi/pkg/util"
)

// specials are the types with a JSON form of their own, by Go path. They become leaves of the table.
var specials = map[string]string{
	"k8s.io/apimachinery/pkg/apis/meta/v1.Time":                                             "time",
	"k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime":                                        "microTime",
	"k8s.io/apimachinery/pkg/apis/meta/v1.Duration":                                         "duration",
	"k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1":                                         "fieldsV1",
	"k8s.io/apimachinery/pkg/api/resource.Quantity":                                         "quantity",
	"k8s.io/apimachinery/pkg/util/intstr.IntOrString":                                       "intOrString",
	"k8s.io/apimachinery/pkg/runtime.RawExtension":                                          "rawExtension",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSON":                         "json",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaPropsOrBool":        "schemaOrBool",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaPropsOrArray":       "schemaOrArray",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaPropsOrStringArray": "schemaOrStrings",
}

// wrappedLists are named slices of strings which are a message of their own on the protobuf wire.
var wrappedLists = map[string]bool{
	"k8s.io/apimachinery/pkg/apis/meta/v1.Verbs": true,
	"k8s.io/api/authentication/v1.ExtraValue":    true,
	"k8s.io/api/authorization/v1.ExtraValue":     true,
	"k8s.io/api/certificates/v1.ExtraValue":      true,
}

type reflector struct {
	types map[string]*typeEntry
	// goTypes are the Go types behind the entries, for merging with OpenAPI and for probing.
	goTypes map[string]reflect.Type
}

func goPath(t reflect.Type) string { return t.PkgPath() + "." + t.Name() }

// definitionName is the name that the OpenAPI document gives to a type.
func definitionName(t reflect.Type) string {
	if named, ok := reflect.New(t).Interface().(interface{ OpenAPIModelName() string }); ok {
		return named.OpenAPIModelName()
	}
	return openapiutil.ToRESTFriendlyName(goPath(t))
}

// message enters a struct type and everything reachable from it; it answers the definition name.
func (r *reflector) message(t reflect.Type) (string, error) {
	name := definitionName(t)
	if had, ok := r.goTypes[name]; ok {
		if had != t {
			return "", fmt.Errorf("%s names both %v and %v", name, had, t)
		}
		return name, nil
	}
	entry := &typeEntry{}
	r.types[name], r.goTypes[name] = entry, t
	if special, ok := specials[goPath(t)]; ok {
		entry.Special = special
		return name, r.reachable(t)
	}
	for i := range t.NumField() {
		field, err := r.field(t.Field(i))
		if err != nil {
			return "", fmt.Errorf("%s.%s: %w", name, t.Field(i).Name, err)
		}
		entry.Fields = append(entry.Fields, field...)
	}
	return name, nil
}

// reachable enters the messages behind a special type (a schema behind a union).
func (r *reflector) reachable(t reflect.Type) error {
	if !strings.HasPrefix(specials[goPath(t)], "schemaOr") {
		return nil
	}
	for i := range t.NumField() {
		inner := t.Field(i).Type
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			if _, err := r.message(inner); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *reflector) field(f reflect.StructField) ([]*fieldEntry, error) {
	tag, ok := f.Tag.Lookup("json")
	if !ok || !f.IsExported() {
		return nil, fmt.Errorf("no json tag")
	}
	parts := strings.Split(tag, ",")
	if parts[0] == "-" {
		return nil, nil
	}
	if goPath(f.Type) == "k8s.io/apimachinery/pkg/apis/meta/v1.TypeMeta" {
		return []*fieldEntry{{Name: "kind", Type: "string", Flags: "o"}, {Name: "apiVersion", Type: "string", Flags: "o"}}, nil
	}
	entry := &fieldEntry{Name: parts[0]}
	number, err := protobufNumber(f.Tag.Get("protobuf"))
	if err != nil {
		return nil, err
	}
	entry.ID = number
	t := f.Type
	if t.Kind() == reflect.Pointer {
		entry.Flags += "p"
		t = t.Elem()
	}
	for _, option := range parts[1:] {
		switch option {
		case "omitempty":
			entry.Flags += "o"
		case "omitzero":
			entry.Flags += "z"
		case "inline":
			entry.Flags += "i"
		case "":
		default:
			return nil, fmt.Errorf("json option %q", option)
		}
	}
	if f.Anonymous && parts[0] == "" && !strings.Contains(entry.Flags, "i") {
		entry.Flags += "i"
	}
	if entry.Type, err = r.wire(t); err != nil {
		return nil, err
	}
	if hasName(t) {
		entry.Go = t.String()
	}
	entry.Patch, entry.MergeKey = f.Tag.Get("patchStrategy"), f.Tag.Get("patchMergeKey")
	return []*fieldEntry{entry}, nil
}

// hasName tells whether Go calls a type that is no struct, or a part of it, by a name of its own.
func hasName(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct, reflect.Interface:
		return false
	case reflect.Slice:
		return t.Name() != "" || hasName(t.Elem())
	case reflect.Map:
		return t.Name() != "" || hasName(t.Key()) || hasName(t.Elem())
	default:
		return t.PkgPath() != ""
	}
}

func protobufNumber(tag string) (int, error) {
	if tag == "" {
		return 0, nil
	}
	parts := strings.Split(tag, ",")
	if len(parts) < 2 {
		return 0, nil // `protobuf:"-"`
	}
	return strconv.Atoi(parts[1])
}

// wire names the form of a field.
func (r *reflector) wire(t reflect.Type) (string, error) {
	if wrappedLists[goPath(t)] {
		return "strings", nil
	}
	switch t.Kind() {
	case reflect.String:
		return "string", nil
	case reflect.Bool:
		return "bool", nil
	case reflect.Int32:
		return "int32", nil
	case reflect.Int64:
		return "int64", nil
	case reflect.Uint32:
		return "uint32", nil
	case reflect.Uint64:
		return "uint64", nil
	case reflect.Float64:
		return "double", nil
	case reflect.Interface:
		return "any", nil
	case reflect.Struct:
		return r.message(t)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes", nil
		}
		return r.nested("[]", t.Elem())
	case reflect.Map:
		if t.Key().Kind() != reflect.String {
			return "", fmt.Errorf("map key %v", t.Key())
		}
		return r.nested("{}", t.Elem())
	default:
		return "", fmt.Errorf("kind %v", t.Kind())
	}
}

func (r *reflector) nested(prefix string, elem reflect.Type) (string, error) {
	inner, err := r.wire(elem)
	if err != nil {
		return "", err
	}
	if inner[0] == '[' || inner[0] == '{' {
		return "", fmt.Errorf("nested %s%s", prefix, inner)
	}
	return prefix + inner, nil
}
