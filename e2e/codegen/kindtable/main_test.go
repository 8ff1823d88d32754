package main

import (
	"bytes"
	"testing"
)

// A table is rendered as JSON with a line per entry.
func TestRenderIsOneLinePerEntry(t *testing.T) {
	text, err := (&table{
		Version: "v1",
		Types:   map[string]*typeEntry{"b": {}, "a": {Fields: []*fieldEntry{{Name: "<x>", Type: "string"}}}},
		Objects: []objectEntry{{Kind: "A", Type: "a"}},
		Kinds:   []*kindEntry{{Kind: "A", Type: "a"}},
	}).render()
	if err != nil {
		t.Fatal(err)
	}
	if lines := bytes.Count(text, []byte("\n")); lines != 11 {
		t.Errorf("%d lines:\n%s", lines, text)
	}
	if !bytes.Contains(text, []byte(`"name":"<x>"`)) {
		t.Errorf("names are escaped:\n%s", text)
	}
}
