package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
)

// table is the whole output. Its JSON form has one line per type, per object and per kind.
type table struct {
	Version string
	Types   map[string]*typeEntry
	Objects []objectEntry
	Kinds   []*kindEntry
}

// typeEntry is a message, or a special leaf when Special is set.
type typeEntry struct {
	// Special names a type with a wire form of its own.
	Special string `json:"special,omitempty"`
	// Map is `atomic` for types which server-side apply treats as one value.
	Map string `json:"map,omitempty"`
	// Unions say which of its fields exclude each other.
	Unions any `json:"unions,omitempty"`
	// Fields are sorted by protobuf number; fields which are not on the protobuf wire (number 0) come first.
	Fields []*fieldEntry `json:"fields,omitempty"`
}

// fieldEntry is a field of a message.
type fieldEntry struct {
	Name string `json:"name"`
	// ID is the protobuf number, 0 when the field is not part of the protobuf message.
	ID int `json:"id"`
	// Type is a scalar, a special, or a definition name; `[]` before it is a list, `{}` a map with string keys.
	Type string `json:"type"`
	// Go is what Go calls the type, where that does not follow from Type.
	Go string `json:"go,omitempty"`
	// Flags: p pointer, o omitempty, z omitzero, i inline, r required, b a reference to its type and nothing else in OpenAPI.
	Flags string `json:"flags,omitempty"`
	// List is `atomic`, `set` or `map`; Keys are the keys of a `map` list.
	List string   `json:"list,omitempty"`
	Keys []string `json:"keys,omitempty"`
	// Map is `atomic` or `granular` where the field says it.
	Map string `json:"map,omitempty"`
	// Patch and MergeKey are the struct tags of strategic merge patch.
	Patch    string `json:"patch,omitempty"`
	MergeKey string `json:"mergeKey,omitempty"`
	// Declared is the default which the OpenAPI document states, apart from the trivial ones ("" 0 false {}) that follow from
	// the Go type.
	Declared any `json:"declared,omitempty"`
	// Default is what the server fills in whenever the parent is present, whatever its other fields say.
	Default any      `json:"default,omitempty"`
	Enum    []string `json:"enum,omitempty"`
	Format  string   `json:"format,omitempty"`
}

// objectEntry names the type of anything that can stand in a body on its own.
type objectEntry struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
	Type    string `json:"type"`
}

// kindEntry is a resource in one version.
type kindEntry struct {
	Group        string             `json:"group"`
	Version      string             `json:"version"`
	Kind         string             `json:"kind"`
	Type         string             `json:"type"`
	List         string             `json:"list,omitempty"`
	Resource     string             `json:"resource"`
	Singular     string             `json:"singular"`
	ShortNames   []string           `json:"shortNames,omitempty"`
	Categories   []string           `json:"categories,omitempty"`
	Namespaced   bool               `json:"namespaced"`
	Served       bool               `json:"served"`
	Verbs        []string           `json:"verbs"`
	Subresources []subresourceEntry `json:"subresources,omitempty"`
	// Generation tells that the server keeps metadata.generation.
	Generation          bool `json:"generation"`
	UnconditionalUpdate bool `json:"unconditionalUpdate"`
	CreateOnUpdate      bool `json:"createOnUpdate"`
	// Storage is the resource as which objects are stored, where it is another one.
	Storage *storageEntry `json:"storage,omitempty"`
	// Defaults are filled in like those of fields, but for this kind only.
	Defaults []placedEntry `json:"defaults,omitempty"`
}

// placedEntry is a default for a field by its path; it applies whenever the object that holds the field is present.
type placedEntry struct {
	Path  []string `json:"path"`
	Value any      `json:"value"`
}

type storageEntry struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
}

type subresourceEntry struct {
	Name    string   `json:"name"`
	Group   string   `json:"group"`
	Version string   `json:"version"`
	Kind    string   `json:"kind"`
	Verbs   []string `json:"verbs"`
}

func (t *table) render() ([]byte, error) {
	var out bytes.Buffer
	line := func(v any) ([]byte, error) {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		err := enc.Encode(v)
		return bytes.TrimSpace(b.Bytes()), err
	}
	fmt.Fprintf(&out, "{\"version\":%q,\n\"types\":{\n", t.Version)
	names := make([]string, 0, len(t.Types))
	for name := range t.Types {
		names = append(names, name)
	}
	sort.Strings(names)
	for i, name := range names {
		text, err := line(t.Types[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(&out, "%q:%s%s\n", name, text, comma(i, len(names)))
	}
	out.WriteString("},\n\"objects\":[\n")
	for i, object := range t.Objects {
		text, err := line(object)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "%s%s\n", text, comma(i, len(t.Objects)))
	}
	out.WriteString("],\n\"kinds\":[\n")
	for i, kind := range t.Kinds {
		text, err := line(kind)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "%s%s\n", text, comma(i, len(t.Kinds)))
	}
	out.WriteString("]}\n")
	return out.Bytes(), nil
}

func comma(i, n int) string {
	if i+1 < n {
		return ","
	}
	return ""
}
