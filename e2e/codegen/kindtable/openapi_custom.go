package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/kube-openapi/pkg/handler"
)

// customDocument is what the real builder makes of a definition of custom resources, without its texts.
type customDocument struct {
	V3 any `json:"v3"`
	V2 any `json:"v2"`
}

// writeCustomOpenAPI writes the documents of definitions, a line each.
func writeCustomOpenAPI(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	for i, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		documents, err := customDocuments(line)
		if err != nil {
			return fmt.Errorf("definition %d: %w", i, err)
		}
		text, err := json.Marshal(documents)
		if err != nil {
			return err
		}
		out.Write(append(text, '\n'))
	}
	return os.WriteFile(to, out.Bytes(), 0o644)
}

// customDocuments builds the documents of the first version of a definition as kube-apiserver does.
func customDocuments(text []byte) (*customDocument, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := json.Unmarshal(text, crd); err != nil {
		return nil, err
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	version := crd.Spec.Versions[0].Name
	options := builder.Options{IncludeSelectableFields: true}
	v3, err := builder.BuildOpenAPIV3(crd, version, options)
	if err != nil {
		return nil, err
	}
	options.V2 = true
	v2, err := builder.BuildOpenAPIV2(crd, version, options)
	if err != nil {
		return nil, err
	}
	v2.Definitions = handler.PruneDefaults(v2.Definitions)
	out := &customDocument{}
	for _, part := range []struct {
		from any
		to   *any
	}{{v3, &out.V3}, {v2, &out.V2}} {
		tree, err := plain(part.from)
		if err != nil {
			return nil, err
		}
		*part.to = withoutTexts(tree)
	}
	out.V2 = ownPart(out.V2.(map[string]any))
	return out, nil
}

// plain gives a value as a tree of JSON.
func plain(value any) (tree any, err error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return tree, json.Unmarshal(text, &tree)
}

// ownPart is what of a v2 document a definition adds to that of the server: its paths, with shared parameters in their
// places, and its schemas.
func ownPart(document map[string]any) map[string]any {
	shared, _ := document["parameters"].(map[string]any)
	definitions := map[string]any{}
	for name, schema := range document["definitions"].(map[string]any) {
		if !strings.HasPrefix(name, "io.k8s.") {
			definitions[name] = schema
		}
	}
	return map[string]any{"paths": inPlace(document["paths"], shared), "definitions": definitions}
}

// inPlace puts shared parameters in the places of references to them.
func inPlace(value any, shared map[string]any) any {
	switch value := value.(type) {
	case map[string]any:
		if ref, ok := value["$ref"].(string); ok && strings.HasPrefix(ref, "#/parameters/") {
			return shared[strings.TrimPrefix(ref, "#/parameters/")]
		}
		for key := range value {
			value[key] = inPlace(value[key], shared)
		}
	case []any:
		for i := range value {
			value[i] = inPlace(value[i], shared)
		}
	}
	return value
}
