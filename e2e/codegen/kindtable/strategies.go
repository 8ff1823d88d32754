package main

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	crdstore "k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	apiservicestore "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"
	"k8s.io/kubernetes/pkg/apis/batch"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/controlplane/apiserver"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	admissionregistrationrest "k8s.io/kubernetes/pkg/registry/admissionregistration/rest"
	appsrest "k8s.io/kubernetes/pkg/registry/apps/rest"
	autoscalingrest "k8s.io/kubernetes/pkg/registry/autoscaling/rest"
	batchrest "k8s.io/kubernetes/pkg/registry/batch/rest"
	certificatesrest "k8s.io/kubernetes/pkg/registry/certificates/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	endpointsstore "k8s.io/kubernetes/pkg/registry/core/endpoint/storage"
	limitrangestore "k8s.io/kubernetes/pkg/registry/core/limitrange/storage"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
	pvstore "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	pvcstore "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	podtemplatestore "k8s.io/kubernetes/pkg/registry/core/podtemplate/storage"
	controllerstore "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	networkingrest "k8s.io/kubernetes/pkg/registry/networking/rest"
	noderest "k8s.io/kubernetes/pkg/registry/node/rest"
	policyrest "k8s.io/kubernetes/pkg/registry/policy/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	resourcerest "k8s.io/kubernetes/pkg/registry/resource/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	storagerest "k8s.io/kubernetes/pkg/registry/storage/rest"
	svmrest "k8s.io/kubernetes/pkg/registry/storagemigration/rest"
)

// addStrategies asks the real registries how they treat writes.
func (t *table) addStrategies() error {
	stores, err := registries()
	if err != nil {
		return err
	}
	for _, kind := range t.Kinds {
		resource := schema.GroupResource{Group: kind.Group, Resource: kind.Resource}
		store, ok := stores[resource]
		if !ok {
			if kind.List != "" && kind.Resource != "componentstatuses" {
				return fmt.Errorf("no registry for %v", resource)
			}
			continue // reviews and bindings are not stored
		}
		kind.UnconditionalUpdate = store.UpdateStrategy.AllowUnconditionalUpdate()
		kind.CreateOnUpdate = store.UpdateStrategy.AllowCreateOnUpdate()
		if kind.Generation, err = setsGeneration(store); err != nil {
			return fmt.Errorf("%v: %w", resource, err)
		}
	}
	return nil
}

// setsGeneration prepares an empty object for its creation and looks whether it got a generation. Strategies that go on to
// read what an empty object lacks have set it before.
func setsGeneration(store *genericregistry.Store) (found bool, err error) {
	object := store.NewFunc()
	if job, ok := object.(*batch.Job); ok {
		job.Spec.ManualSelector = new(bool) // defaulted before any strategy sees a job
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return false, err
	}
	defer func() {
		found = accessor.GetGeneration() == 1
		if cause := recover(); cause != nil && !found {
			err = fmt.Errorf("preparing an empty object: %v", cause)
		}
	}()
	ctx := request.WithNamespace(context.Background(), "default")
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{Verb: "create"})
	store.CreateStrategy.PrepareForCreate(ctx, object)
	return false, nil
}

// noStorage hands out registries that have nowhere to store.
type noStorage struct{}

func (noStorage) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	return generic.RESTOptions{
		StorageConfig: &storagebackend.ConfigForResource{GroupResource: resource},
		Decorator: func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object,
			func() runtime.Object, storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers,
		) (storage.Interface, factory.DestroyFunc, error) {
			return nil, func() {}, nil
		},
		DeleteCollectionWorkers: 1,
		ResourcePrefix:          resource.Resource,
	}, nil
}

func registries() (map[schema.GroupResource]*genericregistry.Store, error) {
	found := map[schema.GroupResource]*genericregistry.Store{}
	add := func(group, resource string, from rest.Storage) {
		if store := storeIn(reflect.ValueOf(from)); store != nil {
			found[schema.GroupResource{Group: group, Resource: resource}] = store
		}
	}
	client, err := kubernetes.NewForConfig(&restclient.Config{})
	if err != nil {
		return nil, err
	}
	anyone := authorizerfactory.NewAlwaysAllowAuthorizer()
	enabled := controlplane.DefaultAPIResourceConfigSource()
	for _, provider := range []apiserver.RESTStorageProvider{
		autoscalingrest.RESTStorageProvider{}, batchrest.RESTStorageProvider{}, certificatesrest.RESTStorageProvider{Authorizer: anyone},
		coordinationrest.RESTStorageProvider{}, discoveryrest.StorageProvider{}, networkingrest.RESTStorageProvider{},
		noderest.RESTStorageProvider{}, policyrest.RESTStorageProvider{}, rbacrest.RESTStorageProvider{Authorizer: anyone},
		schedulingrest.RESTStorageProvider{}, storagerest.RESTStorageProvider{}, svmrest.RESTStorageProvider{},
		flowcontrolrest.RESTStorageProvider{}, appsrest.StorageProvider{}, admissionregistrationrest.RESTStorageProvider{Authorizer: anyone, DiscoveryClient: client.Discovery()},
		eventsrest.RESTStorageProvider{}, resourcerest.RESTStorageProvider{Authorizer: anyone, NamespaceClient: adminNamespaces{}}, &coreProvider{},
	} {
		group, err := provider.NewRESTStorage(enabled, noStorage{})
		if err != nil {
			return nil, fmt.Errorf("%T: %w", provider, err)
		}
		for _, resources := range group.VersionedResourcesStorageMap {
			for resource, storage := range resources {
				add(provider.GroupName(), resource, storage)
			}
		}
	}
	crds, err := crdstore.NewREST(apiextensionsserver.Scheme, noStorage{})
	if err != nil {
		return nil, err
	}
	add("apiextensions.k8s.io", "customresourcedefinitions", crds)
	add("apiextensions.k8s.io", "customresourcedefinitions/status", crdstore.NewStatusREST(apiextensionsserver.Scheme, crds))
	services := apiservicestore.NewREST(aggregatorscheme.Scheme, noStorage{})
	add("apiregistration.k8s.io", "apiservices", services)
	add("apiregistration.k8s.io", "apiservices/status", apiservicestore.NewStatusREST(aggregatorscheme.Scheme, services))
	return found, nil
}

// adminNamespaces says of every namespace that claims in it may be for administrators.
type adminNamespaces struct {
	corev1client.NamespaceInterface
}

func (adminNamespaces) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	labels := map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, nil
}

// storeIn finds the generic store that a registry wraps.
func storeIn(value reflect.Value) *genericregistry.Store {
	for (value.Kind() == reflect.Pointer || value.Kind() == reflect.Interface) && !value.IsNil() {
		if value.CanInterface() {
			if store, ok := value.Interface().(*genericregistry.Store); ok {
				return store
			}
		}
		value = value.Elem()
	}
	if value.Kind() != reflect.Struct {
		return nil
	}
	if field := value.FieldByName("Store"); field.IsValid() {
		return storeIn(field)
	}
	if field := value.FieldByName("store"); field.IsValid() { // the namespaces' registry hides it
		return storeIn(reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem())
	}
	for i := range value.NumField() {
		if field := value.Type().Field(i); field.Anonymous && field.IsExported() {
			if store := storeIn(value.Field(i)); store != nil {
				return store
			}
		}
	}
	return nil
}

// coreProvider stands in for the core group's own provider, which wants a running server.
type coreProvider struct{ corerest.GenericConfig }

func (*coreProvider) GroupName() string { return "" }

func (p *coreProvider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (server.APIGroupInfo, error) {
	group, err := p.GenericConfig.NewRESTStorage(enabled, getter)
	if err != nil {
		return group, err
	}
	more, err := p.stores()
	for name, storage := range more {
		group.VersionedResourcesStorageMap["v1"][name] = storage
	}
	return group, err
}

func (p *coreProvider) stores() (map[string]rest.Storage, error) {
	out := map[string]rest.Storage{}
	var first error
	note := func(name string, storage rest.Storage, err error) {
		if err != nil && first == nil {
			first = fmt.Errorf("%s: %w", name, err)
		}
		out[name] = storage
	}
	templates, err := podtemplatestore.NewREST(noStorage{})
	note("podtemplates", templates, err)
	limits, err := limitrangestore.NewREST(noStorage{})
	note("limitranges", limits, err)
	volumes, volumeStatus, err := pvstore.NewREST(noStorage{})
	note("persistentvolumes", volumes, err)
	note("persistentvolumes/status", volumeStatus, err)
	claims, claimStatus, err := pvcstore.NewREST(noStorage{})
	note("persistentvolumeclaims", claims, err)
	note("persistentvolumeclaims/status", claimStatus, err)
	endpoints, err := endpointsstore.NewREST(noStorage{})
	note("endpoints", endpoints, err)
	nodes, err := nodestore.NewStorage(noStorage{}, kubeletclient.KubeletClientConfig{}, http.DefaultTransport)
	if err != nil {
		return nil, err
	}
	note("nodes", nodes.Node, nil)
	note("nodes/status", nodes.Status, nil)
	pods, err := podstore.NewStorage(noStorage{}, nil, nil, nil, nil)
	if err != nil {
		return nil, err
	}
	note("pods", pods.Pod, nil)
	note("pods/status", pods.Status, nil)
	note("pods/ephemeralcontainers", pods.EphemeralContainers, nil)
	note("pods/resize", pods.Resize, nil)
	controllers, err := controllerstore.NewStorage(noStorage{})
	if err != nil {
		return nil, err
	}
	note("replicationcontrollers", controllers.Controller, nil)
	note("replicationcontrollers/status", controllers.Status, nil)
	addresses := map[api.IPFamily]ipallocator.Interface{api.IPv4Protocol: anyAddress{}}
	services, serviceStatus, _, err := servicestore.NewREST(noStorage{}, api.IPv4Protocol, addresses, anyPort{}, endpoints, pods.Pod, nil)
	note("services", services, err)
	note("services/status", serviceStatus, err)
	return out, first
}
