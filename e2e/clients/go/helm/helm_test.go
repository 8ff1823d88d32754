// Package helm uses Helm as a library, as GitOps tools and operators do.
package helm

import (
	"os"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"portolan.dev/e2e/clients/suite"
)

const name = "fleet"

func TestMain(m *testing.M) { suite.Main(m) }

func TestLibrary(t *testing.T) {
	suite.Run(t, "helm-library", []suite.Check{
		{Says: "install runs the hooks and waits for all that it made", Look: installs},
		{Says: "a dry run against the server renders with what the server says", Look: dryRuns},
		{Says: "upgrade merges three ways: what others set stays", Look: upgrades},
		{Says: "a test of the release succeeds", Look: tests},
		{Says: "a failed upgrade with atomic is rolled back", Look: atomic},
		{Says: "rollback brings the first revision back", Look: rollsBack},
		{Says: "two releases of one name are refused, adopting is not", Look: refuses},
		{Says: "uninstall removes all, hooks first", Look: uninstalls},
		{Says: "releases can be kept in ConfigMaps instead of Secrets", Look: inConfigMaps},
	})
}

// configuration is made anew for each check, as each run of a program would.
func configuration(t *testing.T, s *suite.Scene, storage string) *action.Configuration {
	t.Helper()
	kubeconfig, namespace := os.Getenv("KUBECONFIG"), s.Namespace
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig, flags.Namespace = &kubeconfig, &namespace
	cache := t.TempDir()
	flags.CacheDir = &cache
	config := &action.Configuration{}
	suite.Must(t, config.Init(flags, s.Namespace, storage, func(string, ...any) {}))
	suite.Must(t, config.KubeClient.IsReachable())
	return config
}

func ship(t *testing.T) *chart.Chart {
	t.Helper()
	loaded, err := loader.Load(os.Getenv("CHART"))
	suite.Must(t, err)
	return loaded
}

func installs(t *testing.T, s *suite.Scene) {
	install := action.NewInstall(configuration(t, s, "secrets"))
	install.ReleaseName, install.Namespace, install.Labels = name, s.Namespace, map[string]string{"team": "blue"}
	install.Wait, install.WaitForJobs, install.Timeout = true, true, suite.Patience
	made, err := install.RunWithContext(t.Context(), ship(t), map[string]any{"greeting": "hello"})
	suite.Must(t, err)
	suite.Want(t, made.Info.Status == release.StatusDeployed && strings.Contains(made.Info.Notes, "revision 1 and says hello"), "%+v", made.Info)
	deployment, err := s.Client.AppsV1().Deployments(s.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, deployment.Status.ReadyReplicas == 2 && deployment.Annotations["meta.helm.sh/release-name"] == name, "%+v", deployment.Status)
	config, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Get(t.Context(), name+"-config", metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, config.Data["minor"] == "36" && config.Data["apps"] == "true" && config.Data["found"] == "kube-system", "%v", config.Data)
	hook, err := s.Client.BatchV1().Jobs(s.Namespace).Get(t.Context(), name+"-pre-install", metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, hook.Status.Succeeded == 1 && !hook.CreationTimestamp.After(deployment.CreationTimestamp.Time), "%+v", hook.Status)
	stored, err := s.Client.CoreV1().Secrets(s.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm,team=blue"})
	suite.Must(t, err)
	suite.Want(t, len(stored.Items) == 1 && stored.Items[0].Type == "helm.sh/release.v1", "%d", len(stored.Items))
}

func dryRuns(t *testing.T, s *suite.Scene) {
	upgrade := action.NewUpgrade(configuration(t, s, "secrets"))
	upgrade.Namespace, upgrade.DryRun, upgrade.DryRunOption = s.Namespace, true, "server"
	shown, err := upgrade.RunWithContext(t.Context(), name, ship(t), map[string]any{"replicas": 5})
	suite.Must(t, err)
	suite.Want(t, shown.Version == 2 && strings.Contains(shown.Manifest, "replicas: 5") && strings.Contains(shown.Manifest, "found: \"kube-system\""), "%s", shown.Manifest)
	suite.Want(t, replicas(t, s) == 2, "the dry run changed it")
}

func replicas(t *testing.T, s *suite.Scene) int32 {
	deployment, err := s.Client.AppsV1().Deployments(s.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	suite.Must(t, err)
	return *deployment.Spec.Replicas
}

func upgrades(t *testing.T, s *suite.Scene) {
	services := s.Client.CoreV1().Services(s.Namespace)
	before, err := services.Get(t.Context(), name, metav1.GetOptions{})
	suite.Must(t, err)
	before.Annotations["example.com/note"] = "by hand"
	_, err = services.Update(t.Context(), before, metav1.UpdateOptions{})
	suite.Must(t, err)
	upgrade := action.NewUpgrade(configuration(t, s, "secrets"))
	upgrade.Namespace, upgrade.ReuseValues = s.Namespace, true
	upgrade.Wait, upgrade.WaitForJobs, upgrade.Timeout = true, true, suite.Patience
	done, err := upgrade.RunWithContext(t.Context(), name, ship(t), map[string]any{"replicas": 3, "image": "registry.example/ship:2"})
	suite.Must(t, err)
	suite.Want(t, done.Version == 2 && done.Config["greeting"] == "hello" && replicas(t, s) == 3, "%+v", done.Config)
	after, err := services.Get(t.Context(), name, metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, after.Annotations["example.com/note"] == "by hand" && after.Spec.ClusterIP == before.Spec.ClusterIP, "%+v", after)
	_, err = s.Client.BatchV1().Jobs(s.Namespace).Get(t.Context(), name+"-load-1", metav1.GetOptions{})
	suite.Want(t, apierrors.IsNotFound(err), "the Job of the first revision: %v", err)
}

func tests(t *testing.T, s *suite.Scene) {
	testing := action.NewReleaseTesting(configuration(t, s, "secrets"))
	testing.Namespace, testing.Timeout = s.Namespace, suite.Patience
	done, err := testing.Run(name)
	suite.Must(t, err)
	for _, hook := range done.Hooks {
		if strings.HasSuffix(hook.Name, "-look") {
			suite.Want(t, hook.LastRun.Phase == release.HookPhaseSucceeded, "%+v", hook.LastRun)
		}
	}
	pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(t.Context(), name+"-look", metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, pod.Status.Phase == corev1.PodSucceeded, "%s", pod.Status.Phase)
}

func atomic(t *testing.T, s *suite.Scene) {
	upgrade := action.NewUpgrade(configuration(t, s, "secrets"))
	upgrade.Namespace, upgrade.ReuseValues, upgrade.Atomic, upgrade.Timeout = s.Namespace, true, true, suite.Patience
	_, err := upgrade.RunWithContext(t.Context(), name, ship(t), map[string]any{"crew": "other", "greeting": "farewell"})
	suite.Want(t, err != nil && strings.Contains(err.Error(), "field is immutable"), "%v", err)
	status, err := action.NewStatus(configuration(t, s, "secrets")).Run(name)
	suite.Must(t, err)
	suite.Want(t, status.Version == 4 && status.Info.Status == release.StatusDeployed && strings.Contains(status.Info.Description, "Rollback to 2"), "%d %+v", status.Version, status.Info)
	config, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Get(t.Context(), name+"-config", metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, config.Data["greeting"] == "hello", "%v", config.Data)
}

func rollsBack(t *testing.T, s *suite.Scene) {
	rollback := action.NewRollback(configuration(t, s, "secrets"))
	rollback.Version, rollback.Wait, rollback.Timeout = 1, true, suite.Patience
	suite.Must(t, rollback.Run(name))
	suite.Want(t, replicas(t, s) == 2, "%d", replicas(t, s))
	history, err := action.NewHistory(configuration(t, s, "secrets")).Run(name)
	suite.Must(t, err)
	suite.Want(t, len(history) == 5, "%d revisions", len(history))
	values, err := action.NewGetValues(configuration(t, s, "secrets")).Run(name)
	suite.Must(t, err)
	suite.Want(t, values["greeting"] == "hello" && values["replicas"] == nil, "%v", values)
}

func refuses(t *testing.T, s *suite.Scene) {
	install := action.NewInstall(configuration(t, s, "secrets"))
	install.ReleaseName, install.Namespace = name, s.Namespace
	_, err := install.RunWithContext(t.Context(), ship(t), nil)
	suite.Want(t, err != nil && strings.Contains(err.Error(), "cannot re-use a name that is still in use"), "%v", err)
	made := suite.ConfigMap("other-order", "v", nil)
	stranger := suite.ConfigMap("other-config", "v", nil)
	for _, object := range []*corev1.ConfigMap{made, stranger} {
		_, err = s.Client.CoreV1().ConfigMaps(s.Namespace).Create(t.Context(), object, metav1.CreateOptions{})
		suite.Must(t, err)
	}
	install = action.NewInstall(configuration(t, s, "secrets"))
	install.ReleaseName, install.Namespace, install.DisableHooks = "other", s.Namespace, true
	_, err = install.RunWithContext(t.Context(), ship(t), map[string]any{"replicas": 0})
	suite.Want(t, err != nil && strings.Contains(err.Error(), `ConfigMap "other-config" in namespace "helm-library" exists and cannot be imported into the current release`), "%v", err)
	install = action.NewInstall(configuration(t, s, "secrets"))
	install.ReleaseName, install.Namespace, install.DisableHooks, install.TakeOwnership = "other", s.Namespace, true, true
	_, err = install.RunWithContext(t.Context(), ship(t), map[string]any{"replicas": 0})
	suite.Must(t, err)
}

func uninstalls(t *testing.T, s *suite.Scene) {
	for _, release := range []string{"other", name} {
		uninstall := action.NewUninstall(configuration(t, s, "secrets"))
		uninstall.Wait, uninstall.Timeout = true, suite.Patience
		_, err := uninstall.Run(release)
		suite.Must(t, err)
	}
	suite.Gone(t, "the Deployment", s.Client.AppsV1().Deployments(s.Namespace).Get, name)
	_, err := action.NewStatus(configuration(t, s, "secrets")).Run(name)
	suite.Want(t, err == driver.ErrReleaseNotFound || strings.Contains(err.Error(), "release: not found"), "%v", err)
	left, err := s.Client.CoreV1().Secrets(s.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm"})
	suite.Must(t, err)
	suite.Want(t, len(left.Items) == 0, "%d releases are left", len(left.Items))
}

func inConfigMaps(t *testing.T, s *suite.Scene) {
	config := configuration(t, s, "configmaps")
	install := action.NewInstall(config)
	install.ReleaseName, install.Namespace, install.DisableHooks, install.Timeout = "mapped", s.Namespace, true, suite.Patience
	_, err := install.RunWithContext(t.Context(), ship(t), map[string]any{"replicas": 0})
	suite.Must(t, err)
	list := action.NewList(config)
	list.SetStateMask()
	found, err := list.Run()
	suite.Must(t, err)
	suite.Want(t, len(found) == 1 && found[0].Name == "mapped", "%v", found)
	uninstall := action.NewUninstall(config)
	uninstall.DisableHooks, uninstall.Timeout = true, suite.Patience
	_, err = uninstall.Run("mapped")
	suite.Must(t, err)
}
