package fleet

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const finalizer = group + "/moored"

// ships makes a Deployment of each Ship, and says in its status how many of its crew are there.
type ships struct{ client.Client }

func (r *ships) setUp(mgr ctrl.Manager) error {
	if err := ctrl.NewWebhookManagedBy(mgr, &Ship{}).WithDefaulter(rules{}).WithValidator(rules{}).Complete(); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).For(&Ship{}).Owns(&appsv1.Deployment{}).Complete(r)
}

// Reconcile is called with a name, never with what changed.
func (r *ships) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var ship Ship
	if err := r.Get(ctx, request.NamespacedName, &ship); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !ship.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.leave(ctx, &ship)
	}
	if controllerutil.AddFinalizer(&ship, finalizer) {
		return ctrl.Result{}, r.Update(ctx, &ship)
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: ship.Name, Namespace: ship.Namespace}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, deployment, func() error {
		labels := map[string]string{"ship": ship.Name}
		deployment.Spec.Replicas = &ship.Spec.Crew
		deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
		deployment.Spec.Template.Labels = labels
		deployment.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "registry.example/crew:1"}}
		return controllerutil.SetControllerReference(&ship, deployment, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	ship.Status.Ready, ship.Status.ObservedGeneration = deployment.Status.ReadyReplicas, ship.Generation
	manned := metav1.Condition{Type: "Manned", Status: metav1.ConditionFalse, Reason: "Hiring", ObservedGeneration: ship.Generation}
	if ship.Status.Ready == ship.Spec.Crew {
		manned.Status, manned.Reason = metav1.ConditionTrue, "AllAboard"
	}
	meta.SetStatusCondition(&ship.Status.Conditions, manned)
	return ctrl.Result{}, r.Status().Update(ctx, &ship)
}

// leave notes that the ship has left, and lets it go.
func (r *ships) leave(ctx context.Context, ship *Ship) error {
	note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ship.Name + "-left", Namespace: ship.Namespace}}
	if err := r.Create(ctx, note); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	controllerutil.RemoveFinalizer(ship, finalizer)
	return r.Update(ctx, ship)
}

// rules are the admission webhooks.
type rules struct{}

// Default hires a crew for each mast.
func (rules) Default(_ context.Context, ship *Ship) error {
	if ship.Spec.Crew == 0 {
		ship.Spec.Crew = ship.Spec.Masts
	}
	return nil
}

func (rules) check(ship *Ship) (admission.Warnings, error) {
	if ship.Spec.Crew > 10 {
		return nil, fmt.Errorf("a crew of %d is too many", ship.Spec.Crew)
	}
	if ship.Spec.Port == "" {
		return admission.Warnings{"the ship has no port"}, nil
	}
	return nil, nil
}

// ValidateCreate refuses large crews.
func (r rules) ValidateCreate(_ context.Context, ship *Ship) (admission.Warnings, error) {
	return r.check(ship)
}

// ValidateUpdate refuses another port, too.
func (r rules) ValidateUpdate(_ context.Context, old, ship *Ship) (admission.Warnings, error) {
	if old.Spec.Port != ship.Spec.Port {
		return nil, fmt.Errorf("the port of a ship does not change")
	}
	return r.check(ship)
}

// ValidateDelete refuses to sink the flagship.
func (rules) ValidateDelete(_ context.Context, ship *Ship) (admission.Warnings, error) {
	if ship.Labels["flagship"] == "yes" {
		return nil, fmt.Errorf("the flagship is not sunk")
	}
	return nil, nil
}
