// Package fleet runs an operator written with controller-runtime: over a kind of its own in two versions, with webhooks that
// fill in, refuse and convert.
package fleet

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"portolan.dev/e2e/clients/suite"
)

const loopback = "127.0.0.1"

// live reads and writes past any cache.
var live client.WithWatch

// served is where the webhooks are, and stop ends the operator as a SIGTERM would.
var (
	served hooks
	stop   = func() {}
)

func TestMain(m *testing.M) { suite.Main(m) }

func TestFleet(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	register(scheme.Scheme)
	suite.Must(t, apiextensionsv1.AddToScheme(scheme.Scheme))
	t.Cleanup(func() { stop() })
	suite.Run(t, "fleet", []suite.Check{
		{Says: "the kind is defined, and served at once", Look: defines},
		{Says: "the operator starts with its webhooks", Look: starts},
		{Says: "a ship of v1 is filled in, made, and says so", Look: sails},
		{Says: "a ship that is wrong is refused, with warnings and by its schema", Look: refuses},
		{Says: "a ship of v1alpha1 is converted, and back", Look: converts},
		{Says: "what cannot be converted says why", Look: cannot},
		{Says: "a watch of v1alpha1 sees what is written as v1", Look: watches},
		{Says: "ships move to the storage version by being written", Look: migrates},
		{Says: "the scale of a ship is its crew", Look: scales},
		{Says: "what somebody deletes is made again", Look: repairs},
		{Says: "a deleted ship runs its finalizer, and all it owned is collected", Look: leaves},
		{Says: "the definition goes with what is left of its ships", Look: ends},
	})
}

// eventually looks past caches until an object is as it should be.
func eventually(t *testing.T, s *suite.Scene, object client.Object, name string, right func() bool) {
	t.Helper()
	suite.Until(t, name, func(ctx context.Context) (bool, error) {
		err := live.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, object)
		return err == nil && right(), client.IgnoreNotFound(err)
	})
}

func gone(t *testing.T, s *suite.Scene, object client.Object, name string) {
	t.Helper()
	suite.Until(t, name+" is gone", func(ctx context.Context) (bool, error) {
		err := live.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, object)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

func named(s *suite.Scene, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: s.Namespace}
}

func defines(t *testing.T, s *suite.Scene) {
	made, key, err := cert.GenerateSelfSignedCertKey(loopback, []net.IP{net.ParseIP(loopback)}, nil)
	suite.Must(t, err)
	dir := t.TempDir()
	suite.Must(t, os.WriteFile(filepath.Join(dir, "tls.crt"), made, 0o600))
	suite.Must(t, os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))
	free, err := net.Listen("tcp", loopback+":0")
	suite.Must(t, err)
	port := free.Addr().(*net.TCPAddr).Port
	suite.Must(t, free.Close())
	served = hooks{base: "https://" + net.JoinHostPort(loopback, strconv.Itoa(port)), ca: made}
	live, err = client.NewWithWatch(s.Config, client.Options{Scheme: scheme.Scheme})
	suite.Must(t, err)

	suite.Must(t, live.Create(t.Context(), served.definition()))
	var definition apiextensionsv1.CustomResourceDefinition
	suite.Until(t, "the definition", func(ctx context.Context) (bool, error) {
		err := live.Get(ctx, client.ObjectKey{Name: "ships." + group}, &definition)
		for _, condition := range definition.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return true, err
			}
		}
		return false, err
	})
	suite.Want(t, strings.Join(definition.Status.StoredVersions, " ") == "v1alpha1", "%v", definition.Status.StoredVersions)
	suite.Must(t, launch(s, dir, port))
}

// launch makes the operator; it is started by the next check.
func launch(s *suite.Scene, dir string, port int) error {
	mgr, err := ctrl.NewManager(rest.CopyConfig(s.Config), ctrl.Options{
		Scheme:        scheme.Scheme,
		Cache:         cache.Options{DefaultNamespaces: map[string]cache.Config{s.Namespace: {}}},
		Metrics:       server.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: loopback, Port: port, CertDir: dir}),
	})
	if err != nil {
		return err
	}
	if err := (&ships{Client: mgr.GetClient()}).setUp(mgr); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = func() {
		cancel()
		<-ended
		stop = func() {}
	}
	// The certificate is read while the webhooks start.
	for start := time.Now(); mgr.GetWebhookServer().StartedChecker()(nil) != nil; time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > suite.Patience {
			return context.DeadlineExceeded
		}
	}
	return nil
}

func starts(t *testing.T, _ *suite.Scene) {
	suite.Must(t, live.Create(t.Context(), served.mutating()))
	suite.Must(t, live.Create(t.Context(), served.validating()))
}

func sails(t *testing.T, s *suite.Scene) {
	ship := &Ship{ObjectMeta: named(s, "sea-star"), Spec: ShipSpec{Masts: 2}}
	suite.Must(t, live.Create(t.Context(), ship))
	suite.Want(t, ship.Spec.Crew == 2, "a webhook hires the crew: %+v", ship.Spec)
	suite.Want(t, ship.Spec.Port == "harbour", "the schema has a default: %+v", ship.Spec)
	eventually(t, s, ship, "sea-star", func() bool {
		return ship.Status.Ready == 2 && meta.IsStatusConditionTrue(ship.Status.Conditions, "Manned")
	})
	suite.Want(t, ship.Generation == 1 && ship.Status.ObservedGeneration == 1, "%+v", ship)
	var deployment appsv1.Deployment
	eventually(t, s, &deployment, "sea-star", func() bool { return metav1.IsControlledBy(&deployment, ship) })
}

func refuses(t *testing.T, s *suite.Scene) {
	many := &Ship{ObjectMeta: named(s, "ark"), Spec: ShipSpec{Masts: 1, Crew: 99}}
	err := live.Create(t.Context(), many)
	suite.Want(t, apierrors.IsForbidden(err), "%v", err)
	expected := `admission webhook "vship.fleet.portolan.dev.example" denied the request: a crew of 99 is too many`
	suite.Want(t, err.Error() == expected, "%v", err)
	var ship Ship
	suite.Must(t, live.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: "sea-star"}, &ship))
	ship.Spec.Port = "elsewhere"
	suite.Want(t, apierrors.IsForbidden(live.Update(t.Context(), &ship)), "the port changed")
	suite.Want(t, apierrors.IsInvalid(live.Create(t.Context(), &Ship{ObjectMeta: named(s, "ghost"), Spec: ShipSpec{Crew: -1, Masts: 1}})), "a crew of ghosts")
	rigged := &OldShip{TypeMeta: metav1.TypeMeta{APIVersion: alpha.String(), Kind: "Ship"}, ObjectMeta: named(s, "odd"), Spec: OldShipSpec{Rig: "rocket"}}
	err = live.Create(t.Context(), rigged)
	// It is converted for the webhooks before its schema is looked at.
	expected = `conversion webhook for fleet.portolan.dev.example/v1alpha1, Kind=Ship failed: nobody knows the rig "rocket"`
	suite.Want(t, err != nil && strings.Contains(err.Error(), expected), "%v", err)
	wild := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1.String(), "kind": "Ship", "metadata": map[string]any{"name": "wild", "namespace": s.Namespace},
		"spec": map[string]any{"masts": int64(1), "cannons": int64(40)},
	}}
	suite.Must(t, live.Create(t.Context(), wild))
	_, found, _ := unstructured.NestedFieldNoCopy(wild.Object, "spec", "cannons")
	suite.Want(t, !found, "what the schema does not know stays: %v", wild.Object)
	suite.Must(t, live.Delete(t.Context(), wild))
	gone(t, s, &Ship{}, "wild")
}

func converts(t *testing.T, s *suite.Scene) {
	old := &OldShip{ObjectMeta: named(s, "old-maid"), Spec: OldShipSpec{Rig: "barque", Crew: 1}}
	suite.Must(t, live.Create(t.Context(), old))
	suite.Want(t, old.Spec.Rig == "barque" && old.Spec.Crew == 1, "%+v", old.Spec)
	var ship Ship
	eventually(t, s, &ship, "old-maid", func() bool { return ship.Status.Ready == 1 })
	suite.Want(t, ship.Spec.Masts == 3 && ship.UID == old.UID, "%+v", ship)
	var list OldShipList
	suite.Must(t, live.List(t.Context(), &list, client.InNamespace(s.Namespace)))
	suite.Want(t, len(list.Items) == 2 && list.Items[1].Spec.Rig == "brig", "%+v", list.Items)
	for _, one := range list.Items {
		suite.Want(t, one.APIVersion == alpha.String(), "%s", one.APIVersion)
	}
	before := list.Items[0].DeepCopyObject().(*OldShip)
	changed := list.Items[0].DeepCopyObject().(*OldShip)
	changed.Spec.Rig = "sloop"
	suite.Must(t, live.Patch(t.Context(), changed, client.MergeFrom(before)))
	eventually(t, s, &ship, "old-maid", func() bool { return ship.Spec.Masts == 1 })
}

func cannot(t *testing.T, s *suite.Scene) {
	tall := &Ship{ObjectMeta: named(s, "tall"), Spec: ShipSpec{Masts: 7}}
	err := live.Create(t.Context(), tall)
	suite.Want(t, apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && err != nil, "%v", err)
	expected := "conversion webhook for fleet.portolan.dev.example/v1, Kind=Ship failed: "
	suite.Want(t, strings.HasPrefix(err.Error(), expected), "%v", err)
	suite.Want(t, strings.Contains(err.Error(), "7 masts are too many for v1alpha1"), "%v", err)
}

func watches(t *testing.T, s *suite.Scene) {
	watching, err := live.Watch(t.Context(), &OldShipList{}, client.InNamespace(s.Namespace), client.MatchingFields{"metadata.name": "sea-star"})
	suite.Must(t, err)
	defer watching.Stop()
	var ship Ship
	suite.Must(t, live.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: "sea-star"}, &ship))
	ship.Spec.Masts = 3
	suite.Must(t, live.Update(t.Context(), &ship))
	for event := range watching.ResultChan() {
		seen, is := event.Object.(*OldShip)
		suite.Want(t, is, "%+v", event)
		if seen.Spec.Rig == "barque" {
			return
		}
	}
	t.Fatal("the watch ended")
}

func migrates(t *testing.T, s *suite.Scene) {
	var definition apiextensionsv1.CustomResourceDefinition
	suite.Must(t, live.Get(t.Context(), client.ObjectKey{Name: "ships." + group}, &definition))
	for at := range definition.Spec.Versions {
		definition.Spec.Versions[at].Storage = definition.Spec.Versions[at].Name == v1.Version
	}
	suite.Must(t, live.Update(t.Context(), &definition))
	suite.Want(t, strings.Join(definition.Status.StoredVersions, " ") == "v1alpha1 v1", "%v", definition.Status.StoredVersions)
	var list ShipList
	suite.Must(t, live.List(t.Context(), &list, client.InNamespace(s.Namespace)))
	suite.Want(t, len(list.Items) == 2, "%+v", list.Items)
	for at := range list.Items {
		ship := &list.Items[at]
		note := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"moved":"yes"}}}`))
		suite.Must(t, live.Patch(t.Context(), ship, note))
	}
	definition.Status.StoredVersions = []string{v1.Version}
	suite.Must(t, live.Status().Update(t.Context(), &definition))
	// A server may know of the change a little later.
	suite.Until(t, "a ship that v1alpha1 has no word for", func(ctx context.Context) (bool, error) {
		err := live.Create(ctx, &Ship{ObjectMeta: named(s, "tall"), Spec: ShipSpec{Masts: 7}})
		if err != nil && strings.Contains(err.Error(), "7 masts are too many for v1alpha1") {
			return false, nil
		}
		return err == nil, err
	})
	err := live.List(t.Context(), &OldShipList{}, client.InNamespace(s.Namespace))
	suite.Want(t, err != nil && strings.Contains(err.Error(), "7 masts are too many for v1alpha1"), "%v", err)
	suite.Must(t, live.Delete(t.Context(), &Ship{ObjectMeta: named(s, "tall")}))
	gone(t, s, &Ship{}, "tall")
}

func scales(t *testing.T, s *suite.Scene) {
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":4}}`))
	suite.Must(t, live.SubResource("scale").Patch(t.Context(), &Ship{ObjectMeta: named(s, "sea-star")}, patch))
	var ship Ship
	eventually(t, s, &ship, "sea-star", func() bool { return ship.Spec.Crew == 4 && ship.Status.Ready == 4 })
}

func repairs(t *testing.T, s *suite.Scene) {
	var deployment appsv1.Deployment
	suite.Must(t, live.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: "sea-star"}, &deployment))
	old := deployment.UID
	suite.Must(t, live.Delete(t.Context(), &deployment, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	eventually(t, s, &deployment, "sea-star", func() bool { return deployment.UID != old })
}

func leaves(t *testing.T, s *suite.Scene) {
	flagged := &Ship{ObjectMeta: named(s, "sea-star")}
	label := func(value string) client.Patch {
		return client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"flagship":"`+value+`"}}}`))
	}
	suite.Must(t, live.Patch(t.Context(), flagged, label("yes")))
	err := live.Delete(t.Context(), flagged)
	suite.Want(t, apierrors.IsForbidden(err), "%v", err)
	suite.Must(t, live.Patch(t.Context(), flagged, label("no")))
	suite.Must(t, live.Delete(t.Context(), flagged))
	eventually(t, s, &corev1.ConfigMap{}, "sea-star-left", func() bool { return true })
	gone(t, s, &Ship{}, "sea-star")
	gone(t, s, &appsv1.Deployment{}, "sea-star")
}

func ends(t *testing.T, s *suite.Scene) {
	suite.Must(t, live.Delete(t.Context(), served.definition()))
	gone(t, s, &appsv1.Deployment{}, "old-maid")
	suite.Until(t, "the definition is gone", func(ctx context.Context) (bool, error) {
		err := live.Get(ctx, client.ObjectKey{Name: "ships." + group}, &apiextensionsv1.CustomResourceDefinition{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	err := live.List(t.Context(), &ShipList{}, client.InNamespace(s.Namespace))
	suite.Want(t, apierrors.IsNotFound(err) || meta.IsNoMatchError(err), "%v", err)
	stop()
	suite.Must(t, live.Delete(t.Context(), served.mutating()))
	suite.Must(t, live.Delete(t.Context(), served.validating()))
}
