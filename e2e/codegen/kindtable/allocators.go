package main

import (
	"net"

	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
)

// anyAddress gives services every address they ask for: what is free is for the running servers to say.
type anyAddress struct{}

func (anyAddress) Allocate(net.IP) error         { return nil }
func (anyAddress) AllocateNext() (net.IP, error) { return net.IPv4(10, 96, 0, 77), nil }
func (anyAddress) Release(net.IP) error          { return nil }
func (anyAddress) ForEach(func(net.IP))          {}
func (anyAddress) CIDR() net.IPNet               { return net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)} }
func (anyAddress) IPFamily() api.IPFamily        { return api.IPv4Protocol }
func (anyAddress) Has(net.IP) bool               { return false }
func (anyAddress) Destroy()                      {}
func (anyAddress) EnableMetrics()                {}
func (anyAddress) DryRun() ipallocator.Interface { return anyAddress{} }

// anyPort gives services every port they ask for.
type anyPort struct{}

func (anyPort) Allocate(int) error         { return nil }
func (anyPort) AllocateNext() (int, error) { return 30077, nil }
func (anyPort) Release(int) error          { return nil }
func (anyPort) ForEach(func(int))          {}
func (anyPort) Has(int) bool               { return false }
func (anyPort) Destroy()                   {}
func (anyPort) EnableMetrics()             {}
