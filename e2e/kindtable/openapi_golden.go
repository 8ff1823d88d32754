package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// openAPISamples are the documents that stand for all in the tests of the machinery: small, and together with every shape.
var openAPISamples = []string{"apis__policy__v1", "apis__coordination.k8s.io__v1", "apis__autoscaling__v2"}

// writeOpenAPI writes the schemas of real OpenAPI documents without their texts, a line each.
func writeOpenAPI(path string) error {
	var out bytes.Buffer
	for _, name := range openAPISamples {
		text, err := moduleFile("api/openapi-spec/v3/" + name + "_openapi.json")
		if err != nil {
			return err
		}
		var document struct {
			Components struct {
				Schemas map[string]any `json:"schemas"`
			} `json:"components"`
		}
		if err := json.Unmarshal(text, &document); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		line, err := json.Marshal(map[string]any{"document": name, "schemas": withoutTexts(document.Components.Schemas)})
		if err != nil {
			return err
		}
		out.Write(append(line, '\n'))
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// withoutTexts leaves out descriptions (but not properties of that name).
func withoutTexts(value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, inner := range value {
			if _, isText := inner.(string); key != "description" || !isText {
				out[key] = withoutTexts(inner)
			}
		}
		return out
	case []any:
		for i := range value {
			value[i] = withoutTexts(value[i])
		}
	}
	return value
}
