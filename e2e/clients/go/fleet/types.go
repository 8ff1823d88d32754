package fleet

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
)

const group = "fleet.portolan.dev.example"

var (
	v1    = schema.GroupVersion{Group: group, Version: "v1"}
	alpha = schema.GroupVersion{Group: group, Version: "v1alpha1"}
)

// Ship is the hub: what all versions are converted through.
type Ship struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              ShipSpec   `json:"spec,omitempty"`
	Status            ShipStatus `json:"status,omitempty"`
}

// ShipSpec says what is wanted.
type ShipSpec struct {
	Masts int32  `json:"masts,omitempty"`
	Crew  int32  `json:"crew,omitempty"`
	Port  string `json:"port,omitempty"`
}

// ShipStatus says what is there.
type ShipStatus struct {
	Ready              int32              `json:"ready,omitempty"`
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// ShipList is a list of ships.
type ShipList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Ship `json:"items"`
}

// OldShip is a Ship of v1alpha1, which had one field for its rig.
type OldShip struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              OldShipSpec `json:"spec,omitempty"`
	Status            ShipStatus  `json:"status,omitempty"`
}

// OldShipSpec has the masts as a word.
type OldShipSpec struct {
	Rig  string `json:"rig,omitempty"`
	Crew int32  `json:"crew,omitempty"`
	Port string `json:"port,omitempty"`
}

// OldShipList is a list of those.
type OldShipList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OldShip `json:"items"`
}

var rigs = []string{"hulk", "sloop", "brig", "barque"}

// Hub marks v1.
func (*Ship) Hub() {}

// ConvertTo makes a v1 of it.
func (o *OldShip) ConvertTo(hub conversion.Hub) error {
	ship := hub.(*Ship)
	ship.ObjectMeta, ship.Status = o.ObjectMeta, o.Status
	ship.Spec = ShipSpec{Crew: o.Spec.Crew, Port: o.Spec.Port}
	for masts, rig := range rigs {
		if rig == o.Spec.Rig {
			ship.Spec.Masts = int32(masts)
			return nil
		}
	}
	return fmt.Errorf("nobody knows the rig %q", o.Spec.Rig)
}

// ConvertFrom makes it of a v1.
func (o *OldShip) ConvertFrom(hub conversion.Hub) error {
	ship := hub.(*Ship)
	if int(ship.Spec.Masts) >= len(rigs) {
		return fmt.Errorf("%d masts are too many for v1alpha1", ship.Spec.Masts)
	}
	o.ObjectMeta, o.Status = ship.ObjectMeta, ship.Status
	o.Spec = OldShipSpec{Rig: rigs[ship.Spec.Masts], Crew: ship.Spec.Crew, Port: ship.Spec.Port}
	return nil
}

func register(scheme *runtime.Scheme) {
	scheme.AddKnownTypes(v1, &Ship{}, &ShipList{})
	scheme.AddKnownTypeWithName(alpha.WithKind("Ship"), &OldShip{})
	scheme.AddKnownTypeWithName(alpha.WithKind("ShipList"), &OldShipList{})
	metav1.AddToGroupVersion(scheme, v1)
	metav1.AddToGroupVersion(scheme, alpha)
}

// DeepCopyInto copies all that is shared.
func (s *ShipStatus) DeepCopyInto(out *ShipStatus) {
	*out = *s
	out.Conditions = nil
	for _, condition := range s.Conditions {
		out.Conditions = append(out.Conditions, *condition.DeepCopy())
	}
}

// DeepCopyObject is what runtime.Object asks for.
func (s *Ship) DeepCopyObject() runtime.Object {
	out := *s
	s.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	s.Status.DeepCopyInto(&out.Status)
	return &out
}

// DeepCopyObject is what runtime.Object asks for.
func (o *OldShip) DeepCopyObject() runtime.Object {
	out := *o
	o.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	o.Status.DeepCopyInto(&out.Status)
	return &out
}

// DeepCopyObject is what runtime.Object asks for.
func (l *ShipList) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = nil
	for at := range l.Items {
		out.Items = append(out.Items, *l.Items[at].DeepCopyObject().(*Ship))
	}
	return &out
}

// DeepCopyObject is what runtime.Object asks for.
func (l *OldShipList) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = nil
	for at := range l.Items {
		out.Items = append(out.Items, *l.Items[at].DeepCopyObject().(*OldShip))
	}
	return &out
}
