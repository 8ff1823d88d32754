package clientgo

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"

	"portolan.dev/e2e/clients/suite"
)

func TestLeadersAndEvents(t *testing.T) {
	suite.Run(t, "client-go-leaders", []suite.Check{
		{Says: "of two candidates one leads, and the other after it lets go", Look: handsOver},
		{Says: "a leader that vanished is followed when its lease has run out", Look: runsOut},
		{Says: "an event that happens again is counted, not repeated", Look: counts},
		{Says: "the newer recorder writes a series that both APIs show", Look: series},
	})
}

// candidate runs for the Lease `helm`; what it gives stops it, and with `release` hands the Lease back.
func candidate(t *testing.T, s *suite.Scene, lease, name string, release bool, elected chan<- string) context.CancelFunc {
	t.Helper()
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, s.Namespace, lease, s.Client.CoreV1(), s.Client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: name})
	suite.Must(t, err)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, ReleaseOnCancel: release, Name: lease,
		LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { elected <- name },
			OnStoppedLeading: func() {},
		},
	})
	suite.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

func handsOver(t *testing.T, s *suite.Scene) {
	elected := make(chan string, 2)
	stopFirst := candidate(t, s, "helm", "first", true, elected)
	suite.Want(t, next(t, elected) == "first", "another leads")
	stopSecond := candidate(t, s, "helm", "second", true, elected)
	defer stopSecond()
	time.Sleep(time.Second)
	suite.Want(t, len(elected) == 0, "two lead at once")
	stopFirst()
	suite.Want(t, next(t, elected) == "second", "another leads")
	lease, err := s.Client.CoordinationV1().Leases(s.Namespace).Get(t.Context(), "helm", metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, *lease.Spec.HolderIdentity == "second" && *lease.Spec.LeaseTransitions >= 1 && lease.Spec.RenewTime != nil, "%+v", lease.Spec)
}

func runsOut(t *testing.T, s *suite.Scene) {
	elected := make(chan string, 2)
	vanish := candidate(t, s, "wheel", "first", false, elected)
	suite.Want(t, next(t, elected) == "first", "another leads")
	vanish()
	stop := candidate(t, s, "wheel", "second", true, elected)
	defer stop()
	start := time.Now()
	suite.Want(t, next(t, elected) == "second", "another leads")
	suite.Want(t, time.Since(start) > time.Second, "elected before the lease ran out")
}

func counts(t *testing.T, s *suite.Scene) {
	about, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Create(t.Context(), suite.ConfigMap("about", "v", nil), metav1.CreateOptions{})
	suite.Must(t, err)
	broadcaster := record.NewBroadcaster(record.WithContext(t.Context()))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: s.Client.CoreV1().Events(s.Namespace)})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "lookout"})
	for range 3 {
		recorder.Eventf(about, corev1.EventTypeWarning, "Fog", "no land in %s", "sight")
	}
	suite.Until(t, "one event with the count 3", func(ctx context.Context) (bool, error) {
		list, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=about,reason=Fog,type=Warning"})
		if err != nil || len(list.Items) == 0 {
			return false, err
		}
		suite.Want(t, len(list.Items) == 1, "%d events", len(list.Items))
		one := list.Items[0]
		return one.Count == 3 && one.Message == "no land in sight" && one.InvolvedObject.UID == about.UID && one.Source.Component == "lookout", nil
	})
}

func series(t *testing.T, s *suite.Scene) {
	about, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Get(t.Context(), "about", metav1.GetOptions{})
	suite.Must(t, err)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: s.Client.EventsV1()})
	defer broadcaster.Shutdown()
	suite.Must(t, broadcaster.StartRecordingToSinkWithContext(t.Context()))
	recorder := broadcaster.NewRecorder(scheme.Scheme, "portolan.dev/lookout")
	for range 3 {
		recorder.Eventf(about, nil, corev1.EventTypeNormal, "Land", "Looking", "land in sight")
		time.Sleep(50 * time.Millisecond)
	}
	var seen *eventsv1.Event
	suite.Until(t, "one event with a series", func(ctx context.Context) (bool, error) {
		list, err := s.Client.EventsV1().Events(s.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=Land"})
		if err != nil || len(list.Items) == 0 {
			return false, err
		}
		suite.Want(t, len(list.Items) == 1, "%d events", len(list.Items))
		seen = &list.Items[0]
		return seen.Series != nil && seen.Series.Count >= 2, nil
	})
	suite.Want(t, seen.Note == "land in sight" && seen.Action == "Looking" && seen.ReportingController == "portolan.dev/lookout", "%+v", seen)
	old, err := s.Client.CoreV1().Events(s.Namespace).Get(t.Context(), seen.Name, metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, old.Message == seen.Note && old.UID == seen.UID && old.InvolvedObject.Name == "about" && old.ReportingController == seen.ReportingController, "%+v", old)
}
