package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// documents are the golden discovery documents of the table's group versions.
type documents struct {
	Aggregated []apidiscovery.APIGroupDiscovery   `json:"aggregated"`
	Lists      map[string]*metav1.APIResourceList `json:"lists"`
}

// writeDiscovery writes what a real server answers, without what no client reads (storage version hashes).
func writeDiscovery(path string, t *table) error {
	aggregated, err := discovered()
	if err != nil {
		return err
	}
	out := documents{aggregated, map[string]*metav1.APIResourceList{}}
	for _, kind := range t.Kinds {
		file, name := "api/discovery/api__v1.json", "v1"
		if kind.Group != "" {
			file = fmt.Sprintf("api/discovery/apis__%s__%s.json", kind.Group, kind.Version)
			name = kind.Group + "/" + kind.Version
		}
		if out.Lists[name] != nil {
			continue
		}
		list := &metav1.APIResourceList{}
		text, err := moduleFile(file)
		if err == nil {
			err = json.Unmarshal(text, list)
		}
		if err != nil {
			return err
		}
		for i := range list.APIResources {
			list.APIResources[i].StorageVersionHash = ""
		}
		out.Lists[name] = list
	}
	text, err := json.Marshal(out)
	if err != nil {
		return err
	}
	// A line per group version.
	lines := strings.NewReplacer(`},"apis`, "},\n\"apis", `{"kind":"APIResourceList"`, "\n{\"kind\":\"APIResourceList\"", `{"metadata":{"name":`, "\n{\"metadata\":{\"name\":")
	return os.WriteFile(path, append([]byte(lines.Replace(string(text))), '\n'), 0o644)
}
