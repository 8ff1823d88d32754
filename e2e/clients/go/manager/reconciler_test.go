package manager

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	fieldOwner = client.FieldOwner("berths")
	finalizer  = "clients.portolan.dev/berth"
	readyKey   = "clients.portolan.dev/ready"
	sumKey     = "clients.portolan.dev/secret-sum"
	bySecret   = "data.secret"
)

// berths makes of each ConfigMap with the label `berth` a Deployment, which it applies, and a Service, which it updates.
type berths struct {
	client.Client
	recorder events.EventRecorder
	name     string
}

func (r *berths) setUp(mgr ctrl.Manager) error {
	index := func(object client.Object) []string { return []string{object.(*corev1.ConfigMap).Data["secret"]} }
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.ConfigMap{}, bySecret, index); err != nil {
		return err
	}
	labelled, err := predicate.LabelSelectorPredicate(metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "berth", Operator: metav1.LabelSelectorOpExists},
	}})
	if err != nil {
		return err
	}
	// Both managers of one process may carry the name; a real one is alone in its process.
	alone := true
	return ctrl.NewControllerManagedBy(mgr).Named("berths").
		For(&corev1.ConfigMap{}, builder.WithPredicates(labelled)).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}, builder.OnlyMetadata).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.users)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 2, SkipNameValidation: &alone}).
		Complete(r)
}

// users finds, by the index, the ConfigMaps that name a Secret.
func (r *berths) users(ctx context.Context, secret client.Object) []reconcile.Request {
	var list corev1.ConfigMapList
	if err := r.List(ctx, &list, client.InNamespace(secret.GetNamespace()), client.MatchingFields{bySecret: secret.GetName()}); err != nil {
		return nil
	}
	var requests []reconcile.Request
	for _, one := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&one)})
	}
	return requests
}

// Reconcile is called with a name, never with what changed.
func (r *berths) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var berth corev1.ConfigMap
	if err := r.Get(ctx, request.NamespacedName, &berth); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !berth.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.leave(ctx, &berth)
	}
	if controllerutil.AddFinalizer(&berth, finalizer) {
		return ctrl.Result{}, r.Update(ctx, &berth)
	}
	sum, err := r.secretSum(ctx, &berth)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := r.Apply(ctx, r.deployment(&berth, sum), fieldOwner, client.ForceOwnership); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.service(ctx, &berth); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.report(ctx, &berth)
}

func (r *berths) secretSum(ctx context.Context, berth *corev1.ConfigMap) (string, error) {
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: berth.Namespace, Name: berth.Data["secret"]}
	if err := r.Get(ctx, key, &secret); err != nil {
		return "none", client.IgnoreNotFound(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(secret.Data["password"]))[:16], nil
}

func (r *berths) deployment(berth *corev1.ConfigMap, sum string) *appsac.DeploymentApplyConfiguration {
	labels := map[string]string{"berth": berth.Name}
	replicas, _ := strconv.Atoi(berth.Data["replicas"])
	owner := metav1ac.OwnerReference().WithAPIVersion("v1").WithKind("ConfigMap").WithName(berth.Name).WithUID(berth.UID).
		WithController(true).WithBlockOwnerDeletion(true)
	return appsac.Deployment(berth.Name, berth.Namespace).WithLabels(labels).WithOwnerReferences(owner).WithSpec(appsac.DeploymentSpec().
		WithReplicas(int32(replicas)).
		WithSelector(metav1ac.LabelSelector().WithMatchLabels(labels)).
		WithTemplate(corev1ac.PodTemplateSpec().WithLabels(labels).WithAnnotations(map[string]string{sumKey: sum}).
			WithSpec(corev1ac.PodSpec().WithContainers(corev1ac.Container().WithName("main").WithImage(berth.Data["image"])))))
}

func (r *berths) service(ctx context.Context, berth *corev1.ConfigMap) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: berth.Name, Namespace: berth.Namespace}}
	done, err := controllerutil.CreateOrUpdate(ctx, r.Client, service, func() error {
		service.Spec.Selector = map[string]string{"berth": berth.Name}
		service.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}}
		return controllerutil.SetControllerReference(berth, service, r.Scheme())
	})
	if err == nil && done == controllerutil.OperationResultCreated {
		r.recorder.Eventf(berth, service, corev1.EventTypeNormal, "Moored", "Creating", "service %s made by %s", service.Name, r.name)
	}
	return err
}

// report writes how many replicas are ready as an annotation, by a merge patch that fails when the ConfigMap has moved on.
func (r *berths) report(ctx context.Context, berth *corev1.ConfigMap) error {
	var deployment appsv1.Deployment
	if err := r.Get(ctx, client.ObjectKeyFromObject(berth), &deployment); err != nil {
		return client.IgnoreNotFound(err)
	}
	ready := fmt.Sprintf("%d/%d", deployment.Status.ReadyReplicas, *deployment.Spec.Replicas)
	if berth.Annotations[readyKey] == ready {
		return nil
	}
	before := berth.DeepCopy()
	metav1.SetMetaDataAnnotation(&berth.ObjectMeta, readyKey, ready)
	return r.Patch(ctx, berth, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// leave leaves a note, and lets go.
func (r *berths) leave(ctx context.Context, berth *corev1.ConfigMap) error {
	if !controllerutil.ContainsFinalizer(berth, finalizer) {
		return nil
	}
	note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: berth.Name + "-left", Namespace: berth.Namespace}}
	if err := r.Create(ctx, note); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	controllerutil.RemoveFinalizer(berth, finalizer)
	return client.IgnoreNotFound(r.Update(ctx, berth))
}
