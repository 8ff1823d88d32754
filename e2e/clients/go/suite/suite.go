// Package suite is what the Go suites share: where the server is, how a check is named, and how to wait.
package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// Patience is how long anything may take that a server does by itself.
const Patience = 60 * time.Second

// Scene is one namespace of the server that $KUBECONFIG names.
type Scene struct {
	// Config speaks JSON; see Protobuf.
	Config    *rest.Config
	Client    kubernetes.Interface
	Namespace string
}

// Check is a sentence that says what is right, and the code that looks.
type Check struct {
	Says string
	Look func(t *testing.T, s *Scene)
}

// Config reads $KUBECONFIG. The client's own brake is taken off: the server's is what is tested.
func Config(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	Must(t, err)
	config.QPS, config.Burst = 1000, 1000
	return config
}

// Protobuf makes a config prefer protobuf, as every component of Kubernetes does.
func Protobuf(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return config
}

// Main runs the checks of a program, and prints the line that says that it came to its end.
func Main(m *testing.M) {
	// client-go speaks of every cut connection; only what a check says should be read.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	code := m.Run()
	fmt.Println("end")
	os.Exit(code)
}

// Namespace is the program's own, or $SUITE_NAMESPACE where it is recorded.
func Namespace(own string) string {
	if given := os.Getenv("SUITE_NAMESPACE"); given != "" {
		return given
	}
	return own
}

// Run makes a namespace, runs the checks in it in order, and deletes it. A check may build on those before it.
func Run(t *testing.T, own string, checks []Check) {
	t.Helper()
	namespace := Namespace(own)
	config := Config(t)
	client, err := kubernetes.NewForConfig(Protobuf(config))
	Must(t, err)
	scene := &Scene{Config: config, Client: client, Namespace: namespace}
	MakeNamespace(t, client, namespace)
	t.Cleanup(func() { dropNamespace(t, client, namespace) })
	for _, check := range checks {
		start := time.Now()
		passed := t.Run(check.Says, func(t *testing.T) { check.Look(t, scene) })
		report(check.Says, time.Since(start), passed)
	}
}

// report prints the line that whoever started this program reads.
func report(says string, took time.Duration, passed bool) {
	line, _ := json.Marshal(map[string]any{"says": says, "seconds": took.Seconds(), "passed": passed})
	fmt.Printf("check %s\n", line)
}

// MakeNamespace waits until it can be used: a ServiceAccount of its own is what a pod needs first.
func MakeNamespace(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	Must(t, err)
	Until(t, "the default ServiceAccount", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, ignoreNotFound(err)
	})
}

func dropNamespace(t *testing.T, client kubernetes.Interface, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("namespace %s cannot be deleted: %v", name, err)
	}
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Must ends the check on an error.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v (%T)", err, err)
	}
}

// Want ends the check when something is not as the sentence says.
func Want(t *testing.T, right bool, format string, args ...any) {
	t.Helper()
	if !right {
		t.Fatalf(format, args...)
	}
}

// Until looks again and again until it is true; an error ends the check.
func Until(t *testing.T, what string, look func(ctx context.Context) (bool, error)) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		done, err := look(t.Context())
		switch {
		case err != nil:
			t.Fatalf("%s: %v", what, err)
		case done:
			return
		case time.Since(start) > Patience:
			t.Fatalf("%s: not within %s", what, Patience)
		}
	}
}

// Gone waits until a get says NotFound.
func Gone[T any](t *testing.T, what string, get func(context.Context, string, metav1.GetOptions) (T, error), name string) {
	t.Helper()
	Until(t, what+" is gone", func(ctx context.Context) (bool, error) {
		_, err := get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
}
