// Program karmada measures the scheduling algorithm of Karmada: the choice of the policy, as its detector makes it,
// and core.ScheduleAlgorithm with all plugins and the general estimator, on objects in memory. The part `placement`
// of the benchmark gives Portolan's planner the same clusters, policies and objects.
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	clusterv1alpha1 "github.com/karmada-io/karmada/pkg/apis/cluster/v1alpha1"
	policyv1alpha1 "github.com/karmada-io/karmada/pkg/apis/policy/v1alpha1"
	workv1alpha2 "github.com/karmada-io/karmada/pkg/apis/work/v1alpha2"
	clusterlister "github.com/karmada-io/karmada/pkg/generated/listers/cluster/v1alpha1"
	schedulercache "github.com/karmada-io/karmada/pkg/scheduler/cache"
	"github.com/karmada-io/karmada/pkg/scheduler/core"
	"github.com/karmada-io/karmada/pkg/scheduler/framework/plugins"
	"github.com/karmada-io/karmada/pkg/util"
)

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func clusterOf(number int) *clusterv1alpha1.Cluster {
	amount := func(cpu, memory, pods string) corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory),
			corev1.ResourcePods:   resource.MustParse(pods),
		}
	}
	region := fmt.Sprintf("r%d", number%3)
	return &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%04d", number), Labels: map[string]string{"region": region}},
		Spec:       clusterv1alpha1.ClusterSpec{Region: region},
		Status: clusterv1alpha1.ClusterStatus{
			APIEnablements: []clusterv1alpha1.APIEnablement{{
				GroupVersion: "apps/v1",
				Resources:    []clusterv1alpha1.APIResource{{Name: "deployments", Kind: "Deployment"}},
			}},
			Conditions: []metav1.Condition{{Type: clusterv1alpha1.ClusterConditionReady, Status: metav1.ConditionTrue}},
			ResourceSummary: &clusterv1alpha1.ResourceSummary{
				Allocatable: amount("1000000", "4000Gi", "10000000"),
				Allocated:   amount("10", "10Gi", "100"),
			},
		},
	}
}

// Policy n is about the objects with the label tier=tN. It takes three clusters over the regions, and divides by
// their free room, which is the same everywhere.
func policyOf(number int) *policyv1alpha1.ClusterPropagationPolicy {
	return &policyv1alpha1.ClusterPropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%03d", number)},
		Spec: policyv1alpha1.PropagationSpec{
			ResourceSelectors: []policyv1alpha1.ResourceSelector{{
				APIVersion:    "apps/v1",
				Kind:          "Deployment",
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": fmt.Sprintf("t%d", number)}},
			}},
			Placement: policyv1alpha1.Placement{
				SpreadConstraints: []policyv1alpha1.SpreadConstraint{
					{SpreadByField: policyv1alpha1.SpreadByFieldRegion, MinGroups: 3, MaxGroups: 3},
					{SpreadByField: policyv1alpha1.SpreadByFieldCluster, MinGroups: 3, MaxGroups: 3},
				},
				ReplicaScheduling: &policyv1alpha1.ReplicaSchedulingStrategy{
					ReplicaSchedulingType:     policyv1alpha1.ReplicaSchedulingTypeDivided,
					ReplicaDivisionPreference: policyv1alpha1.ReplicaDivisionPreferenceWeighted,
					// With static weights it ignores the spread constraints.
					WeightPreference: &policyv1alpha1.ClusterPreferences{
						DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas,
					},
				},
			},
		},
	}
}

func objectOf(number, policies int) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("apps/v1")
	object.SetKind("Deployment")
	object.SetNamespace("shop")
	object.SetName(fmt.Sprintf("web-%d", number))
	object.SetLabels(map[string]string{"tier": fmt.Sprintf("t%d", number%policies)})
	return object
}

func bindingOf(object *unstructured.Unstructured) *workv1alpha2.ResourceBindingSpec {
	return &workv1alpha2.ResourceBindingSpec{
		Resource: workv1alpha2.ObjectReference{
			APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Namespace: object.GetNamespace(), Name: object.GetName(),
		},
		Replicas: 6,
		ReplicaRequirements: &workv1alpha2.ReplicaRequirements{
			ResourceRequest: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
		},
	}
}

// The world of one measurement.
type world struct {
	algorithm core.ScheduleAlgorithm
	policies  []*policyv1alpha1.ClusterPropagationPolicy
}

func newWorld(clusters, policies int) (*world, error) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for number := range clusters {
		if err := indexer.Add(clusterOf(number)); err != nil {
			return nil, err
		}
	}
	bindings := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	cached := schedulercache.NewCache(clusterlister.NewClusterLister(indexer), bindings, 0)
	algorithm, err := core.NewGenericScheduler(cached, plugins.NewInTreeRegistry())
	if err != nil {
		return nil, err
	}
	made := &world{algorithm: algorithm}
	for number := range policies {
		made.policies = append(made.policies, policyOf(number))
	}
	return made, nil
}

// The policy with the highest priority, as getHighestPriorityClusterPropagationPolicy of Karmada's detector finds it.
func (w *world) policyFor(object *unstructured.Unstructured) *policyv1alpha1.ClusterPropagationPolicy {
	implicit, explicit := util.PriorityMisMatch, int32(math.MinInt32)
	var found *policyv1alpha1.ClusterPropagationPolicy
	for _, policy := range w.policies {
		priority := util.ResourceMatchSelectorsPriority(object, policy.Spec.ResourceSelectors...)
		if priority <= util.PriorityMisMatch {
			continue
		}
		if own := policy.ExplicitPriority(); own > explicit || (own == explicit && priority > implicit) {
			implicit, explicit, found = priority, own, policy
		}
	}
	return found
}

func (w *world) place(object *unstructured.Unstructured, binding *workv1alpha2.ResourceBindingSpec) ([]workv1alpha2.TargetCluster, error) {
	policy := w.policyFor(object)
	if policy == nil {
		return nil, fmt.Errorf("no policy is about %s", object.GetName())
	}
	binding.Placement = &policy.Spec.Placement
	result, err := w.algorithm.Schedule(context.Background(), binding, &workv1alpha2.ResourceBindingStatus{}, &core.ScheduleAlgorithmOption{})
	if err != nil {
		return nil, err
	}
	var sum int32
	for _, target := range result.SuggestedClusters {
		sum += target.Replicas
	}
	if len(result.SuggestedClusters) != 3 || sum != binding.Replicas {
		return nil, fmt.Errorf("unexpected %v", result.SuggestedClusters)
	}
	return result.SuggestedClusters, nil
}

// The median time of one decision, in nanoseconds.
func one(clusters, policies, rounds int) (int64, error) {
	w, err := newWorld(clusters, policies)
	if err != nil {
		return 0, err
	}
	object := objectOf(policies-1, policies)
	binding := bindingOf(object)
	times := make([]time.Duration, 0, rounds)
	for range rounds {
		begun := time.Now()
		if _, err := w.place(object, binding); err != nil {
			return 0, err
		}
		times = append(times, time.Since(begun))
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	return times[len(times)/2].Nanoseconds(), nil
}

// The time of decisions about many objects that are placed already, in nanoseconds.
func many(clusters, policies, objects int) (int64, error) {
	w, err := newWorld(clusters, policies)
	if err != nil {
		return 0, err
	}
	all := make([]*unstructured.Unstructured, objects)
	bindings := make([]*workv1alpha2.ResourceBindingSpec, objects)
	for number := range objects {
		all[number] = objectOf(number, policies)
		bindings[number] = bindingOf(all[number])
		if bindings[number].Clusters, err = w.place(all[number], bindings[number]); err != nil {
			return 0, err
		}
	}
	begun := time.Now()
	for number := range objects {
		if _, err := w.place(all[number], bindings[number]); err != nil {
			return 0, err
		}
	}
	return time.Since(begun).Nanoseconds(), nil
}

func main() {
	clusters := flag.Int("clusters", 10, "number of clusters")
	policies := flag.Int("policies", 100, "number of policies")
	rounds := flag.Int("rounds", 0, "decide so often about one object, and print the median")
	objects := flag.Int("objects", 0, "decide about so many objects that are placed already, and print the time of all")
	flag.Parse()
	measured, count := one, *rounds
	if *objects > 0 {
		measured, count = many, *objects
	}
	nanoseconds, err := measured(*clusters, *policies, count)
	if err != nil {
		fail(err)
	}
	fmt.Println(nanoseconds)
}
