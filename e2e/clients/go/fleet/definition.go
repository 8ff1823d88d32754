package fleet

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hooks say where the webhooks are: by address, as nothing can reach a Service where the test runs.
type hooks struct {
	base string
	ca   []byte
}

func (h hooks) url(path string) *string {
	url := h.base + path
	return &url
}

type props = apiextensionsv1.JSONSchemaProps

func object(properties map[string]props) props { return props{Type: "object", Properties: properties} }

func pointer[T any](value T) *T { return &value }

func version(name string, storage bool, spec map[string]props) apiextensionsv1.CustomResourceDefinitionVersion {
	yes := true
	conditions := props{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &props{Type: "object", XPreserveUnknownFields: &yes}}}
	status := object(map[string]props{"ready": {Type: "integer"}, "observedGeneration": {Type: "integer", Format: "int64"}, "conditions": conditions})
	schema := object(map[string]props{"spec": object(spec), "status": status})
	return apiextensionsv1.CustomResourceDefinitionVersion{
		Name: name, Served: true, Storage: storage,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &schema},
		Subresources: &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
			Scale:  &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.crew", StatusReplicasPath: ".status.ready"},
		},
		AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
			{Name: "Crew", Type: "integer", JSONPath: ".spec.crew"}, {Name: "Ready", Type: "integer", JSONPath: ".status.ready"},
		},
	}
}

// definition stores v1alpha1 in the beginning, as one does that was made before there was a v1.
func (h hooks) definition() *apiextensionsv1.CustomResourceDefinition {
	crew := props{Type: "integer", Format: "int32", Minimum: pointer(0.0)}
	port := props{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"harbour"`)}}
	rig := props{Type: "string", Enum: []apiextensionsv1.JSON{}}
	for _, name := range rigs {
		rig.Enum = append(rig.Enum, apiextensionsv1.JSON{Raw: []byte(`"` + name + `"`)})
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "ships." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "ships", Singular: "ship", Kind: "Ship", ListKind: "ShipList", ShortNames: []string{"sh"}},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				version(v1.Version, false, map[string]props{"masts": {Type: "integer", Format: "int32"}, "crew": crew, "port": port}),
				version(alpha.Version, true, map[string]props{"rig": rig, "crew": crew, "port": port}),
			},
			Conversion: &apiextensionsv1.CustomResourceConversion{
				Strategy: apiextensionsv1.WebhookConverter,
				Webhook: &apiextensionsv1.WebhookConversion{
					ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: h.url("/convert"), CABundle: h.ca},
					ConversionReviewVersions: []string{"v1"},
				},
			},
		},
	}
}

func (h hooks) rules() []admissionv1.RuleWithOperations {
	return []admissionv1.RuleWithOperations{{
		Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update, admissionv1.Delete},
		Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{v1.Version}, Resources: []string{"ships"}},
	}}
}

const path = "fleet-portolan-dev-example-v1-ship"

func (h hooks) mutating() *admissionv1.MutatingWebhookConfiguration {
	return &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet"},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: "mship." + group, Rules: h.rules(), AdmissionReviewVersions: []string{"v1"},
			SideEffects:  pointer(admissionv1.SideEffectClassNone),
			ClientConfig: admissionv1.WebhookClientConfig{URL: h.url("/mutate-" + path), CABundle: h.ca},
		}},
	}
}

func (h hooks) validating() *admissionv1.ValidatingWebhookConfiguration {
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "vship." + group, Rules: h.rules(), AdmissionReviewVersions: []string{"v1"},
			SideEffects:  pointer(admissionv1.SideEffectClassNone),
			ClientConfig: admissionv1.WebhookClientConfig{URL: h.url("/validate-" + path), CABundle: h.ca},
		}},
	}
}
