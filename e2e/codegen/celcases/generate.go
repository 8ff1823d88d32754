package main

import (
	"math/rand"
	"regexp"
	"sort"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// generator makes objects that a schema's types allow, with the words that its rules look for.
type generator struct {
	random *rand.Rand
	words  []string
}

var quoted = regexp.MustCompile(`'([^'\\]{1,40})'`)

// words are the texts that rules compare with, and some of every kind that formats have.
func words(schema []byte) []string {
	found := []string{"", "a", "example.com", "10.0.0.0/8", "2024-01-01T00:00:00Z", "10Mi", "0", "1h", "*", "https://example.com/a?b=c"}
	seen := map[string]bool{}
	for _, match := range quoted.FindAllSubmatch(schema, -1) {
		if word := string(match[1]); !seen[word] {
			seen[word] = true
			found = append(found, word)
		}
	}
	return found
}

func (g *generator) object(node *schema.Structural) interface{} {
	object := g.value(node, 0).(map[string]interface{})
	object["apiVersion"] = "example.com/v1"
	object["kind"] = "Example"
	object["metadata"] = map[string]interface{}{"name": "one"}
	return object
}

// old is nothing for one object of three.
func (g *generator) old(node *schema.Structural, index int) interface{} {
	if index%3 == 0 {
		return nil
	}
	return g.object(node)
}

func (g *generator) value(node *schema.Structural, depth int) interface{} {
	if node.XIntOrString {
		if g.random.Intn(2) == 0 {
			return int64(g.random.Intn(70000) - 10)
		}
		return g.word()
	}
	if node.ValueValidation != nil && len(node.ValueValidation.Enum) > 0 {
		return node.ValueValidation.Enum[g.random.Intn(len(node.ValueValidation.Enum))].Object
	}
	switch node.Type {
	case "object":
		return g.fields(node, depth)
	case "array":
		items := []interface{}{}
		for i := g.random.Intn(4); i > 0 && node.Items != nil && depth < 12; i-- {
			items = append(items, g.value(node.Items, depth+1))
		}
		return items
	case "string":
		return g.text(node)
	case "integer":
		return []int64{0, 1, 2, 3, 80, 443, 1000, 65536, -1}[g.random.Intn(9)]
	case "number":
		return []float64{0.5, 1.5, -2.25, 100.5}[g.random.Intn(4)]
	case "boolean":
		return g.random.Intn(2) == 0
	}
	return map[string]interface{}{"any": g.word()}
}

func (g *generator) text(node *schema.Structural) string {
	if node.ValueValidation != nil {
		switch node.ValueValidation.Format {
		case "date-time":
			return "2024-01-01T00:00:00Z"
		case "duration":
			return "1h30m"
		case "date":
			return "2024-01-01"
		case "byte":
			return "aGVsbG8="
		}
	}
	return g.word()
}

func (g *generator) word() string {
	return g.words[g.random.Intn(len(g.words))]
}

func (g *generator) fields(node *schema.Structural, depth int) map[string]interface{} {
	fields := map[string]interface{}{}
	if node.AdditionalProperties != nil && node.AdditionalProperties.Structural != nil {
		for i := g.random.Intn(3); i > 0; i-- {
			fields[g.word()] = g.value(node.AdditionalProperties.Structural, depth+1)
		}
		return fields
	}
	required := map[string]bool{}
	if node.ValueValidation != nil {
		for _, name := range node.ValueValidation.Required {
			required[name] = true
		}
	}
	names := make([]string, 0, len(node.Properties))
	for name := range node.Properties {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		property := node.Properties[name]
		// Deep schemas have very many fields; rules are near the top.
		if !required[name] && g.random.Intn(10) >= max(6-depth, 1) {
			continue
		}
		fields[name] = g.value(&property, depth+1)
	}
	return fields
}
