package clientgo

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"portolan.dev/e2e/clients/suite"
)

type ctx = context.Context

func TestMain(m *testing.M) { suite.Main(m) }

func condition(name string) appsv1.DeploymentCondition {
	return appsv1.DeploymentCondition{Type: appsv1.DeploymentConditionType(name), Status: corev1.ConditionTrue, Reason: "Seen"}
}

// next takes what comes next out of a channel, if anything comes at all.
func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case one := <-from:
		return one
	case <-time.After(suite.Patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}
