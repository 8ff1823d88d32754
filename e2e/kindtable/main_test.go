package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

const machinery = "../../crates/machinery/"

// The committed files are what the generator writes, byte for byte.
func TestCommittedFilesAreCurrent(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the table from all of Kubernetes' types")
	}
	dir := t.TempDir()
	fresh := func(name string) string { return filepath.Join(dir, name) }
	err := run(files{
		table:     fresh("kinds.json"),
		samples:   fresh("protobuf.jsonl"),
		discovery: fresh("discovery.json"),
		openapi:   fresh("openapi.jsonl"),
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeInternal(fresh("internal.json")); err != nil {
		t.Fatal(err)
	}
	if err := writeVerdicts(machinery+"testdata/bases.jsonl", fresh("verdicts.txt")); err != nil {
		t.Fatal(err)
	}
	if err := writeCustomOpenAPI(machinery+"testdata/definitions.jsonl", fresh("custom_openapi.jsonl")); err != nil {
		t.Fatal(err)
	}
	for name, committed := range map[string]string{
		"internal.json":  machinery + "data/internal.json",
		"verdicts.txt":   machinery + "testdata/verdicts.txt",
		"kinds.json":     machinery + "data/kinds.json",
		"protobuf.jsonl": machinery + "testdata/protobuf.jsonl",
		"discovery.json": machinery + "testdata/discovery.json",
		"openapi.jsonl":  machinery + "testdata/openapi.jsonl",

		"custom_openapi.jsonl": machinery + "testdata/custom_openapi.jsonl",
	} {
		want, err := os.ReadFile(fresh(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := compare(committed, want); err != nil {
			t.Error(err)
		}
	}
}

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
