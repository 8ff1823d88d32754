package main

import (
	"fmt"
	"reflect"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// build makes the whole table.
func build(report bool) (*table, error) {
	version, err := moduleVersion()
	if err != nil {
		return nil, err
	}
	types, err := versionedScheme()
	if err != nil {
		return nil, err
	}
	r := &reflector{types: map[string]*typeEntry{}, goTypes: map[string]reflect.Type{}}
	t := &table{Version: version, Types: r.types}
	if err := t.addKinds(types, r); err != nil {
		return nil, err
	}
	if err := t.addOpenAPI(); err != nil {
		return nil, fmt.Errorf("OpenAPI: %w", err)
	}
	if err := t.addStrategies(); err != nil {
		return nil, fmt.Errorf("strategies: %w", err)
	}
	if err := t.addDefaults(types, report); err != nil {
		return nil, fmt.Errorf("defaults: %w", err)
	}
	return t, nil
}

func versionedScheme() (*runtime.Scheme, error) {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		scheme.AddToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme, metav1.AddMetaToScheme,
	} {
		if err := add(types); err != nil {
			return nil, err
		}
	}
	return types, nil
}
