package main

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Causes about entries of one map come in the order of its keys, all others as they were.
func TestCausesOfOneMapAreSorted(t *testing.T) {
	var causes []metav1.StatusCause
	for _, field := range []string{"z", "d[0].capacity[b].x", "d[0].capacity[a].y", "d[0].capacity[b].w", "d[1].capacity[c]", "a", "d[1].attributes[b]", "d[1].attributes[a]"} {
		causes = append(causes, metav1.StatusCause{Field: field})
	}
	var fields []string
	for _, cause := range steady(causes) {
		fields = append(fields, cause.Field)
	}
	want := []string{"z", "d[0].capacity[a].y", "d[0].capacity[b].x", "d[0].capacity[b].w", "d[1].capacity[c]", "a", "d[1].attributes[a]", "d[1].attributes[b]"}
	if !slices.Equal(fields, want) {
		t.Errorf("got %v", fields)
	}
}
