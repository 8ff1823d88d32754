// Command kindtable writes Portolan's kind table: the structure of every type and kind that kube-apiserver serves,
// read from the published Go module by reflection (struct tags), from its OpenAPI definitions (list types, enums,
// declared defaults), from its golden discovery document (resources, verbs), from its registries (strategies), and from
// its scheme's defaulting functions run on probe objects. No text is copied, only structure.
//
//	go run ./codegen/kindtable -out ../crates/kinds/data/kinds.json
//	go run ./codegen/kindtable -samples ../crates/codec/testdata/protobuf.jsonl
//	go run ./codegen/kindtable -internal ../crates/validation/data/internal.json
//	go run ./codegen/kindtable -bases ../crates/strategy/testdata/bases.jsonl -verdicts ../crates/strategy/testdata/verdicts.txt
//	go run ./codegen/kindtable -bases ../crates/strategy/testdata/bases.jsonl -defaults ../crates/strategy/testdata/defaults.txt
//	go run ./codegen/kindtable -bases ../crates/strategy/testdata/bases.jsonl -rows ../crates/strategy/testdata/rows.txt
//	go run ./codegen/kindtable -bases ../crates/strategy/testdata/bases.jsonl -histories 20 -seed 1
//	go run ./codegen/kindtable -discovery ../crates/kinds/testdata/discovery.json -openapi ../crates/kinds/testdata/openapi.jsonl
//	go run ./codegen/kindtable -definitions ../crates/kinds/testdata/definitions.jsonl -custom ../crates/kinds/testdata/custom_openapi.jsonl
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	out := flag.String("out", "", "write the table to this file")
	samples := flag.String("samples", "", "write protobuf samples to this file")
	discovery := flag.String("discovery", "", "write the expected discovery documents to this file")
	openapi := flag.String("openapi", "", "write the expected OpenAPI schemas to this file")
	definitions := flag.String("definitions", "", "definitions of custom resources")
	custom := flag.String("custom", "", "write the OpenAPI documents of the definitions to this file")
	internal := flag.String("internal", "", "write the forms of internal types to this file")
	bases := flag.String("bases", "", "good objects to change")
	verdicts := flag.String("verdicts", "", "write what the registries say of the changed bases to this file")
	whole := flag.Bool("whole", false, "write long texts of verdicts as they are, to see what differs")
	defaults := flag.String("defaults", "", "write what is filled into the changed bases to this file")
	rows := flag.String("rows", "", "write the rows in tables of the changed bases to this file")
	histories := flag.Int("histories", 0, "print so many histories of writes of objects like each base")
	kept := flag.String("kept", "", "print the histories of this file as well")
	seed := flag.Int64("seed", 1, "the first of the histories'")
	report := flag.Bool("report", false, "print the defaults which depend on other fields")
	flag.Parse()
	var err error
	if *custom != "" {
		err = writeCustomOpenAPI(*definitions, *custom)
	} else if *internal != "" {
		err = writeInternal(*internal)
	} else if *histories > 0 || *kept != "" {
		err = writeHistories(*bases, *kept, *histories, *seed)
	} else if *verdicts != "" {
		err = writeVerdicts(*bases, *verdicts, *whole)
	} else if *defaults != "" {
		err = writeRecords(*bases, *defaults, defaulted)
	} else if *rows != "" {
		err = writeRecords(*bases, *rows, row)
	} else {
		err = run(files{*out, *samples, *discovery, *openapi}, *report)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kindtable:", err)
		os.Exit(1)
	}
}

// files are the files to write; those without a name are not written.
type files struct{ table, samples, discovery, openapi string }

func run(to files, report bool) error {
	table, err := build(report)
	if err != nil {
		return err
	}
	text, err := table.render()
	if err != nil {
		return err
	}
	for _, step := range []struct {
		path string
		do   func(path string) error
	}{
		{to.table, func(path string) error { return os.WriteFile(path, text, 0o644) }},
		{to.samples, func(path string) error { return writeSamples(path, table) }},
		{to.discovery, func(path string) error { return writeDiscovery(path, table) }},
		{to.openapi, writeOpenAPI},
	} {
		if step.path == "" {
			continue
		}
		if err := step.do(step.path); err != nil {
			return err
		}
	}
	return nil
}
