// Package clientgo holds what controllers written with client-go do to a server.
package clientgo

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"portolan.dev/e2e/clients/suite"
)

func TestTyped(t *testing.T) {
	suite.Run(t, "client-go-typed", []suite.Check{
		{Says: "an object lives from create to delete, over protobuf", Look: lives},
		{Says: "a Deployment has a status and a scale of their own", Look: subresources},
		{Says: "errors are told apart by their reasons", Look: errorReasons},
		{Says: "eight writers with RetryOnConflict lose no update", Look: conflicts},
		{Says: "a dry run answers as if, and leaves nothing", Look: dryRun},
		{Says: "delete looks at preconditions, deletecollection at labels", Look: deletes},
		{Says: "a Deployment deleted in the foreground waits for what it owns", Look: foreground},
		{Says: "a token of a ServiceAccount is an identity with its own rights", Look: tokens},
	})
}

func lives(t *testing.T, s *suite.Scene) {
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace)
	wanted := suite.ConfigMap("", "v", map[string]string{"a": "b"})
	wanted.GenerateName, wanted.BinaryData = "life-", map[string][]byte{"bytes": {0, 1, 254, 255}}
	made, err := maps.Create(t.Context(), wanted, metav1.CreateOptions{})
	suite.Must(t, err)
	suite.Want(t, len(made.Name) == len("life-")+5 && made.UID != "" && !made.CreationTimestamp.IsZero(), "%+v", made.ObjectMeta)
	suite.Want(t, len(made.ManagedFields) == 1, "managed fields: %v", made.ManagedFields)

	got, err := maps.Get(t.Context(), made.Name, metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, got.ResourceVersion == made.ResourceVersion && bytes.Equal(got.BinaryData["bytes"], wanted.BinaryData["bytes"]), "%v", got)
	got.Data["k"] = "w"
	put, err := maps.Update(t.Context(), got, metav1.UpdateOptions{})
	suite.Must(t, err)
	suite.Want(t, put.Data["k"] == "w" && put.ResourceVersion != made.ResourceVersion && put.UID == made.UID, "%v", put)
	again, err := maps.Update(t.Context(), put, metav1.UpdateOptions{})
	suite.Must(t, err)
	suite.Want(t, again.ResourceVersion == put.ResourceVersion, "a write of the same object moved it to %s", again.ResourceVersion)

	list, err := maps.List(t.Context(), metav1.ListOptions{LabelSelector: "a in (b,c)", FieldSelector: "metadata.name=" + made.Name})
	suite.Must(t, err)
	suite.Want(t, len(list.Items) == 1 && list.Items[0].Data["k"] == "w" && list.ResourceVersion != "", "%v", list)
	suite.Must(t, maps.Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
	suite.Gone(t, made.Name, maps.Get, made.Name)
}

func subresources(t *testing.T, s *suite.Scene) {
	deployments := s.Client.AppsV1().Deployments(s.Namespace)
	made, err := deployments.Create(t.Context(), suite.Deployment("parts", 0), metav1.CreateOptions{})
	suite.Must(t, err)
	suite.Want(t, made.Generation == 1 && *made.Spec.RevisionHistoryLimit == 10, "%+v", made.Spec)
	suite.Want(t, made.Spec.Template.Spec.Containers[0].TerminationMessagePath == "/dev/termination-log", "no defaults")

	// Controllers write to it, too.
	suite.Must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		scale, err := deployments.GetScale(t.Context(), "parts", metav1.GetOptions{})
		suite.Must(t, err)
		suite.Want(t, scale.Spec.Replicas == 0 && scale.Status.Selector == "app=parts", "%+v", scale)
		scale.Spec.Replicas = 1
		scale, err = deployments.UpdateScale(t.Context(), "parts", scale, metav1.UpdateOptions{})
		suite.Want(t, err != nil || scale.Spec.Replicas == 1, "%+v", scale)
		return err
	}))
	suite.Must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		seen, err := deployments.Get(t.Context(), "parts", metav1.GetOptions{})
		suite.Must(t, err)
		suite.Want(t, *seen.Spec.Replicas == 1 && seen.Generation == 2, "replicas %d, generation %d", *seen.Spec.Replicas, seen.Generation)
		seen.Spec.Paused = true
		seen.Status.Conditions = append(seen.Status.Conditions, condition("Looked"))
		put, err := deployments.UpdateStatus(t.Context(), seen, metav1.UpdateOptions{})
		if err == nil {
			suite.Want(t, !put.Spec.Paused && put.Generation == 2, "a write of the status changed the spec")
			suite.Want(t, put.Status.Conditions[len(put.Status.Conditions)-1].Type == "Looked", "%+v", put.Status)
		}
		return err
	}))
}

func errorReasons(t *testing.T, s *suite.Scene) {
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace)
	made, err := maps.Create(t.Context(), suite.ConfigMap("taken", "1", nil), metav1.CreateOptions{})
	suite.Must(t, err)
	old := made.DeepCopy()
	made.Data["k"] = "2"
	_, err = maps.Update(t.Context(), made, metav1.UpdateOptions{})
	suite.Must(t, err)

	_, missing := maps.Get(t.Context(), "none", metav1.GetOptions{})
	_, exists := maps.Create(t.Context(), suite.ConfigMap("taken", "1", nil), metav1.CreateOptions{})
	old.Data["k"] = "3"
	_, conflict := maps.Update(t.Context(), old, metav1.UpdateOptions{})
	_, invalid := maps.Create(t.Context(), suite.ConfigMap("Not_A_Name", "1", nil), metav1.CreateOptions{})
	_, expired := maps.List(t.Context(), metav1.ListOptions{Limit: 1, Continue: "A!"})
	_, homeless := s.Client.CoreV1().ConfigMaps("no-such-namespace").Create(t.Context(), suite.ConfigMap("a", "1", nil), metav1.CreateOptions{})
	for _, one := range []struct {
		err  error
		is   func(error) bool
		text string
	}{
		{missing, apierrors.IsNotFound, `configmaps "none" not found`},
		{exists, apierrors.IsAlreadyExists, `configmaps "taken" already exists`},
		{conflict, apierrors.IsConflict, `Operation cannot be fulfilled on configmaps "taken": the object has been modified; please apply your changes to the latest version and try again`},
		{invalid, apierrors.IsInvalid, `ConfigMap "Not_A_Name" is invalid: metadata.name: Invalid value: "Not_A_Name": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`},
		{expired, apierrors.IsBadRequest, `invalid continue token: continue key is not valid: illegal base64 data at input byte 1`},
		{homeless, apierrors.IsNotFound, `namespaces "no-such-namespace" not found`},
	} {
		suite.Want(t, one.err != nil && one.is(one.err) && one.err.Error() == one.text, "expected %s\ngot      %v", one.text, one.err)
	}
	details := invalid.(*apierrors.StatusError).Status().Details
	suite.Want(t, details.Kind == "ConfigMap" && len(details.Causes) == 1 && details.Causes[0].Field == "metadata.name", "%+v", details)
}

func conflicts(t *testing.T, s *suite.Scene) {
	const writers, times = 8, 5
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace)
	_, err := maps.Create(t.Context(), suite.ConfigMap("counter", "0", nil), metav1.CreateOptions{})
	suite.Must(t, err)
	patient := retry.DefaultBackoff
	patient.Steps = 100
	add := func() error {
		seen, err := maps.Get(t.Context(), "counter", metav1.GetOptions{})
		if err != nil {
			return err
		}
		number, _ := strconv.Atoi(seen.Data["k"])
		seen.Data["k"] = strconv.Itoa(number + 1)
		_, err = maps.Update(t.Context(), seen, metav1.UpdateOptions{})
		return err
	}
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for range times {
				if err := retry.RetryOnConflict(patient, add); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	seen, err := maps.Get(t.Context(), "counter", metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, seen.Data["k"] == strconv.Itoa(writers*times), "counted to %s", seen.Data["k"])
}

func dryRun(t *testing.T, s *suite.Scene) {
	maps, all := s.Client.CoreV1().ConfigMaps(s.Namespace), []string{metav1.DryRunAll}
	made, err := maps.Create(t.Context(), suite.ConfigMap("maybe", "1", nil), metav1.CreateOptions{DryRun: all})
	suite.Must(t, err)
	suite.Want(t, made.UID != "" && made.ResourceVersion == "", "%+v", made.ObjectMeta)
	_, err = maps.Get(t.Context(), "maybe", metav1.GetOptions{})
	suite.Want(t, apierrors.IsNotFound(err), "it is there: %v", err)

	kept, err := maps.Get(t.Context(), "taken", metav1.GetOptions{})
	suite.Must(t, err)
	kept.Data["k"] = "changed"
	put, err := maps.Update(t.Context(), kept, metav1.UpdateOptions{DryRun: all})
	suite.Must(t, err)
	suite.Want(t, put.Data["k"] == "changed", "%v", put.Data)
	suite.Must(t, maps.Delete(t.Context(), "taken", metav1.DeleteOptions{DryRun: all}))
	still, err := maps.Get(t.Context(), "taken", metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, still.Data["k"] == "2" && still.ResourceVersion == kept.ResourceVersion, "%v", still)
}

func deletes(t *testing.T, s *suite.Scene) {
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace)
	other := types.UID("00000000-0000-0000-0000-000000000000")
	err := maps.Delete(t.Context(), "taken", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}})
	suite.Want(t, apierrors.IsConflict(err), "%v", err)
	for number := range 6 {
		labels := map[string]string{"even": fmt.Sprint(number%2 == 0)}
		_, err := maps.Create(t.Context(), suite.ConfigMap(fmt.Sprintf("many-%d", number), "v", labels), metav1.CreateOptions{})
		suite.Must(t, err)
	}
	suite.Must(t, maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "even=true"}))
	left, err := maps.List(t.Context(), metav1.ListOptions{LabelSelector: "even"})
	suite.Must(t, err)
	suite.Want(t, len(left.Items) == 3 && left.Items[0].Name == "many-1", "%d left", len(left.Items))
}

func foreground(t *testing.T, s *suite.Scene) {
	deployments, maps := s.Client.AppsV1().Deployments(s.Namespace), s.Client.CoreV1().ConfigMaps(s.Namespace)
	owner, err := deployments.Create(t.Context(), suite.Deployment("owner", 0), metav1.CreateOptions{})
	suite.Must(t, err)
	yes := true
	owned := suite.ConfigMap("owned", "v", nil)
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: &yes}}
	owned.Finalizers = []string{"example.com/held"}
	_, err = maps.Create(t.Context(), owned, metav1.CreateOptions{})
	suite.Must(t, err)
	policy := metav1.DeletePropagationForeground
	suite.Must(t, deployments.Delete(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: &policy}))

	suite.Until(t, "what it owns is being deleted", func(ctx ctx) (bool, error) {
		seen, err := maps.Get(ctx, "owned", metav1.GetOptions{})
		return err == nil && seen.DeletionTimestamp != nil, err
	})
	waiting, err := deployments.Get(t.Context(), "owner", metav1.GetOptions{})
	suite.Must(t, err)
	suite.Want(t, waiting.DeletionTimestamp != nil && waiting.Finalizers[0] == metav1.FinalizerDeleteDependents, "%+v", waiting.ObjectMeta)
	_, err = maps.Patch(t.Context(), "owned", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	suite.Must(t, err)
	suite.Gone(t, "what it owns", maps.Get, "owned")
	suite.Gone(t, "the owner", deployments.Get, "owner")
}

func tokens(t *testing.T, s *suite.Scene) {
	_, err := s.Client.CoreV1().ServiceAccounts(s.Namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	suite.Must(t, err)
	request := &authenticationv1.TokenRequest{}
	token, err := s.Client.CoreV1().ServiceAccounts(s.Namespace).CreateToken(t.Context(), "robot", request, metav1.CreateOptions{})
	suite.Must(t, err)
	config := rest.AnonymousClientConfig(s.Config)
	config.BearerToken = token.Status.Token
	robot, err := kubernetes.NewForConfig(suite.Protobuf(config))
	suite.Must(t, err)

	self, err := robot.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	suite.Must(t, err)
	suite.Want(t, self.Status.UserInfo.Username == "system:serviceaccount:"+s.Namespace+":robot", "%+v", self.Status)
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: s.Namespace, Verb: "list", Resource: "secrets"},
	}}
	answer, err := robot.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
	suite.Must(t, err)
	suite.Want(t, !answer.Status.Allowed, "%+v", answer.Status)
	_, err = robot.CoreV1().Secrets(s.Namespace).List(t.Context(), metav1.ListOptions{})
	text := fmt.Sprintf(`secrets is forbidden: User %q cannot list resource "secrets" in API group "" in the namespace %q`, self.Status.UserInfo.Username, s.Namespace)
	suite.Want(t, apierrors.IsForbidden(err) && err.Error() == text, "%v", err)
}
