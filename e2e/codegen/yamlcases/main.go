// Yamlcases prints what kube-apiserver makes of YAML, for crates/codec/testdata/yaml.jsonl: a line for each document of a
// file, with the JSON that sigs.k8s.io/yaml makes of it or why it makes none, and what it says of keys that are repeated.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"log"
	"os"
	"strings"

	yaml2 "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"
)

// read is what becomes of a document.
type read struct {
	YAML     string          `json:"yaml"`
	JSON     json.RawMessage `json:"json,omitempty"`
	Error    string          `json:"error,omitempty"`
	Repeated []string        `json:"repeated,omitempty"`
}

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if line := lines.Text(); line != "" && !strings.HasPrefix(line, "# ") {
			if err := out.Encode(reading(line)); err != nil {
				log.Fatal(err)
			}
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}

// reading reads a document of which `\n` ends lines. What is strict about repeated keys comes with other errors, too.
func reading(line string) read {
	done := read{YAML: strings.ReplaceAll(line, `\n`, "\n")}
	converted, err := yaml.YAMLToJSON([]byte(done.YAML))
	if err != nil {
		done.Error = err.Error()
		return done
	}
	done.JSON = converted
	var repeated *yaml2.TypeError
	if _, err := yaml.YAMLToJSONStrict([]byte(done.YAML)); errors.As(err, &repeated) {
		done.Repeated = repeated.Errors
	}
	return done
}
