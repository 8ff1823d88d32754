package clientgo

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	watchtools "k8s.io/client-go/tools/watch"

	"portolan.dev/e2e/clients/suite"
)

func TestWatches(t *testing.T) {
	suite.Run(t, "client-go-watches", []suite.Check{
		{Says: "a pager walks 230 objects in order, each once", Look: pages},
		{Says: "a RetryWatcher over watches that end loses and repeats nothing", Look: resumes},
		{Says: "a watch from a forgotten revision is told 410 Expired", Look: expires},
		{Says: "a list at once and a watch from it meet without a gap", Look: listThenWatch},
		{Says: "UntilWithSync sees what is there and what comes", Look: untilWithSync},
	})
}

func pages(t *testing.T, s *suite.Scene) {
	seeded(t, s, "page", 230)
	calls, revisions := 0, map[string]bool{}
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		calls++
		page, err := s.Client.CoreV1().ConfigMaps(s.Namespace).List(ctx, options)
		if err == nil {
			revisions[page.ResourceVersion] = true
			if calls == 2 {
				// What is written while pages are read belongs to another revision.
				seeded(t, s, "page-late", 1)
			}
		}
		return page, err
	}
	walker := pager.New(list)
	walker.PageSize, walker.PageBufferSize = 50, 0
	var names []string
	err := walker.EachListItem(t.Context(), metav1.ListOptions{LabelSelector: "set"}, func(object runtime.Object) error {
		names = append(names, object.(*corev1.ConfigMap).Name)
		return nil
	})
	suite.Must(t, err)
	suite.Want(t, len(names) == 230 && calls == 5 && len(revisions) == 1, "%d names, %d calls, %d revisions", len(names), calls, len(revisions))
	for number, name := range names {
		suite.Want(t, name == fmt.Sprintf("page-%03d", number), "%d is %s", number, name)
	}
	first, err := s.Client.CoreV1().ConfigMaps(s.Namespace).List(t.Context(), metav1.ListOptions{Limit: 100})
	suite.Must(t, err)
	suite.Want(t, first.RemainingItemCount != nil && *first.RemainingItemCount >= 131, "%+v", first.ListMeta)
}

func resumes(t *testing.T, s *suite.Scene) {
	const count = 40
	maps, started := s.Client.CoreV1().ConfigMaps(s.Namespace), 0
	list, err := maps.List(t.Context(), metav1.ListOptions{LabelSelector: "set=resumed"})
	suite.Must(t, err)
	short := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		started++
		second := int64(1)
		options.TimeoutSeconds, options.LabelSelector = &second, "set=resumed"
		return maps.Watch(ctx, options)
	}}
	watcher, err := watchtools.NewRetryWatcherWithContext(t.Context(), list.ResourceVersion, short)
	suite.Must(t, err)
	defer watcher.Stop()
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() {
		for number := range count {
			object := suite.ConfigMap(fmt.Sprintf("resumed-%03d", number), "v", map[string]string{"set": "resumed"})
			if _, err := maps.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	for number := 0; number < count; {
		select {
		case event, open := <-watcher.ResultChan():
			suite.Want(t, open, "the RetryWatcher ended")
			if event.Type == watch.Bookmark {
				continue
			}
			object, ok := event.Object.(*corev1.ConfigMap)
			suite.Want(t, ok && event.Type == watch.Added && object.Name == fmt.Sprintf("resumed-%03d", number), "event %d is %v %v", number, event.Type, event.Object)
			number++
		case <-time.After(suite.Patience):
			t.Fatalf("event %d never came", number)
		}
	}
	suite.Want(t, started >= 3, "only %d watches", started)
}

func expires(t *testing.T, s *suite.Scene) {
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace)
	watcher, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"})
	suite.Must(t, err)
	defer watcher.Stop()
	event := next(t, watcher.ResultChan())
	err = apierrors.FromObject(event.Object)
	suite.Want(t, event.Type == watch.Error && apierrors.IsResourceExpired(err), "%v %v", event.Type, event.Object)
	// This one gives up on what it is told in the stream only.
	retry, err := watchtools.NewRetryWatcherWithContext(t.Context(), "1", &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		return maps.Watch(ctx, options)
	}})
	suite.Must(t, err)
	event = next(t, retry.ResultChan())
	status, ok := event.Object.(*metav1.Status)
	suite.Want(t, ok && event.Type == watch.Error && status.Code == 410, "%v %v", event.Type, event.Object)
	<-retry.Done()
}

func listThenWatch(t *testing.T, s *suite.Scene) {
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace)
	const count = 60
	done := make(chan struct{})
	go func() {
		defer close(done)
		for number := range count {
			object := suite.ConfigMap(fmt.Sprintf("meet-%03d", number), "v", map[string]string{"set": "meet"})
			if _, err := maps.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		}
	}()
	selector := metav1.ListOptions{LabelSelector: "set=meet"}
	list, err := maps.List(t.Context(), selector)
	suite.Must(t, err)
	seen := map[string]int{}
	for _, one := range list.Items {
		seen[one.Name]++
	}
	selector.ResourceVersion = list.ResourceVersion
	watcher, err := maps.Watch(t.Context(), selector)
	suite.Must(t, err)
	defer watcher.Stop()
	for len(seen) < count {
		select {
		case event := <-watcher.ResultChan():
			seen[event.Object.(*corev1.ConfigMap).Name]++
		case <-time.After(suite.Patience):
			t.Fatalf("only %d came", len(seen))
		}
	}
	<-done
	for name, times := range seen {
		suite.Want(t, times == 1, "%s came %d times", name, times)
	}
}

func untilWithSync(t *testing.T, s *suite.Scene) {
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace)
	only := fields.OneTermEqualSelector("metadata.name", "awaited").String()
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = only
			return maps.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = only
			return maps.Watch(ctx, options)
		},
	}
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() {
		if _, err := maps.Create(t.Context(), suite.ConfigMap("awaited", "v", nil), metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), suite.Patience)
	defer cancel()
	_, err := watchtools.UntilWithSync(ctx, source, &corev1.ConfigMap{}, nil, func(event watch.Event) (bool, error) {
		return event.Type == watch.Added && event.Object.(*corev1.ConfigMap).Name == "awaited", nil
	})
	suite.Must(t, err)
}
