package clientgo

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/openapi3"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"

	"portolan.dev/e2e/clients/suite"
)

var (
	deploymentsV1 = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	configMapsV1  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

func TestDynamic(t *testing.T) {
	suite.Run(t, "client-go-dynamic", []suite.Check{
		{Says: "the dynamic client writes and applies what it has no type for", Look: dynamicClient},
		{Says: "a dynamic informer hears of it", Look: dynamicInformer},
		{Says: "the metadata client reads, patches and deletes without bodies", Look: metadataClient},
		{Says: "a metadata informer caches metadata only", Look: metadataInformer},
		{Says: "discovery is one aggregated answer per root", Look: discovers},
		{Says: "a RESTMapper finds resources for kinds and short names", Look: maps},
		{Says: "OpenAPI v2 and v3 describe a Deployment", Look: describes},
	})
}

func configMapOf(name, value string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name},
		"data":     map[string]any{"k": value},
	}}
}

func dynamicClient(t *testing.T, s *suite.Scene) {
	client, err := dynamic.NewForConfig(s.Config)
	suite.Must(t, err)
	deployments := client.Resource(deploymentsV1).Namespace(s.Namespace)
	wanted := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "free"},
		"spec": map[string]any{
			"replicas": int64(0),
			"selector": map[string]any{"matchLabels": map[string]any{"app": "free"}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": "free"}},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": "registry.example/main:1"}}},
			},
		},
	}}
	made, err := deployments.Create(t.Context(), wanted, metav1.CreateOptions{})
	suite.Must(t, err)
	limit, _, _ := unstructured.NestedInt64(made.Object, "spec", "revisionHistoryLimit")
	suite.Want(t, made.GetKind() == "Deployment" && limit == 10, "%v", made.Object)
	applied, err := deployments.Apply(t.Context(), "free", wanted, metav1.ApplyOptions{FieldManager: "dynamic", Force: true})
	suite.Must(t, err)
	suite.Want(t, len(applied.GetManagedFields()) >= 2 && applied.GetGeneration() == 1, "%v", applied.GetManagedFields())

	wrong := wanted.DeepCopy()
	suite.Must(t, unstructured.SetNestedField(wrong.Object, "three", "spec", "replicas"))
	_, err = deployments.Update(t.Context(), wrong, metav1.UpdateOptions{})
	suite.Want(t, apierrors.IsBadRequest(err), "%v", err)
	unknown := configMapOf("strict", "v")
	unknown.Object["dada"] = map[string]any{}
	_, err = client.Resource(configMapsV1).Namespace(s.Namespace).Create(t.Context(), unknown, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	text := `ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "dada"`
	suite.Want(t, apierrors.IsBadRequest(err) && err.Error() == text, "%v", err)

	suite.Must(t, deployments.Delete(t.Context(), "free", metav1.DeleteOptions{}))
	suite.Gone(t, "the Deployment", func(ctx context.Context, name string, o metav1.GetOptions) (*unstructured.Unstructured, error) {
		return deployments.Get(ctx, name, o)
	}, "free")
}

func dynamicInformer(t *testing.T, s *suite.Scene) {
	client, err := dynamic.NewForConfig(s.Config)
	suite.Must(t, err)
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, s.Namespace, nil)
	informer := factory.ForResource(configMapsV1)
	informer.Informer()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	_, err = client.Resource(configMapsV1).Namespace(s.Namespace).Create(t.Context(), configMapOf("told", "v"), metav1.CreateOptions{})
	suite.Must(t, err)
	suite.Until(t, "it is in the cache", func(context.Context) (bool, error) {
		object, err := informer.Lister().ByNamespace(s.Namespace).Get("told")
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil && object.(*unstructured.Unstructured).GetUID() != "", err
	})
}

func metadataClient(t *testing.T, s *suite.Scene) {
	client, err := metadata.NewForConfig(metadata.ConfigFor(s.Config))
	suite.Must(t, err)
	maps := client.Resource(configMapsV1).Namespace(s.Namespace)
	_, err = s.Client.CoreV1().ConfigMaps(s.Namespace).Create(t.Context(), suite.ConfigMap("partly", "v", map[string]string{"part": "yes"}), metav1.CreateOptions{})
	suite.Must(t, err)
	one, err := maps.Get(t.Context(), "partly", metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, one.UID != "" && one.Labels["part"] == "yes", "%+v", one)
	list, err := maps.List(t.Context(), metav1.ListOptions{LabelSelector: "part"})
	suite.Must(t, err)
	suite.Want(t, len(list.Items) == 1 && list.Items[0].UID == one.UID && list.ResourceVersion != "", "%+v", list)
	patched, err := maps.Patch(t.Context(), "partly", types.StrategicMergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
	suite.Must(t, err)
	suite.Want(t, patched.Annotations["a"] == "b" && patched.ResourceVersion != one.ResourceVersion, "%+v", patched)
	suite.Must(t, maps.Delete(t.Context(), "partly", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &one.UID}}))
	_, err = maps.Get(t.Context(), "partly", metav1.GetOptions{})
	suite.Want(t, apierrors.IsNotFound(err), "%v", err)
}

func metadataInformer(t *testing.T, s *suite.Scene) {
	client, err := metadata.NewForConfig(s.Config)
	suite.Must(t, err)
	factory := metadatainformer.NewFilteredSharedInformerFactory(client, 0, s.Namespace, nil)
	informer, heard := factory.ForResource(configMapsV1), make(chan string, 100)
	_, err = informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(object any) { heard <- object.(*metav1.PartialObjectMetadata).Name },
	})
	suite.Must(t, err)
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	object, err := informer.Lister().ByNamespace(s.Namespace).Get("told")
	suite.Must(t, err)
	suite.Want(t, object.(*metav1.PartialObjectMetadata).UID != "", "%v", object)
	suite.Must(t, s.Client.CoreV1().ConfigMaps(s.Namespace).Delete(t.Context(), "told", metav1.DeleteOptions{}))
	suite.Want(t, <-heard == "told", "another was deleted")
}

func discovers(t *testing.T, s *suite.Scene) {
	config, wire := suite.Tap(s.Config)
	client, err := kubernetes.NewForConfig(config)
	suite.Must(t, err)
	groups, resources, err := client.Discovery().ServerGroupsAndResources()
	suite.Must(t, err)
	suite.Want(t, len(groups) > 10 && len(resources) > 10, "%d groups, %d group versions", len(groups), len(resources))
	asked := wire.Count("GET", "/api")
	suite.Want(t, asked == 2, "asked %d times, so not aggregated", asked)
	preferred, err := client.Discovery().ServerPreferredNamespacedResources()
	suite.Must(t, err)
	suite.Want(t, len(preferred) > 5, "%d", len(preferred))
	version, err := client.Discovery().ServerVersion()
	suite.Must(t, err)
	suite.Want(t, version.Major == "1" && version.Minor == "36", "%+v", version)
}

func maps(t *testing.T, s *suite.Scene) {
	client, err := kubernetes.NewForConfig(s.Config)
	suite.Must(t, err)
	cached := memory.NewMemCacheClient(client.Discovery())
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	mapping, err := mapper.RESTMapping(schema.GroupKind{Group: "apps", Kind: "StatefulSet"})
	suite.Must(t, err)
	suite.Want(t, mapping.Resource.Resource == "statefulsets" && mapping.Resource.Version == "v1" && mapping.Scope.Name() == meta.RESTScopeNameNamespace, "%+v", mapping)
	short := restmapper.NewShortcutExpander(mapper, cached, nil)
	for name, wanted := range map[string]string{"deploy": "deployments", "cm": "configmaps", "ing": "ingresses", "sa": "serviceaccounts", "hpa": "horizontalpodautoscalers"} {
		found, err := short.ResourceFor(schema.GroupVersionResource{Resource: name})
		suite.Must(t, err)
		suite.Want(t, found.Resource == wanted, "%s is %s", name, found.Resource)
	}
	_, err = mapper.RESTMapping(schema.GroupKind{Group: "example.com", Kind: "Nothing"})
	suite.Want(t, meta.IsNoMatchError(err), "%v", err)
	all, found := restmapper.NewDiscoveryCategoryExpander(cached).Expand("all")
	suite.Want(t, found && len(all) > 5, "%v", all)
}

func describes(t *testing.T, s *suite.Scene) {
	client, err := kubernetes.NewForConfig(s.Config)
	suite.Must(t, err)
	document, err := client.Discovery().OpenAPISchema()
	suite.Must(t, err)
	suite.Want(t, document.Swagger == "2.0" && len(document.Definitions.AdditionalProperties) > 300, "%s", document.Swagger)
	root := openapi3.NewRoot(client.Discovery().OpenAPIV3())
	versions, err := root.GroupVersions()
	suite.Must(t, err)
	suite.Want(t, len(versions) > 10, "%v", versions)
	spec, err := root.GVSpec(schema.GroupVersion{Group: "apps", Version: "v1"})
	suite.Must(t, err)
	deployment := spec.Components.Schemas["io.k8s.api.apps.v1.DeploymentSpec"]
	suite.Want(t, deployment != nil && len(deployment.Properties) == 8, "%+v", deployment)
}
