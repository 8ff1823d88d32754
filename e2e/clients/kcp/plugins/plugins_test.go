// Package plugins sends the requests of kcp's plugins (kubectl ws, create workspace, kcp bind, claims and quickstart) with
// kcp's own client library, in the order in which the plugins send them. The plugins are not served by the module proxy.
package plugins

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	kcp "github.com/kcp-dev/sdk/client/clientset/versioned"
)

// The plugins poll this often, and at most this long.
const (
	interval = 500 * time.Millisecond
	patience = 30 * time.Second
)

// server is what $KUBECONFIG names; the plugins blank the path of its URL and add their own.
type server struct{ config *rest.Config }

func (s server) at(path string) *rest.Config {
	config := rest.CopyConfig(s.config)
	config.Host = strings.SplitN(config.Host, "/clusters/", 2)[0] + "/clusters/" + path
	config.QPS, config.Burst = 1000, 1000
	return config
}

func (s server) client(path string) *kcp.Clientset { return kcp.NewForConfigOrDie(s.at(path)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// poll waits as the plugins do.
func poll(t *testing.T, what string, look func() (bool, error)) {
	t.Helper()
	for until := time.Now().Add(patience); ; time.Sleep(interval) {
		done, err := look()
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatalf("%s: %v", what, err)
		}
		if done {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		}
	}
}

// use is "kubectl ws <path>": discovery in the target, its type from the parent, its bindings.
func (s server) use(t *testing.T, path string) {
	t.Helper()
	ctx := t.Context()
	groups, err := discovery.NewDiscoveryClientForConfigOrDie(s.at(path)).ServerGroups()
	must(t, err)
	if len(groups.Groups) == 0 {
		t.Fatal("discovery is empty, which the plugin takes for a denial")
	}
	if parent, name, found := cutLast(path); found {
		workspace, err := s.client(parent).TenancyV1alpha1().Workspaces().Get(ctx, name, metav1.GetOptions{})
		must(t, err)
		if workspace.Spec.Type == nil {
			t.Fatal("the plugin prints the type of the workspace")
		}
	}
	_, err = s.client(path).ApisV1alpha2().APIBindings().List(ctx, metav1.ListOptions{})
	must(t, err)
}

func cutLast(path string) (parent, name string, found bool) {
	last := strings.LastIndex(path, ":")
	if last < 0 {
		return "", "", false
	}
	return path[:last], path[last+1:], true
}

// create is "kubectl create workspace <name> --type <kind>".
func (s server) create(t *testing.T, parent, name string, kind *tenancyv1alpha1.WorkspaceTypeReference) *tenancyv1alpha1.Workspace {
	t.Helper()
	ctx, workspaces := t.Context(), s.client(parent).TenancyV1alpha1().Workspaces()
	workspace := &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       tenancyv1alpha1.WorkspaceSpec{Type: kind},
	}
	made, err := workspaces.Create(ctx, workspace, metav1.CreateOptions{})
	must(t, err)
	if made.Spec.Type == nil || made.Spec.Type.Name == "" || made.Spec.Type.Path == "" {
		t.Fatalf("the plugin uses the type of the answer unchecked: %+v", made.Spec.Type)
	}
	poll(t, "the workspace is Ready", func() (bool, error) {
		made, err = workspaces.Get(ctx, name, metav1.GetOptions{})
		return err == nil && made.Status.Phase == corev1alpha1.LogicalClusterPhaseReady, err
	})
	if made.Spec.URL == "" || made.Spec.Cluster == "" {
		t.Fatalf("--create-context uses the URL: %+v", made.Spec)
	}
	return made
}

// tree is "kubectl ws tree --full": the workspaces of each workspace, recursively.
func (s server) tree(t *testing.T, path string) []string {
	t.Helper()
	list, err := s.client(path).TenancyV1alpha1().Workspaces().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	all := []string{path}
	for _, workspace := range list.Items {
		all = append(all, s.tree(t, path+":"+workspace.Name)...)
	}
	return all
}

func bindingTo(path, export string) *apisv1alpha2.APIBinding {
	return &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{Name: export},
		Spec: apisv1alpha2.APIBindingSpec{
			Reference: apisv1alpha2.BindingReference{Export: &apisv1alpha2.ExportBindingReference{Path: path, Name: export}},
		},
	}
}

// bind is "kubectl kcp bind apiexport <path>:<name> --accept-all-permission-claims".
func (s server) bind(t *testing.T, here, provider, export string) {
	t.Helper()
	ctx, client := t.Context(), s.client(here)
	preferred, err := discovery.NewDiscoveryClientForConfigOrDie(s.at(here)).ServerPreferredResources()
	must(t, err)
	if !lists(preferred, "apis.kcp.io/v1alpha2", "apibindings") {
		t.Fatal("no version of apibindings that the plugin knows is preferred")
	}
	// The plugin reads the claims in the old version.
	exported, err := s.client(provider).ApisV1alpha1().APIExports().Get(ctx, export, metav1.GetOptions{})
	must(t, err)
	binding := bindingTo(provider, export)
	for _, claim := range exported.Spec.PermissionClaims {
		binding.Spec.PermissionClaims = append(binding.Spec.PermissionClaims, apisv1alpha2.AcceptablePermissionClaim{
			ScopedPermissionClaim: apisv1alpha2.ScopedPermissionClaim{
				PermissionClaim: apisv1alpha2.PermissionClaim{
					GroupResource: apisv1alpha2.GroupResource{Group: claim.Group, Resource: claim.Resource},
					Verbs:         []string{"*"},
				},
				Selector: apisv1alpha2.PermissionClaimSelector{MatchAll: true},
			},
			State: apisv1alpha2.ClaimAccepted,
		})
	}
	_, err = client.ApisV1alpha2().APIBindings().Create(ctx, binding, metav1.CreateOptions{})
	must(t, err)
	poll(t, "the binding is Bound", func() (bool, error) {
		bound, err := client.ApisV1alpha2().APIBindings().Get(ctx, export, metav1.GetOptions{})
		return err == nil && bound.Status.Phase == apisv1alpha2.APIBindingPhaseBound, err
	})
}

func lists(all []*metav1.APIResourceList, version, resource string) bool {
	for _, list := range all {
		for _, own := range list.APIResources {
			if list.GroupVersion == version && own.Name == resource {
				return true
			}
		}
	}
	return false
}

// schema is an APIResourceSchema of the group example.dev.
func schema(plural, kind string) *apisv1alpha1.APIResourceSchema {
	made := &apisv1alpha1.APIResourceSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "v1." + plural + ".example.dev"},
		Spec: apisv1alpha1.APIResourceSchemaSpec{
			Group: "example.dev",
			Scope: "Namespaced",
			Versions: []apisv1alpha1.APIResourceVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: runtime.RawExtension{Raw: []byte(`{"type": "object", "x-kubernetes-preserve-unknown-fields": true}`)},
			}},
		},
	}
	made.Spec.Names.Plural, made.Spec.Names.Kind = plural, kind
	return made
}

// export makes a schema and an export of it, which claims configmaps.
func (s server) export(t *testing.T, path, plural, kind string) {
	t.Helper()
	ctx, client := t.Context(), s.client(path)
	made, err := client.ApisV1alpha1().APIResourceSchemas().Create(ctx, schema(plural, kind), metav1.CreateOptions{})
	must(t, err)
	export := &apisv1alpha2.APIExport{
		ObjectMeta: metav1.ObjectMeta{Name: plural},
		Spec: apisv1alpha2.APIExportSpec{
			Resources: []apisv1alpha2.ResourceSchema{{
				Name: plural, Group: "example.dev", Schema: made.Name,
				Storage: apisv1alpha2.ResourceSchemaStorage{CRD: &apisv1alpha2.ResourceSchemaStorageCRD{}},
			}},
			PermissionClaims: []apisv1alpha2.PermissionClaim{{
				GroupResource: apisv1alpha2.GroupResource{Resource: "configmaps"}, Verbs: []string{"*"},
			}},
		},
	}
	_, err = client.ApisV1alpha2().APIExports().Create(ctx, export, metav1.CreateOptions{})
	must(t, err)
}

// claims is "kubectl kcp claims get" and "accept" or "reject": read all, change one, PUT it.
func (s server) claims(t *testing.T, path, name string, state apisv1alpha2.AcceptablePermissionClaimState) {
	t.Helper()
	ctx, bindings := t.Context(), s.client(path).ApisV1alpha2().APIBindings()
	list, err := bindings.List(ctx, metav1.ListOptions{})
	must(t, err)
	if len(list.Items) != 1 || len(list.Items[0].Status.ExportPermissionClaims) != 1 {
		t.Fatalf("the plugin prints the claims of the export: %+v", list.Items)
	}
	binding, err := bindings.Get(ctx, name, metav1.GetOptions{})
	must(t, err)
	binding.Spec.PermissionClaims[0].State = state
	_, err = bindings.Update(ctx, binding, metav1.UpdateOptions{})
	must(t, err)
	poll(t, "the claim is decided", func() (bool, error) {
		binding, err = bindings.Get(ctx, name, metav1.GetOptions{})
		wanted := map[apisv1alpha2.AcceptablePermissionClaimState]int{apisv1alpha2.ClaimAccepted: 1}[state]
		return err == nil && len(binding.Status.AppliedPermissionClaims) == wanted, err
	})
}

func TestPlugins(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(t, err)
	s := server{config}
	checks := []struct {
		says string
		look func(t *testing.T)
	}{
		{"kubectl create workspace without a type", func(t *testing.T) {
			if made := s.create(t, "root", "acme", nil); made.Spec.Type.Name != "universal" {
				t.Fatalf("the default type: %+v", made.Spec.Type)
			}
		}},
		{"kubectl create workspace with a type by name and by path", func(t *testing.T) {
			s.create(t, "root:acme", "plain", &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal"})
			s.create(t, "root", "org", &tenancyv1alpha1.WorkspaceTypeReference{Name: "organization", Path: "root"})
		}},
		{"kubectl create workspace of a name that is taken", func(t *testing.T) {
			_, err := s.client("root").TenancyV1alpha1().Workspaces().Create(t.Context(),
				&tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "acme"}}, metav1.CreateOptions{})
			if !apierrors.IsAlreadyExists(err) {
				t.Fatalf("--ignore-existing looks for AlreadyExists: %v", err)
			}
		}},
		{"kubectl ws enters a workspace", func(t *testing.T) { s.use(t, "root:acme:plain") }},
		{"kubectl ws tree", func(t *testing.T) {
			found := strings.Join(s.tree(t, "root"), " ")
			for _, wanted := range []string{"root:acme ", "root:acme:plain", "root:org"} {
				if !strings.Contains(found+" ", wanted) {
					t.Fatalf("%s is missing in %s", wanted, found)
				}
			}
		}},
		{"kubectl ws ~ enters the home workspace", func(t *testing.T) {
			home, err := s.client("root").TenancyV1alpha1().Workspaces().Get(t.Context(), "~", metav1.GetOptions{})
			must(t, err)
			_, path, found := strings.Cut(home.Spec.URL, "/clusters/")
			if !found || home.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
				t.Fatalf("%+v", home)
			}
			groups, err := discovery.NewDiscoveryClientForConfigOrDie(s.at(path)).ServerGroups()
			must(t, err)
			if len(groups.Groups) == 0 {
				t.Fatal("its discovery is empty")
			}
		}},
		{"the LogicalCluster of a workspace", func(t *testing.T) {
			found, err := s.client("root:acme").CoreV1alpha1().LogicalClusters().Get(t.Context(), "cluster", metav1.GetOptions{})
			must(t, err)
			if found.Annotations["kcp.io/path"] != "root:acme" || found.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
				t.Fatalf("%+v", found)
			}
		}},
		{"kubectl kcp bind apiexport", func(t *testing.T) {
			s.export(t, "root:acme", "boats", "Boat")
			s.bind(t, "root:acme:plain", "root:acme", "boats")
		}},
		{"kubectl kcp claims reject and accept", func(t *testing.T) {
			s.claims(t, "root:acme:plain", "boats", apisv1alpha2.ClaimRejected)
			s.claims(t, "root:acme:plain", "boats", apisv1alpha2.ClaimAccepted)
		}},
		{"kubectl kcp quickstart", func(t *testing.T) {
			s.create(t, "root", "quickstart", nil)
			s.create(t, "root:quickstart", "service-provider", nil)
			s.create(t, "root:quickstart", "consumer", nil)
			s.export(t, "root:quickstart:service-provider", "cowboys", "Cowboy")
			s.bind(t, "root:quickstart:consumer", "root:quickstart:service-provider", "cowboys")
			must(t, s.client("root").TenancyV1alpha1().Workspaces().Delete(t.Context(), "quickstart", metav1.DeleteOptions{}))
		}},
	}
	for _, check := range checks {
		began := time.Now()
		passed := t.Run(strings.ReplaceAll(check.says, " ", "_"), check.look)
		line, _ := json.Marshal(map[string]any{"says": check.says, "seconds": time.Since(began).Seconds(), "passed": passed})
		fmt.Printf("check %s\n", line)
	}
	fmt.Println("end")
}
