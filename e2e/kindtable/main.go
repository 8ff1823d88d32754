// Command kindtable writes Portolan's kind table: the structure of every type and kind that kube-apiserver serves,
// read from the published Go module by reflection (struct tags), from its OpenAPI definitions (list types, enums,
// declared defaults), from its golden discovery document (resources, verbs), from its registries (strategies), and from
// its scheme's defaulting functions run on probe objects. No text is copied, only structure.
//
//	go run ./kindtable -out ../crates/machinery/data/kinds.json
//	go run ./kindtable -check ../crates/machinery/data/kinds.json
//	go run ./kindtable -samples ../crates/machinery/testdata/protobuf.jsonl
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
)

func main() {
	out := flag.String("out", "", "write the table to this file")
	check := flag.String("check", "", "fail unless this file holds exactly the table")
	samples := flag.String("samples", "", "write protobuf samples to this file")
	discovery := flag.String("discovery", "", "write the expected discovery documents to this file")
	report := flag.Bool("report", false, "print the defaults which depend on other fields")
	flag.Parse()
	if err := run(*out, *check, *samples, *discovery, *report); err != nil {
		fmt.Fprintln(os.Stderr, "kindtable:", err)
		os.Exit(1)
	}
}

func run(out, check, samples, discovery string, report bool) error {
	table, err := build(report)
	if err != nil {
		return err
	}
	text, err := table.render()
	if err != nil {
		return err
	}
	if out != "" {
		if err := os.WriteFile(out, text, 0o644); err != nil {
			return err
		}
	}
	if check != "" {
		had, err := os.ReadFile(check)
		if err != nil {
			return err
		}
		if !bytes.Equal(had, text) {
			return fmt.Errorf("%s differs from what the Go types say; write it again with -out", check)
		}
	}
	if samples != "" {
		if err := writeSamples(samples, table); err != nil {
			return err
		}
	}
	if discovery != "" {
		return writeDiscovery(discovery, table)
	}
	return nil
}
