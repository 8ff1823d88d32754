package clientgo

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"portolan.dev/e2e/clients/suite"
)

func TestPatches(t *testing.T) {
	suite.Run(t, "client-go-patches", []suite.Check{
		{Says: "an apply makes an object, and the same apply changes nothing", Look: applies},
		{Says: "another manager meets a conflict, unless it forces", Look: applyConflict},
		{Says: "what a manager leaves out goes, what others own stays", Look: applyRemoves},
		{Says: "Extract gives back what was applied", Look: extracts},
		{Says: "ApplyStatus owns the status only", Look: applyStatus},
		{Says: "a strategic merge patch merges containers by name", Look: strategic},
		{Says: "a JSON patch tests before it changes", Look: jsonPatch},
	})
}

var forced = metav1.ApplyOptions{FieldManager: "ship", Force: true}

func sailing(image string, replicas int32) *appsac.DeploymentApplyConfiguration {
	labels := map[string]string{"app": "sail"}
	return appsac.Deployment("sail", suite.Namespace("client-go-patches")).WithLabels(labels).WithSpec(appsac.DeploymentSpec().
		WithReplicas(replicas).
		WithSelector(metav1ac.LabelSelector().WithMatchLabels(labels)).
		WithTemplate(corev1ac.PodTemplateSpec().WithLabels(labels).WithSpec(corev1ac.PodSpec().WithContainers(
			corev1ac.Container().WithName("main").WithImage(image).WithPorts(corev1ac.ContainerPort().WithContainerPort(80)).
				WithEnv(corev1ac.EnvVar().WithName("A").WithValue("1"))))))
}

func applies(t *testing.T, s *suite.Scene) {
	deployments := s.Client.AppsV1().Deployments(s.Namespace)
	made, err := deployments.Apply(t.Context(), sailing("registry.example/main:1", 0), metav1.ApplyOptions{FieldManager: "ship"})
	suite.Must(t, err)
	suite.Want(t, made.Generation == 1 && made.ManagedFields[0].Manager == "ship" && made.ManagedFields[0].Operation == metav1.ManagedFieldsOperationApply, "%+v", made.ManagedFields)
	// Others (a controller with its status) may write in between; the spec may not move.
	again, err := deployments.Apply(t.Context(), sailing("registry.example/main:1", 0), metav1.ApplyOptions{FieldManager: "ship"})
	suite.Must(t, err)
	suite.Want(t, again.Generation == 1, "generation %d", again.Generation)
	applied := corev1ac.ConfigMap("still", s.Namespace).WithData(map[string]string{"k": "v"})
	first, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Apply(t.Context(), applied, forced)
	suite.Must(t, err)
	second, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Apply(t.Context(), applied, forced)
	suite.Must(t, err)
	suite.Want(t, first.ResourceVersion == second.ResourceVersion, "%s became %s", first.ResourceVersion, second.ResourceVersion)
}

func applyConflict(t *testing.T, s *suite.Scene) {
	deployments := s.Client.AppsV1().Deployments(s.Namespace)
	other := metav1.ApplyOptions{FieldManager: "pirate"}
	takeover := appsac.Deployment("sail", s.Namespace).WithSpec(appsac.DeploymentSpec().WithReplicas(3))
	_, err := deployments.Apply(t.Context(), takeover, other)
	text := `Apply failed with 1 conflict: conflict with "ship": .spec.replicas`
	suite.Want(t, apierrors.IsConflict(err) && err.Error() == text, "%v", err)
	causes := err.(*apierrors.StatusError).Status().Details.Causes
	suite.Want(t, len(causes) == 1 && causes[0].Type == metav1.CauseTypeFieldManagerConflict && causes[0].Field == ".spec.replicas", "%+v", causes)
	other.Force = true
	taken, err := deployments.Apply(t.Context(), takeover, other)
	suite.Must(t, err)
	suite.Want(t, *taken.Spec.Replicas == 3 && taken.Generation == 2, "%d", *taken.Spec.Replicas)
	_, err = deployments.Apply(t.Context(), sailing("registry.example/main:1", 0), metav1.ApplyOptions{FieldManager: "ship"})
	suite.Want(t, apierrors.IsConflict(err), "the former owner: %v", err)
	back, err := deployments.Apply(t.Context(), sailing("registry.example/main:1", 0), forced)
	suite.Must(t, err)
	suite.Want(t, *back.Spec.Replicas == 0, "%d", *back.Spec.Replicas)
}

func applyRemoves(t *testing.T, s *suite.Scene) {
	deployments := s.Client.AppsV1().Deployments(s.Namespace)
	env := appsac.Deployment("sail", s.Namespace).WithSpec(appsac.DeploymentSpec().WithTemplate(corev1ac.PodTemplateSpec().WithSpec(
		corev1ac.PodSpec().WithContainers(corev1ac.Container().WithName("main").WithEnv(corev1ac.EnvVar().WithName("B").WithValue("2"))))))
	shared, err := deployments.Apply(t.Context(), env, metav1.ApplyOptions{FieldManager: "crew"})
	suite.Must(t, err)
	suite.Want(t, len(shared.Spec.Template.Spec.Containers[0].Env) == 2, "%+v", shared.Spec.Template.Spec.Containers)
	less := sailing("registry.example/main:2", 0)
	less.Spec.Template.Spec.Containers[0].Env, less.Spec.Template.Spec.Containers[0].Ports = nil, nil
	left, err := deployments.Apply(t.Context(), less, forced)
	suite.Must(t, err)
	main := left.Spec.Template.Spec.Containers[0]
	suite.Want(t, len(main.Env) == 1 && main.Env[0].Name == "B" && len(main.Ports) == 0 && main.Image == "registry.example/main:2", "%+v", main)
}

func extracts(t *testing.T, s *suite.Scene) {
	seen, err := s.Client.AppsV1().Deployments(s.Namespace).Get(t.Context(), "sail", metav1.GetOptions{})
	suite.Must(t, err)
	mine, err := appsac.ExtractDeployment(seen, "crew")
	suite.Must(t, err)
	suite.Want(t, mine.Spec.Replicas == nil && mine.Spec.Template.Spec.Containers[0].Image == nil, "more than was applied: %+v", mine.Spec)
	suite.Want(t, *mine.Spec.Template.Spec.Containers[0].Env[0].Name == "B", "less than was applied")
	theirs, err := appsac.ExtractDeployment(seen, "ship")
	suite.Must(t, err)
	theirs.Spec.Replicas = nil
	without, err := s.Client.AppsV1().Deployments(s.Namespace).Apply(t.Context(), theirs, forced)
	suite.Must(t, err)
	suite.Want(t, *without.Spec.Replicas == 1, "replicas are %d, not the default", *without.Spec.Replicas)
	_, err = s.Client.AppsV1().Deployments(s.Namespace).Apply(t.Context(), theirs.WithSpec(theirs.Spec.WithReplicas(0)), forced)
	suite.Must(t, err)
}

func applyStatus(t *testing.T, s *suite.Scene) {
	deployments := s.Client.AppsV1().Deployments(s.Namespace)
	status := appsac.Deployment("sail", s.Namespace).WithSpec(appsac.DeploymentSpec().WithReplicas(9)).WithStatus(appsac.DeploymentStatus().
		WithConditions(appsac.DeploymentCondition().WithType("Afloat").WithStatus(corev1.ConditionTrue).WithReason("Water").WithMessage("")))
	put, err := deployments.ApplyStatus(t.Context(), status, metav1.ApplyOptions{FieldManager: "lookout"})
	suite.Must(t, err)
	suite.Want(t, *put.Spec.Replicas == 0, "the spec was changed")
	found := false
	for _, entry := range put.ManagedFields {
		found = found || entry.Manager == "lookout" && entry.Subresource == "status"
	}
	suite.Want(t, found, "%+v", put.ManagedFields)
}

func strategic(t *testing.T, s *suite.Scene) {
	body := `{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"registry.example/side:1"},{"name":"main","image":"registry.example/main:3"}]}}}}`
	put, err := s.Client.AppsV1().Deployments(s.Namespace).Patch(t.Context(), "sail", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{})
	suite.Must(t, err)
	containers := put.Spec.Template.Spec.Containers
	suite.Want(t, len(containers) == 2 && containers[0].Name == "side" && containers[1].Image == "registry.example/main:3", "%+v", containers)
	gone := `{"spec":{"template":{"spec":{"containers":[{"name":"side","$patch":"delete"}]}}}}`
	put, err = s.Client.AppsV1().Deployments(s.Namespace).Patch(t.Context(), "sail", types.StrategicMergePatchType, []byte(gone), metav1.PatchOptions{})
	suite.Must(t, err)
	suite.Want(t, len(put.Spec.Template.Spec.Containers) == 1 && len(put.Spec.Template.Spec.Containers[0].Env) == 1, "%+v", put.Spec.Template.Spec.Containers)
}

func jsonPatch(t *testing.T, s *suite.Scene) {
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace)
	good := `[{"op":"test","path":"/data/k","value":"v"},{"op":"replace","path":"/data/k","value":"w"},{"op":"add","path":"/metadata/annotations","value":{}},{"op":"add","path":"/metadata/annotations/example.com~1a","value":"x"}]`
	put, err := maps.Patch(t.Context(), "still", types.JSONPatchType, []byte(good), metav1.PatchOptions{})
	suite.Must(t, err)
	suite.Want(t, put.Data["k"] == "w" && put.Annotations["example.com/a"] == "x", "%v", put.Data)
	stale := `[{"op":"test","path":"/data/k","value":"v"},{"op":"remove","path":"/data/k"}]`
	_, err = maps.Patch(t.Context(), "still", types.JSONPatchType, []byte(stale), metav1.PatchOptions{})
	suite.Want(t, apierrors.IsInvalid(err), "%v", err)
	nowhere := `[{"op":"remove","path":"/data/none"}]`
	_, err = maps.Patch(t.Context(), "still", types.JSONPatchType, []byte(nowhere), metav1.PatchOptions{})
	suite.Want(t, apierrors.IsInvalid(err), "%v", err)
	kept, err := maps.Get(t.Context(), "still", metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, kept.ResourceVersion == put.ResourceVersion, "%v", kept.Data)
}
