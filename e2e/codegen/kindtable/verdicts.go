package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Messages that are longer are written down as their beginning and a hash of all of it: many print whole objects.
const longestText, beginning = 256, 48

// verdicts are what the real registries say of changed objects: texts once, cases as numbers of texts.
type verdicts struct {
	texts map[string]int
	order []string
	lines bytes.Buffer
	// whole keeps long texts as they are.
	whole bool
}

// verdict is one place of a base, and a case for each change of it: `[value, created, updated, added]`. The value is what is
// put there; null means that the place is taken out. The others are what is wrong with the object then, when it is new and
// when it takes the place of the base; and, where something is taken out, with the base when it takes the place of that
// object: field, reason and message of each cause, by number. Empty lists at the end are left out, but not the last of those
// that something is taken out of: where it is not there, that object can not be what is stored.
type verdict struct {
	Base  int     `json:"b"`
	Path  string  `json:"p"`
	Cases [][]any `json:"v"`
}

// answers are the causes that come of one change.
type answers struct {
	create, update []metav1.StatusCause
	// added is nil where it was not asked for, or could not be.
	added *[]metav1.StatusCause
}

// caseOf writes a case down.
func (v *verdicts) caseOf(change change, found answers) []any {
	create, update := v.numbers(found.create), v.numbers(found.update)
	switch {
	case change.remove && found.added != nil:
		return []any{nil, create, update, v.numbers(*found.added)}
	case len(update) > 0:
		return []any{change.value, create, update}
	case len(create) > 0:
		return []any{change.value, create}
	default:
		return []any{change.value}
	}
}

// add writes down the cases of a place, if there are any.
func (v *verdicts) add(place verdict) error {
	if len(place.Cases) == 0 {
		return nil
	}
	return v.line(place)
}

// write writes the texts, an empty line, and the cases.
func (v *verdicts) write(to string) error {
	texts, err := json.Marshal(v.order)
	if err != nil {
		return err
	}
	split := bytes.ReplaceAll(texts, []byte(`","`), []byte("\",\n\""))
	return os.WriteFile(to, append(append(split, []byte("\n\n")...), v.lines.Bytes()...), 0o644)
}

// line adds a line.
func (v *verdicts) line(value any) error {
	text, err := json.Marshal(value)
	v.lines.Write(append(text, '\n'))
	return err
}

func (v *verdicts) numbers(causes []metav1.StatusCause) []int {
	out := []int{}
	for _, cause := range causes {
		out = append(out, v.numbered([]string{cause.Field, string(cause.Type), v.short(cause.Message)})...)
	}
	return out
}

// short is a text that is compared, at a length that can be kept.
func (v *verdicts) short(text string) string {
	if v.whole || len(text) <= longestText {
		return text
	}
	hash := sha256.Sum256([]byte(text))
	return fmt.Sprintf("%s ... %x", strings.ToValidUTF8(text[:beginning], ""), hash[:8])
}

// numbered gives each text its number.
func (v *verdicts) numbered(texts []string) []int {
	var out []int
	for _, text := range texts {
		number, ok := v.texts[text]
		if !ok {
			number = len(v.order)
			v.texts[text] = number
			v.order = append(v.order, text)
		}
		out = append(out, number)
	}
	return out
}
