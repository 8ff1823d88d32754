package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// openAPISamples are the documents that stand for all in the tests of the machinery: small, and together with every shape.
// Those of what is around the versions are all there.
var openAPISamples = []string{"apis__policy__v1", "apis__coordination.k8s.io__v1", "apis__autoscaling__v2",
	"api", "apis", "apis__rbac.authorization.k8s.io", "version", "openid__v1__jwks", ".well-known__openid-configuration"}

// writeOpenAPI writes the schemas and paths of real OpenAPI documents without their texts, a line each.
func writeOpenAPI(path string) error {
	var out bytes.Buffer
	for _, name := range openAPISamples {
		text, err := moduleFile("api/openapi-spec/v3/" + name + "_openapi.json")
		if err != nil {
			return err
		}
		var document struct {
			Paths      map[string]any `json:"paths"`
			Components struct {
				Schemas map[string]any `json:"schemas"`
			} `json:"components"`
		}
		if err := json.Unmarshal(text, &document); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		line, err := json.Marshal(map[string]any{"document": name, "schemas": withoutTexts(document.Components.Schemas),
			"paths": withoutCBOR(withoutTexts(document.Paths))})
		if err != nil {
			return err
		}
		out.Write(append(line, '\n'))
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// withoutCBOR leaves out media types that are served only where an alpha feature is on, as it is for these documents.
func withoutCBOR(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			if strings.HasPrefix(key, "application/") && strings.Contains(key, "cbor") {
				delete(value, key)
			} else {
				value[key] = withoutCBOR(inner)
			}
		}
	case []any:
		for i := range value {
			value[i] = withoutCBOR(value[i])
		}
	}
	return value
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
