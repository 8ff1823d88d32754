package clientgo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"portolan.dev/e2e/clients/suite"
)

func TestInformers(t *testing.T) {
	suite.Run(t, "client-go-informers", []suite.Check{
		{Says: "a shared informer fills its cache by one streamed list", Look: streamedList},
		{Says: "handlers hear of every change, and of leaving a selector", Look: handlers},
		{Says: "a controller with a work queue catches up with 100 objects", Look: queue},
		{Says: "an informer whose connection is cut misses nothing", Look: cut},
		{Says: "sixty watches share one connection, and each hears", Look: manyWatches},
	})
}

// seeded makes ConfigMaps `<prefix>-0…` that carry the label `set=<prefix>`.
func seeded(t *testing.T, s *suite.Scene, prefix string, count int) {
	t.Helper()
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for number := worker; number < count; number += 4 {
				object := suite.ConfigMap(fmt.Sprintf("%s-%03d", prefix, number), "0", map[string]string{"set": prefix})
				if _, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

// factory gives informers over protobuf on a wire of their own, for the objects with this label.
func factory(t *testing.T, s *suite.Scene, selector string) (informers.SharedInformerFactory, *suite.Wire) {
	t.Helper()
	config, wire := suite.Tap(suite.Protobuf(s.Config))
	client, err := kubernetes.NewForConfig(config)
	suite.Must(t, err)
	tweak := informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector })
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(s.Namespace), tweak), wire
}

func start(t *testing.T, factory informers.SharedInformerFactory) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), suite.Patience)
	defer cancel()
	factory.Start(t.Context().Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		suite.Want(t, synced, "%s is not synced", kind)
	}
}

func streamedList(t *testing.T, s *suite.Scene) {
	seeded(t, s, "stream", 30)
	factory, wire := factory(t, s, "set=stream")
	maps := factory.Core().V1().ConfigMaps()
	byData := func(object any) ([]string, error) { return []string{object.(*corev1.ConfigMap).Data["k"]}, nil }
	suite.Must(t, maps.Informer().AddIndexers(cache.Indexers{"data": byData}))
	factory.Apps().V1().Deployments().Informer()
	start(t, factory)
	all, err := maps.Lister().ConfigMaps(s.Namespace).List(labels.Everything())
	suite.Must(t, err)
	suite.Want(t, len(all) == 30, "%d in the cache", len(all))
	indexed, err := maps.Informer().GetIndexer().ByIndex("data", "0")
	suite.Must(t, err)
	suite.Want(t, len(indexed) == 30, "%d in the index", len(indexed))
	// The reflector falls back to a plain list when a server does not stream: both would then be here.
	streamed, plain := wire.Count("GET", "configmaps?allowWatchBookmarks=true"), wire.Count("GET", "configmaps?labelSelector")
	suite.Want(t, streamed == 1 && plain == 0 && wire.Count("GET", "sendInitialEvents=true") == 2, "%d streamed, %d plain", streamed, plain)
}

func handlers(t *testing.T, s *suite.Scene) {
	factory, _ := factory(t, s, "set=heard")
	heard := make(chan string, 100)
	name := func(object any) string { return object.(*corev1.ConfigMap).Name }
	_, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { heard <- "add " + name(object) },
		UpdateFunc: func(_, object any) { heard <- "update " + name(object) + " " + object.(*corev1.ConfigMap).Data["k"] },
		DeleteFunc: func(object any) { heard <- "delete " + name(object) },
	})
	suite.Must(t, err)
	start(t, factory)
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace)
	patch := func(name, body string) {
		_, err := maps.Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
		suite.Must(t, err)
	}
	seeded(t, s, "heard", 1)
	patch("heard-000", `{"data":{"k":"1"}}`)
	patch("heard-000", `{"metadata":{"labels":{"set":"elsewhere"}}}`)
	patch("heard-000", `{"data":{"k":"2"}}`)
	patch("heard-000", `{"metadata":{"labels":{"set":"heard"}}}`)
	suite.Must(t, maps.Delete(t.Context(), "heard-000", metav1.DeleteOptions{}))
	for _, wanted := range []string{"add heard-000", "update heard-000 1", "delete heard-000", "add heard-000", "delete heard-000"} {
		select {
		case got := <-heard:
			suite.Want(t, got == wanted, "heard %q, expected %q", got, wanted)
		case <-time.After(suite.Patience):
			t.Fatalf("never heard %q", wanted)
		}
	}
}

// queue runs the controller that every book on Kubernetes starts with: keys, workers, and a second try after an error.
func queue(t *testing.T, s *suite.Scene) {
	const count = 100
	keys := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	factory, _ := factory(t, s, "set=queue")
	informer := factory.Core().V1().ConfigMaps()
	add := func(object any) {
		key, _ := cache.MetaNamespaceKeyFunc(object)
		keys.Add(key)
	}
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, object any) { add(object) }})
	suite.Must(t, err)
	start(t, factory)
	maps, failedOnce := s.Client.CoreV1().ConfigMaps(s.Namespace), sync.Map{}
	reconcile := func(key string) error {
		_, name, err := cache.SplitMetaNamespaceKey(key)
		if err != nil {
			return err
		}
		if _, again := failedOnce.LoadOrStore(key, true); !again {
			return errors.New("the first try fails")
		}
		seen, err := informer.Lister().ConfigMaps(s.Namespace).Get(name)
		if err != nil || seen.Data["k"] == "done" {
			return err
		}
		seen = seen.DeepCopy()
		seen.Data["k"] = "done"
		_, err = maps.Update(t.Context(), seen, metav1.UpdateOptions{})
		return err
	}
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() { work(keys, reconcile) })
	}
	seeded(t, s, "queue", count)
	suite.Until(t, "everything is done", func(ctx context.Context) (bool, error) {
		all, err := informer.Lister().List(labels.Everything())
		done := 0
		for _, one := range all {
			if one.Data["k"] == "done" {
				done++
			}
		}
		return done == count, err
	})
	keys.ShutDown()
	workers.Wait()
}

func work(keys workqueue.TypedRateLimitingInterface[string], reconcile func(string) error) {
	for {
		key, over := keys.Get()
		if over {
			return
		}
		if err := reconcile(key); err != nil {
			keys.AddRateLimited(key)
		} else {
			keys.Forget(key)
		}
		keys.Done(key)
	}
}

func cut(t *testing.T, s *suite.Scene) {
	seeded(t, s, "cut", 10)
	factory, wire := factory(t, s, "set=cut")
	maps := factory.Core().V1().ConfigMaps()
	maps.Informer()
	start(t, factory)
	writer := s.Client.CoreV1().ConfigMaps(s.Namespace)
	for round := range 3 {
		wire.Cut()
		name := fmt.Sprintf("cut-%03d", round)
		suite.Must(t, writer.Delete(t.Context(), name, metav1.DeleteOptions{}))
		_, err := writer.Patch(t.Context(), "cut-009", types.MergePatchType, fmt.Appendf(nil, `{"data":{"k":"round %d"}}`, round), metav1.PatchOptions{})
		suite.Must(t, err)
		suite.Until(t, "the cache catches up", func(context.Context) (bool, error) {
			all, err := maps.Lister().List(labels.Everything())
			if err != nil {
				return false, err
			}
			last, err := maps.Lister().ConfigMaps(s.Namespace).Get("cut-009")
			return len(all) == 9-round && last.Data["k"] == fmt.Sprintf("round %d", round), err
		})
	}
}

func manyWatches(t *testing.T, s *suite.Scene) {
	const count = 60
	config, wire := suite.Tap(suite.Protobuf(s.Config))
	client, err := kubernetes.NewForConfig(config)
	suite.Must(t, err)
	var group sync.WaitGroup
	for number := range count {
		watcher, err := client.CoreV1().ConfigMaps(s.Namespace).Watch(t.Context(), metav1.ListOptions{
			FieldSelector: fmt.Sprintf("metadata.name=each-%03d", number),
		})
		suite.Must(t, err)
		group.Go(func() {
			defer watcher.Stop()
			select {
			case event := <-watcher.ResultChan():
				if object, ok := event.Object.(*corev1.ConfigMap); !ok || object.Name != fmt.Sprintf("each-%03d", number) {
					t.Errorf("watch %d got %v", number, event)
				}
			case <-time.After(suite.Patience):
				t.Errorf("watch %d heard nothing", number)
			}
		})
	}
	suite.Want(t, wire.Connections() == 1, "%d connections", wire.Connections())
	seeded(t, s, "each", count)
	group.Wait()
}
