// Package manager runs an operator written with controller-runtime: over built-in kinds, as its authors would.
package manager

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"portolan.dev/e2e/clients/suite"
)

const lease = "berths.clients.portolan.dev"

// running is a manager, and the function that ends it as a SIGTERM would.
type running struct {
	ctrl.Manager
	stop func()
}

// leading is the manager that the checks look through; the first one, until it has handed over.
var leading, standby *running

func TestMain(m *testing.M) { suite.Main(m) }

func TestManager(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	suite.Run(t, "controller-runtime", []suite.Check{
		{Says: "two managers start, fill their caches, and one leads", Look: starts},
		{Says: "a berth gets a Deployment and a Service that it owns", Look: moors},
		{Says: "its pods get ready, and it says so", Look: ready},
		{Says: "a change is applied, what others set stays", Look: changes},
		{Says: "a changed Secret is noticed through an index", Look: secret},
		{Says: "what somebody deletes is made again", Look: repairs},
		{Says: "an event tells of it", Look: tells},
		{Says: "the cached client lists, the live one pages and counts", Look: reads},
		{Says: "the other manager leads when the first ends", Look: follows},
		{Says: "a deleted berth runs its finalizer, and all it owned is collected", Look: leaves},
	})
	for _, one := range []*running{leading, standby} {
		if one != nil {
			one.stop()
		}
	}
}

func launch(t *testing.T, s *suite.Scene, name string) *running {
	t.Helper()
	lasts, renews, retries := 5*time.Second, 3*time.Second, 200*time.Millisecond
	mgr, err := ctrl.NewManager(s.Config, ctrl.Options{
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{s.Namespace: {}}},
		// Services are watched as metadata: a second cache of whole ones could be behind when one is deleted.
		Client:           client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Service{}}}},
		Metrics:          server.Options{BindAddress: "0"},
		LeaderElection:   true,
		LeaderElectionID: lease, LeaderElectionNamespace: s.Namespace, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &lasts, RenewDeadline: &renews, RetryPeriod: &retries,
	})
	suite.Must(t, err)
	suite.Must(t, (&berths{Client: mgr.GetClient(), recorder: mgr.GetEventRecorder("berths"), name: name}).setUp(mgr))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	return &running{Manager: mgr, stop: func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s ended: %v", name, err)
		}
		ended <- nil
	}}
}

func starts(t *testing.T, s *suite.Scene) {
	leading = launch(t, s, "first")
	select {
	case <-leading.Elected():
	case <-time.After(suite.Patience):
		t.Fatal("the first manager was not elected")
	}
	standby = launch(t, s, "second")
	suite.Want(t, leading.GetCache().WaitForCacheSync(t.Context()) && standby.GetCache().WaitForCacheSync(t.Context()), "no cache")
	select {
	case <-standby.Elected():
		t.Fatal("both lead")
	case <-time.After(500 * time.Millisecond):
	}
}

func moors(t *testing.T, s *suite.Scene) {
	berth := suite.ConfigMap("pier", "", map[string]string{"berth": ""})
	berth.Namespace = s.Namespace
	berth.Data = map[string]string{"image": "registry.example/main:1", "replicas": "2", "secret": "papers"}
	suite.Must(t, leading.GetClient().Create(t.Context(), berth))
	unlabelled := suite.ConfigMap("rock", "", nil)
	unlabelled.Namespace = s.Namespace
	suite.Must(t, leading.GetClient().Create(t.Context(), unlabelled))
	for _, owned := range []client.Object{&appsv1.Deployment{}, &corev1.Service{}} {
		becomes(t, s, owned, "pier", func() bool {
			owner := metav1.GetControllerOf(owned)
			return owner != nil && owner.UID == berth.UID && owner.Kind == "ConfigMap" && *owner.BlockOwnerDeletion
		})
	}
	becomes(t, s, berth, "pier", func() bool { return len(berth.Finalizers) == 1 && berth.Finalizers[0] == finalizer })
	suite.Want(t, client.IgnoreNotFound(live(t, s, &appsv1.Deployment{}, "rock")) == nil, "the rock was moored at")
}

// live reads past the cache.
func live(t *testing.T, s *suite.Scene, object client.Object, name string) error {
	return leading.GetAPIReader().Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: name}, object)
}

// becomes reads past the cache until the object is there and as it should be.
func becomes(t *testing.T, s *suite.Scene, object client.Object, name string, right func() bool) {
	t.Helper()
	suite.Until(t, name, func(context.Context) (bool, error) {
		err := live(t, s, object, name)
		return err == nil && right(), client.IgnoreNotFound(err)
	})
}

func ready(t *testing.T, s *suite.Scene) {
	var berth corev1.ConfigMap
	becomes(t, s, &berth, "pier", func() bool { return berth.Annotations[readyKey] == "2/2" })
}

func changes(t *testing.T, s *suite.Scene) {
	mine := leading.GetClient()
	var deployment appsv1.Deployment
	suite.Must(t, live(t, s, &deployment, "pier"))
	before := deployment.DeepCopy()
	metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, "example.com/note", "by hand")
	suite.Must(t, mine.Patch(t.Context(), &deployment, client.StrategicMergeFrom(before), client.FieldOwner("hand")))
	var berth corev1.ConfigMap
	suite.Must(t, live(t, s, &berth, "pier"))
	changed := berth.DeepCopy()
	changed.Data["image"], changed.Data["replicas"] = "registry.example/main:2", "3"
	suite.Must(t, mine.Patch(t.Context(), changed, client.MergeFrom(&berth)))
	becomes(t, s, &deployment, "pier", func() bool {
		return *deployment.Spec.Replicas == 3 && deployment.Spec.Template.Spec.Containers[0].Image == "registry.example/main:2"
	})
	suite.Want(t, deployment.Annotations["example.com/note"] == "by hand", "%v", deployment.Annotations)
	becomes(t, s, &berth, "pier", func() bool { return berth.Annotations[readyKey] == "3/3" })
	// A reconcile that changes nothing may not make events that lead to the next one.
	settled := ""
	suite.Until(t, "it settles", func(ctx context.Context) (bool, error) {
		before := settled
		time.Sleep(time.Second)
		err := live(t, s, &deployment, "pier")
		settled = deployment.ResourceVersion
		return settled == before, err
	})
}

func secret(t *testing.T, s *suite.Scene) {
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "papers", Namespace: s.Namespace}, StringData: map[string]string{"password": "1"}}
	suite.Must(t, leading.GetClient().Create(t.Context(), object))
	var deployment appsv1.Deployment
	sum := func() string { return deployment.Spec.Template.Annotations[sumKey] }
	becomes(t, s, &deployment, "pier", func() bool { return sum() != "none" && sum() != "" })
	first := sum()
	object.StringData = map[string]string{"password": "2"}
	suite.Must(t, leading.GetClient().Update(t.Context(), object))
	becomes(t, s, &deployment, "pier", func() bool { return sum() != first })
}

func repairs(t *testing.T, s *suite.Scene) {
	var deployment appsv1.Deployment
	suite.Must(t, live(t, s, &deployment, "pier"))
	old := deployment.UID
	background := client.PropagationPolicy(metav1.DeletePropagationBackground)
	suite.Must(t, leading.GetClient().Delete(t.Context(), &deployment, background, client.Preconditions{UID: &old}))
	becomes(t, s, &deployment, "pier", func() bool { return deployment.UID != old && deployment.Status.ReadyReplicas == 3 })
	var service corev1.Service
	suite.Must(t, live(t, s, &service, "pier"))
	gone := service.UID
	suite.Must(t, leading.GetClient().Delete(t.Context(), &service))
	becomes(t, s, &service, "pier", func() bool { return service.UID != gone && service.Spec.ClusterIP != "" })
}

func tells(t *testing.T, s *suite.Scene) {
	suite.Until(t, "an event", func(ctx context.Context) (bool, error) {
		list, err := s.Client.EventsV1().Events(s.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "regarding.name=pier,reason=Moored"})
		if err != nil || len(list.Items) == 0 {
			return false, err
		}
		one := list.Items[0]
		return strings.HasPrefix(one.Note, "service pier made by first") && one.Related.Kind == "Service", nil
	})
}

func reads(t *testing.T, s *suite.Scene) {
	var cached corev1.ConfigMapList
	suite.Must(t, leading.GetClient().List(t.Context(), &cached, client.MatchingFields{bySecret: "papers"}, client.HasLabels{"berth"}))
	suite.Want(t, len(cached.Items) == 1 && cached.Items[0].Name == "pier", "%d", len(cached.Items))
	var page corev1.ConfigMapList
	suite.Must(t, leading.GetAPIReader().List(t.Context(), &page, client.InNamespace(s.Namespace), client.Limit(1)))
	suite.Want(t, len(page.Items) == 1 && page.Continue != "", "%+v", page.ListMeta)
	partial := &metav1.PartialObjectMetadata{}
	partial.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	suite.Must(t, live(t, s, partial, "pier"))
	suite.Want(t, partial.UID != "" && partial.Kind == "Deployment", "%+v", partial)
	scale := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "pier", Namespace: s.Namespace}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"collisionCount":7}}`))
	suite.Must(t, leading.GetClient().Status().Patch(t.Context(), scale, patch))
	suite.Want(t, scale.Status.CollisionCount != nil && *scale.Status.CollisionCount == 7, "%+v", scale.Status)
}

func follows(t *testing.T, s *suite.Scene) {
	leading.stop()
	select {
	case <-standby.Elected():
	case <-time.After(suite.Patience):
		t.Fatal("nobody leads")
	}
	leading, standby = standby, nil
	var berth corev1.ConfigMap
	suite.Must(t, live(t, s, &berth, "pier"))
	berth.Data["replicas"] = "1"
	suite.Must(t, leading.GetClient().Update(t.Context(), &berth))
	becomes(t, s, &berth, "pier", func() bool { return berth.Annotations[readyKey] == "1/1" })
}

func leaves(t *testing.T, s *suite.Scene) {
	berth := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "pier", Namespace: s.Namespace}}
	suite.Must(t, leading.GetClient().Delete(t.Context(), berth))
	becomes(t, s, &corev1.ConfigMap{}, "pier-left", func() bool { return true })
	suite.Gone(t, "the berth", s.Client.CoreV1().ConfigMaps(s.Namespace).Get, "pier")
	suite.Gone(t, "its Deployment", s.Client.AppsV1().Deployments(s.Namespace).Get, "pier")
	suite.Gone(t, "its Service", s.Client.CoreV1().Services(s.Namespace).Get, "pier")
	suite.Until(t, "its pods are gone", func(ctx context.Context) (bool, error) {
		pods, err := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "berth=pier"})
		return err == nil && len(pods.Items) == 0, err
	})
}
