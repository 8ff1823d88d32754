// Celcases prints what Kubernetes' own CEL says of the rules of CRDs and of expressions, one case a line in JSON, for
// `cargo xtask e2e --suite cel`: whether and how a rule compiles, what it is estimated to cost, and what it says of generated objects.
//
//	celcases [-objects 20] [-expressions file] [directory with CRDs]...
//	celcases -answers -expressions file
//
// With -answers, what was asked is left out: crates/cel/src/rules/answers.jsonl is made so.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"math/rand"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apimachinery/pkg/util/yaml"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
)

// Case is one line of output.
type Case struct {
	Name    string          `json:"name"`
	Schema  json.RawMessage `json:"schema,omitempty"`
	Rules   []Rule          `json:"rules"`
	Objects []Object        `json:"objects"`
}

// Rule is what became of one rule: where it is, and its costs or what is wrong with it.
type Rule struct {
	Path           string `json:"path"`
	Index          int    `json:"index"`
	Error          string `json:"error,omitempty"`
	MessageError   string `json:"messageError,omitempty"`
	MaxCost        string `json:"maxCost"`
	MessageMaxCost string `json:"messageMaxCost"`
	UsesOldSelf    bool   `json:"usesOldSelf,omitempty"`
}

// Object is what the rules say of one object.
type Object struct {
	New    interface{} `json:"new,omitempty"`
	Old    interface{} `json:"old,omitempty"`
	Errors []string    `json:"errors"`
	Cost   int64       `json:"cost"`
}

var answers bool

var envs = environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())

func main() {
	objects := flag.Int("objects", 20, "objects to generate for each schema")
	flag.BoolVar(&answers, "answers", false, "leave out schemas and objects")
	expressions := flag.String("expressions", "", "a file of expressions, one a line, and the schema and the objects they are for")
	flag.Parse()
	out := json.NewEncoder(os.Stdout)
	if *expressions != "" {
		expressionCases(*expressions, out)
	}
	for _, directory := range flag.Args() {
		for _, definition := range definitions(directory) {
			definitionCases(definition, *objects, out)
		}
	}
}

func definitions(directory string) []apiextensionsv1.CustomResourceDefinition {
	found := []apiextensionsv1.CustomResourceDefinition{}
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".yaml") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, document := range bytes.Split(content, []byte("\n---\n")) {
			definition := apiextensionsv1.CustomResourceDefinition{}
			if yaml.Unmarshal(document, &definition) == nil && definition.Kind == "CustomResourceDefinition" {
				found = append(found, definition)
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	return found
}

func definitionCases(definition apiextensionsv1.CustomResourceDefinition, objects int, out *json.Encoder) {
	for _, version := range definition.Spec.Versions {
		if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
			continue
		}
		raw, err := json.Marshal(version.Schema.OpenAPIV3Schema)
		if err != nil {
			log.Fatal(err)
		}
		if !bytes.Contains(raw, []byte("x-kubernetes-validations")) {
			continue
		}
		one := newCase(definition.Name+"/"+version.Name, raw)
		generator := generator{random: rand.New(rand.NewSource(7)), words: words(raw)}
		for i := 0; i < objects; i++ {
			one.add(generator.object(one.structural), generator.old(one.structural, i))
		}
		one.print(out)
	}
}

type openCase struct {
	Case
	structural *schema.Structural
	validator  *cel.Validator
}

func newCase(name string, raw []byte) *openCase {
	external := apiextensionsv1.JSONSchemaProps{}
	if err := json.Unmarshal(raw, &external); err != nil {
		log.Fatal(name, err)
	}
	internal := apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&external, &internal, nil); err != nil {
		log.Fatal(name, err)
	}
	structural, err := schema.NewStructural(&internal)
	if err != nil {
		log.Fatal(name, err)
	}
	one := &openCase{Case: Case{Name: name, Schema: raw}, structural: structural}
	one.validator = cel.NewValidator(structural, true, celconfig.PerCallLimit)
	one.rules("", structural, true)
	return one
}

func (c *openCase) rules(path string, node *schema.Structural, isRoot bool) {
	if len(node.XValidations) > 0 {
		declared := model.SchemaDeclType(node, isRoot || node.XEmbeddedResource)
		results, err := cel.Compile(node, declared, celconfig.PerCallLimit, envs, cel.NewExpressionsEnvLoader())
		if err != nil {
			log.Fatal(err)
		}
		for i, result := range results {
			rule := Rule{Path: path, Index: i, MaxCost: fmt.Sprint(result.MaxCost), MessageMaxCost: fmt.Sprint(result.MessageExpressionMaxCost), UsesOldSelf: result.UsesOldSelf}
			if result.Error != nil {
				rule.Error = result.Error.Error()
			}
			if result.MessageExpressionError != nil {
				rule.MessageError = result.MessageExpressionError.Error()
			}
			c.Rules = append(c.Rules, rule)
		}
	}
	names := make([]string, 0, len(node.Properties))
	for name := range node.Properties {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		property := node.Properties[name]
		c.rules(path+"/properties/"+strings.ReplaceAll(name, "/", "~1"), &property, false)
	}
	if node.Items != nil {
		c.rules(path+"/items", node.Items, false)
	}
	if node.AdditionalProperties != nil && node.AdditionalProperties.Structural != nil {
		c.rules(path+"/additionalProperties", node.AdditionalProperties.Structural, false)
	}
}

func (c *openCase) add(object, old interface{}) {
	options := []cel.Option{}
	if old != nil {
		options = append(options, cel.WithRatcheting(common.NewCorrelatedObject(object, old, &model.Structural{Structural: c.structural})))
	}
	errors, remaining := c.validator.Validate(context.Background(), nil, c.structural, object, old, celconfig.RuntimeCELCostBudget, options...)
	texts := []string{}
	for _, err := range errors {
		texts = append(texts, err.Error())
	}
	sort.Strings(texts)
	c.Objects = append(c.Objects, Object{New: object, Old: old, Errors: texts, Cost: celconfig.RuntimeCELCostBudget - max(remaining, 0)})
}

func (c *openCase) print(out *json.Encoder) {
	if answers {
		c.Schema = nil
		for i := range c.Objects {
			c.Objects[i].New, c.Objects[i].Old = nil, nil
		}
	}
	if err := out.Encode(c.Case); err != nil {
		log.Fatal(err)
	}
}

// expressionCases reads a schema and objects in the first lines, and then expressions: a rule each, on the root of that schema.
func expressionCases(path string, out *json.Encoder) {
	file, err := os.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	var base map[string]interface{}
	objects := []interface{}{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "schema "):
			if err := json.Unmarshal([]byte(line[len("schema "):]), &base); err != nil {
				log.Fatal(err)
			}
		case strings.HasPrefix(line, "object "):
			var object interface{}
			if err := yaml.Unmarshal([]byte(line[len("object "):]), &object); err != nil {
				log.Fatal(err)
			}
			objects = append(objects, integers(object))
		default:
			expressionCase(line, base, objects, out)
		}
	}
}

func expressionCase(expression string, base map[string]interface{}, objects []interface{}, out *json.Encoder) {
	withRule := map[string]interface{}{}
	for key, value := range base {
		withRule[key] = value
	}
	rule := map[string]interface{}{"rule": expression}
	if text, ok := strings.CutPrefix(expression, "message "); ok {
		rule = map[string]interface{}{"rule": "false", "messageExpression": text}
	} else if text, ok := strings.CutPrefix(expression, "optional "); ok {
		rule = map[string]interface{}{"rule": text, "optionalOldSelf": true}
	}
	withRule["x-kubernetes-validations"] = []interface{}{rule}
	raw, err := json.Marshal(withRule)
	if err != nil {
		log.Fatal(err)
	}
	one := newCase(expression, raw)
	for i, object := range objects {
		one.add(object, nil)
		one.add(object, objects[(i+1)%len(objects)])
	}
	one.print(out)
}

// integers makes whole numbers what the API machinery decodes them to.
func integers(value interface{}) interface{} {
	switch value := value.(type) {
	case map[string]interface{}:
		for key, inner := range value {
			value[key] = integers(inner)
		}
	case []interface{}:
		for i, inner := range value {
			value[i] = integers(inner)
		}
	case float64:
		if value == float64(int64(value)) {
			return int64(value)
		}
	}
	return value
}
