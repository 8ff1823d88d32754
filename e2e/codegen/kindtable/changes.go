package main

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// change is one change of one place.
type change struct {
	path   string
	value  any
	remove bool
	// whole is set where more than one value is taken out.
	whole bool
}

// changes lists the changes of a base, of which `tree` is the object.
func (b base) changes(tree map[string]any) []change {
	if b.Refused {
		return nil
	}
	all := changes(tree, "")
	if b.Brief == "" {
		return all
	}
	var out []change
	for _, change := range all {
		if strings.HasPrefix(change.path, b.Brief) && isTelling(change) && (len(out) == 0 || out[len(out)-1].path != change.path) {
			out = append(out, change)
		}
	}
	return out
}

// isTelling tells whether a change is one to keep of all those of its place: what holds others is taken out, and values
// that mean something become such as mean nothing.
func isTelling(change change) bool {
	switch change.value {
	case nil, "Bad Value!", -1, true, false:
		return !change.remove || change.whole
	}
	return false
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
			out = append(out, change{path: at, remove: true, whole: isWhole(tree[key])})
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

// isWhole tells whether a value holds others.
func isWhole(value any) bool {
	switch value.(type) {
	case map[string]any, []any:
		return true
	}
	return false
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
