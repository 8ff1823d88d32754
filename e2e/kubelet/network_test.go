package main

import (
	"fmt"
	"testing"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pointer[T any](value T) *T { return &value }

func TestServicesLeadToReadyEndpointsOfTheirPort(t *testing.T) {
	service := func(name, address string, ports ...core.ServicePort) *core.Service {
		return &core.Service{
			ObjectMeta: meta.ObjectMeta{Namespace: "a", Name: name},
			Spec:       core.ServiceSpec{ClusterIP: address, Ports: ports},
		}
	}
	endpoint := func(address string, ready *bool) discovery.Endpoint {
		return discovery.Endpoint{Addresses: []string{address}, Conditions: discovery.EndpointConditions{Ready: ready}}
	}
	slice := &discovery.EndpointSlice{
		ObjectMeta: meta.ObjectMeta{Namespace: "a", Labels: map[string]string{discovery.LabelServiceName: "web"}},
		Endpoints: []discovery.Endpoint{
			endpoint("10.1.0.2", nil), endpoint("10.1.0.1", pointer(true)), endpoint("10.1.0.3", pointer(false)),
		},
		Ports: []discovery.EndpointPort{
			{Name: pointer("http"), Port: pointer(int32(8080))}, {Name: pointer("dns"), Port: pointer(int32(5353))},
		},
	}
	found := table([]*core.Service{
		service("web", "10.1.128.1", core.ServicePort{Name: "http", Port: 80},
			core.ServicePort{Name: "dns", Port: 53, Protocol: core.ProtocolUDP}),
		service("empty", "10.1.128.2", core.ServicePort{Port: 80}),
		service("headless", core.ClusterIPNone, core.ServicePort{Port: 80}),
		service("outside", ""),
	}, []*discovery.EndpointSlice{slice})
	text := ""
	for _, service := range found {
		text += fmt.Sprintf("%v:%d/%d", service.address, service.port, service.protocol)
		for _, backend := range service.backends {
			text += fmt.Sprintf(" %v:%d", backend.address, backend.port)
		}
		text += "\n"
	}
	expected := "10.1.128.1:80/6 10.1.0.1:8080 10.1.0.2:8080\n" +
		"10.1.128.1:53/17 10.1.0.1:5353 10.1.0.2:5353\n10.1.128.2:80/6\n"
	if text != expected {
		t.Errorf("found\n%sexpected\n%s", text, expected)
	}
}

func TestAddressesOfPodsAreUsedOneAfterAnother(t *testing.T) {
	n := newNetwork(&settings{})
	for _, expected := range []int{2, 3, 4} {
		if last, err := n.free(); err != nil || last != expected {
			t.Errorf("%d, %v; expected %d", last, err, expected)
		}
	}
	for last := range 255 {
		n.used[last] = last != 3
	}
	if last, err := n.free(); err != nil || last != 3 {
		t.Errorf("%d, %v: only 3 is free", last, err)
	}
	n.used[3] = true
	if last, err := n.free(); err == nil {
		t.Errorf("%d is in use", last)
	}
}
