package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sort"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const module = "k8s.io/kubernetes"

// groups are the API groups of the table, in the order of discovery; the value tells whether Portolan serves them yet.
var groups = []struct {
	name   string
	served bool
}{
	{"", true},
	{"apiregistration.k8s.io", true},
	{"apps", true},
	{"events.k8s.io", true},
	{"authentication.k8s.io", true},
	{"authorization.k8s.io", true},
	{"autoscaling", true},
	{"batch", true},
	{"certificates.k8s.io", true},
	{"networking.k8s.io", true},
	{"policy", true},
	{"rbac.authorization.k8s.io", true},
	{"storage.k8s.io", true},
	{"admissionregistration.k8s.io", true},
	{"apiextensions.k8s.io", true},
	{"scheduling.k8s.io", true},
	{"coordination.k8s.io", true},
	{"node.k8s.io", true},
	{"discovery.k8s.io", true},
	{"resource.k8s.io", true},
	{"flowcontrol.apiserver.k8s.io", true},
}

// stored names the kinds whose objects are kept as another resource or version.
var stored = map[schema.GroupVersionResource]storageEntry{
	{Group: "events.k8s.io", Version: "v1", Resource: "events"}:                 {"", "v1", "events"},
	{Group: "autoscaling", Version: "v1", Resource: "horizontalpodautoscalers"}: {"autoscaling", "v2", "horizontalpodautoscalers"},
}

// moduleFile reads a file of the Kubernetes module.
func moduleFile(path string) ([]byte, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m: %w", err)
	}
	return os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), path))
}

func moduleVersion() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module).Output()
	return strings.TrimSpace(string(out)), err
}

// discovered reads the golden aggregated discovery, core first, stable versions only.
func discovered() ([]apidiscovery.APIGroupDiscovery, error) {
	var list apidiscovery.APIGroupDiscoveryList
	text, err := moduleFile("api/discovery/aggregated_v2.json")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	core, err := discoveredCore()
	if err != nil {
		return nil, err
	}
	byName := map[string]apidiscovery.APIGroupDiscovery{"": core}
	for _, group := range list.Items {
		byName[group.Name] = group
	}
	var out []apidiscovery.APIGroupDiscovery
	for _, wanted := range groups {
		group, ok := byName[wanted.name]
		if !ok {
			return nil, fmt.Errorf("group %q is not in the discovery document", wanted.name)
		}
		var stable []apidiscovery.APIVersionDiscovery
		for _, version := range group.Versions {
			if !strings.Contains(version.Version, "alpha") && !strings.Contains(version.Version, "beta") {
				stable = append(stable, version)
			}
		}
		group.Versions = stable
		out = append(out, group)
	}
	return out, nil
}

// discoveredCore makes the aggregated form of the core group, which has only a legacy golden file.
func discoveredCore() (apidiscovery.APIGroupDiscovery, error) {
	var list metav1.APIResourceList
	text, err := moduleFile("api/discovery/api__v1.json")
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	version := apidiscovery.APIVersionDiscovery{Version: "v1", Freshness: apidiscovery.DiscoveryFreshnessCurrent}
	index := map[string]int{}
	kind := func(r metav1.APIResource) *metav1.GroupVersionKind {
		return &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
	}
	resource := func(r metav1.APIResource) apidiscovery.APIResourceDiscovery {
		scope := apidiscovery.ScopeCluster
		if r.Namespaced {
			scope = apidiscovery.ScopeNamespace
		}
		return apidiscovery.APIResourceDiscovery{Resource: r.Name, ResponseKind: kind(r), Scope: scope,
			SingularResource: r.SingularName, ShortNames: r.ShortNames, Categories: r.Categories, Verbs: r.Verbs}
	}
	for _, r := range list.APIResources {
		name, sub, isSub := strings.Cut(r.Name, "/")
		if !isSub {
			index[name] = len(version.Resources)
			version.Resources = append(version.Resources, resource(r))
			continue
		}
		parent := &version.Resources[index[name]]
		parent.Subresources = append(parent.Subresources, apidiscovery.APISubresourceDiscovery{
			Subresource: sub, ResponseKind: kind(r), Verbs: r.Verbs})
	}
	return apidiscovery.APIGroupDiscovery{Versions: []apidiscovery.APIVersionDiscovery{version}}, err
}

func (t *table) addKinds(scheme *runtime.Scheme, r *reflector) error {
	found, err := discovered()
	if err != nil {
		return err
	}
	for i, group := range found {
		for _, version := range group.Versions {
			gv := schema.GroupVersion{Group: group.Name, Version: version.Version}
			for _, resource := range version.Resources {
				kind, err := newKind(gv, resource, scheme, r)
				if err != nil {
					return fmt.Errorf("%v %s: %w", gv, resource.Resource, err)
				}
				kind.Served = groups[i].served
				t.Kinds = append(t.Kinds, kind)
			}
			if err := t.addObjects(gv, scheme, r); err != nil {
				return err
			}
		}
	}
	return t.addMeta(r)
}

// addMeta enters the kinds of the machinery itself: options are known in every group, documents of discovery in versions of
// their own.
func (t *table) addMeta(r *reflector) error {
	for _, meta := range []struct {
		group, version string
		values         []any
	}{
		{"", "v1", []any{metav1.APIGroup{}, metav1.APIGroupList{}, metav1.APIResourceList{}, metav1.APIVersions{}, metav1.Status{}}},
		{"apidiscovery.k8s.io", "v2", []any{apidiscovery.APIGroupDiscoveryList{}}},
		{"meta.k8s.io", "v1", []any{metav1.CreateOptions{}, metav1.DeleteOptions{}, metav1.GetOptions{}, metav1.ListOptions{},
			metav1.PatchOptions{}, metav1.UpdateOptions{}, metav1.PartialObjectMetadata{}, metav1.PartialObjectMetadataList{},
			metav1.Table{}, metav1.TableOptions{}, metav1.WatchEvent{}}},
	} {
		for _, value := range meta.values {
			kind := reflect.TypeOf(value)
			definition, err := r.message(kind)
			if err != nil {
				return err
			}
			t.Objects = append(t.Objects, objectEntry{meta.group, meta.version, kind.Name(), definition})
		}
	}
	// Nodes have it in an annotation.
	_, err := r.message(reflect.TypeOf(corev1.AvoidPods{}))
	return err
}

func newKind(gv schema.GroupVersion, resource apidiscovery.APIResourceDiscovery, scheme *runtime.Scheme, r *reflector) (*kindEntry, error) {
	gvk := inherit(gv, resource.ResponseKind)
	object, err := scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	kind := &kindEntry{
		Group: gv.Group, Version: gv.Version, Kind: gvk.Kind,
		Resource: resource.Resource, Singular: resource.SingularResource,
		ShortNames: resource.ShortNames, Categories: resource.Categories,
		Namespaced: resource.Scope == apidiscovery.ScopeNamespace, Verbs: resource.Verbs,
	}
	if kind.Type, err = r.message(reflect.TypeOf(object).Elem()); err != nil {
		return nil, err
	}
	if scheme.Recognizes(gvk.GroupVersion().WithKind(gvk.Kind + "List")) {
		kind.List = gvk.Kind + "List"
	}
	for _, sub := range resource.Subresources {
		gvk := inherit(gv, sub.ResponseKind)
		kind.Subresources = append(kind.Subresources, subresourceEntry{
			Name: sub.Subresource, Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Verbs: sub.Verbs})
	}
	if storage, ok := stored[gv.WithResource(resource.Resource)]; ok {
		kind.Storage = &storage
	}
	return kind, nil
}

// inherit completes a response kind of discovery, in which an empty version means "that of the list".
func inherit(gv schema.GroupVersion, kind *metav1.GroupVersionKind) schema.GroupVersionKind {
	if kind.Version != "" {
		gv = schema.GroupVersion{Group: kind.Group, Version: kind.Version}
	}
	return gv.WithKind(kind.Kind)
}

// addObjects enters every kind of a group version: lists, reviews, Scale and others that are no resource.
func (t *table) addObjects(gv schema.GroupVersion, scheme *runtime.Scheme, r *reflector) error {
	known := scheme.KnownTypes(gv)
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		kind := known[name]
		if strings.HasPrefix(kind.PkgPath(), "k8s.io/apimachinery/") {
			continue // known in every group: entered once, by addMeta
		}
		definition, err := r.message(kind)
		if err != nil {
			return err
		}
		t.Objects = append(t.Objects, objectEntry{gv.Group, gv.Version, name, definition})
	}
	return nil
}
