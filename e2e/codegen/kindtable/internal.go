package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/certificates"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/kubernetes/pkg/apis/rbac"
	resourceapi "k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/apis/storage"
)

// shown are the internal types whose values upstream puts into the texts of errors, each with its published form.
var shown = []struct{ internal, published any }{
	{metav1.LabelSelector{}, metav1.LabelSelector{}}, {metav1.OwnerReference{}, metav1.OwnerReference{}},
	{api.PodTemplateSpec{}, corev1.PodTemplateSpec{}}, {api.EphemeralContainer{}, corev1.EphemeralContainer{}},
	{api.PersistentVolumeSource{}, corev1.PersistentVolumeSource{}}, {api.PersistentVolumeClaimSpec{}, corev1.PersistentVolumeClaimSpec{}},
	{api.EventSource{}, corev1.EventSource{}}, {api.ServicePort{}, corev1.ServicePort{}}, {api.Toleration{}, corev1.Toleration{}}, {api.PodIP{}, corev1.PodIP{}}, {api.HostIP{}, corev1.HostIP{}},
	{api.Taint{}, corev1.Taint{}}, {api.NodeAddress{}, corev1.NodeAddress{}}, {api.NodeConfigSource{}, corev1.NodeConfigSource{}},
	{api.ScopeSelector{}, corev1.ScopeSelector{}}, {api.VolumeNodeAffinity{}, corev1.VolumeNodeAffinity{}},
	{apps.DeploymentStrategy{}, appsv1.DeploymentStrategy{}}, {apps.DaemonSetUpdateStrategy{}, appsv1.DaemonSetUpdateStrategy{}},
	{apps.StatefulSetUpdateStrategy{}, appsv1.StatefulSetUpdateStrategy{}},
	{batch.PodFailurePolicy{}, batchv1.PodFailurePolicy{}}, {batch.SuccessPolicy{}, batchv1.SuccessPolicy{}},
	{batch.UncountedTerminatedPods{}, batchv1.UncountedTerminatedPods{}},
	{networking.ServiceCIDRSpec{}, networkingv1.ServiceCIDRSpec{}}, {networking.ParentReference{}, networkingv1.ParentReference{}},
	{networking.IngressBackend{}, networkingv1.IngressBackend{}},
	{rbac.RoleRef{}, rbacv1.RoleRef{}}, {policy.PodDisruptionBudgetSpec{}, policyv1.PodDisruptionBudgetSpec{}},
	{storage.VolumeAttachmentSpec{}, storagev1.VolumeAttachmentSpec{}}, {storage.CSINodeDriver{}, storagev1.CSINodeDriver{}},
	{certificates.CertificateSigningRequestSpec{}, certificatesv1.CertificateSigningRequestSpec{}},
	{certificates.CertificateSigningRequestCondition{}, certificatesv1.CertificateSigningRequestCondition{}},
	{flowcontrol.FlowSchemaSpec{}, flowcontrolv1.FlowSchemaSpec{}},
	{flowcontrol.PriorityLevelConfigurationSpec{}, flowcontrolv1.PriorityLevelConfigurationSpec{}},
	{resourceapi.ResourceClaimSpec{}, resourcev1.ResourceClaimSpec{}},
	{resourceapi.ResourceSliceSpec{}, resourcev1.ResourceSliceSpec{}},
	{resourceapi.ResourceClaimTemplateSpec{}, resourcev1.ResourceClaimTemplateSpec{}},
	{resourceapi.AllocationResult{}, resourcev1.AllocationResult{}},
	{admissionregistration.AuditAnnotation{}, admissionregistrationv1.AuditAnnotation{}},
}

// internalField is a field of an internal type: its name in the internal form (none: its own fields stand in its place), its
// name in the published form, and its type. `*` before a type is a pointer, `[]` a list, `{}` a map, `?` left out when empty.
type internalField [3]string

type internalForms struct {
	types map[string][]internalField
}

func writeInternal(path string) error {
	forms := internalForms{types: map[string][]internalField{}}
	for _, pair := range shown {
		if _, err := forms.message(reflect.TypeOf(pair.internal), reflect.TypeOf(pair.published)); err != nil {
			return err
		}
	}
	var out bytes.Buffer
	out.WriteString("{\n")
	names := slices.Sorted(maps.Keys(forms.types))
	for i, name := range names {
		text, err := json.Marshal(forms.types[name])
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%q:%s%s\n", name, text, comma(i, len(names)))
	}
	out.WriteString("}\n")
	return os.WriteFile(path, out.Bytes(), 0o644)
}

func (f *internalForms) message(internal, published reflect.Type) (string, error) {
	name := internal.Name()
	if _, ok := f.types[name]; ok {
		return name, nil
	}
	f.types[name] = nil
	var fields []internalField
	for i := range internal.NumField() {
		field := internal.Field(i)
		if !field.IsExported() {
			continue
		}
		own, omit, inline := fieldName(field)
		if own == "-" {
			continue
		}
		other, ok := published.FieldByName(field.Name)
		if !ok {
			other, ok = renamed(published, field)
		}
		from := ""
		if ok {
			from, _, _ = fieldName(other)
		} else {
			other.Type = field.Type // set by conversion, from elsewhere
			from = strings.ToLower(field.Name[:1]) + field.Name[1:]
		}
		kind, err := f.kind(field.Type, other.Type)
		if err != nil {
			return "", fmt.Errorf("%s.%s: %w", name, field.Name, err)
		}
		if omit {
			kind = "?" + kind
		}
		if inline {
			own, from = "", ""
			if ok && !other.Anonymous || field.Name == "ObjectMeta" {
				from, _, _ = fieldName(other)
			}
		}
		fields = append(fields, internalField{own, from, kind})
	}
	f.types[name] = fields
	return name, nil
}

// renamed finds the published field of another name or case.
func renamed(published reflect.Type, field reflect.StructField) (reflect.StructField, bool) {
	return published.FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, field.Name) })
}

// fieldName gives the JSON name of a field, whether it is left out when empty, and whether its fields stand in its place.
func fieldName(field reflect.StructField) (name string, omit, inline bool) {
	parts := strings.Split(field.Tag.Get("json"), ",")
	name = parts[0]
	for _, option := range parts[1:] {
		omit = omit || option == "omitempty" || option == "omitzero"
	}
	if name == "" {
		name, inline = field.Name, field.Anonymous
	}
	return name, omit, inline
}

func (f *internalForms) kind(internal, published reflect.Type) (string, error) {
	switch goPath(internal) {
	case "k8s.io/apimachinery/pkg/api/resource.Quantity":
		return "quantity", nil
	case "k8s.io/apimachinery/pkg/util/intstr.IntOrString":
		return "number", nil
	case "k8s.io/apimachinery/pkg/apis/meta/v1.Time", "k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime",
		"k8s.io/apimachinery/pkg/runtime.RawExtension", "k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1":
		return "any", nil
	}
	if internal.Kind() != reflect.Pointer && published.Kind() == reflect.Pointer {
		published = published.Elem()
	}
	switch internal.Kind() {
	case reflect.String:
		return "string", nil
	case reflect.Bool:
		return "bool", nil
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return "number", nil
	case reflect.Interface:
		return "any", nil
	case reflect.Pointer:
		if published.Kind() == reflect.Pointer {
			published = published.Elem()
		}
		inner, err := f.kind(internal.Elem(), published)
		return "*" + inner, err
	case reflect.Slice, reflect.Map:
		if internal.Elem().Kind() == reflect.Uint8 {
			return "any", nil
		}
		prefix := "[]"
		if internal.Kind() == reflect.Map {
			prefix = "{}"
		}
		inner, err := f.kind(internal.Elem(), published.Elem())
		return prefix + inner, err
	case reflect.Struct:
		return f.message(internal, published)
	}
	return "", fmt.Errorf("kind %v", internal)
}
