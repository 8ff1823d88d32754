package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	goruntime "runtime"
	"sort"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// network connects pods by a bridge. Each pod has the rules for the addresses of Services in its own namespace, so that
// no rule is in that of this machine, and a server sees the address of the pod that is its client.
type network struct {
	settings *settings

	mutex sync.Mutex
	// used are the last numbers of the addresses that pods have.
	used map[int]bool
	// pods are the files of their network namespaces, by sandbox.
	pods     map[string]string
	services []service
	next     int
}

// service is a port of a Service with its ready endpoints.
type service struct {
	address  net.IP
	port     uint16
	protocol byte
	backends []backend
}

type backend struct {
	address net.IP
	port    uint16
}

func newNetwork(s *settings) *network {
	return &network{settings: s, used: map[int]bool{}, pods: map[string]string{}, next: 2}
}

// connect connects a network namespace, and returns the address of the pod and what gives it back.
func (n *network) connect(id string, pid int) (string, func(), error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	last, err := n.free()
	if err != nil {
		return "", nil, err
	}
	link, address := "ve"+id[:10], fmt.Sprintf("%s.%d", n.settings.podPrefix, last)
	namespace := fmt.Sprintf("/proc/%d/ns/net", pid)
	outside := fmt.Sprintf("link add %s type veth peer name eth0 netns %d\nlink set %s master %s up\n",
		link, pid, link, n.settings.bridge)
	if err := ip(outside, "ip"); err != nil {
		return "", nil, err
	}
	inside := fmt.Sprintf("link set lo up\naddr add %s/17 dev eth0\nlink set eth0 up\nroute add default via %s\n",
		address, n.settings.address)
	if err := ip(inside, "nsenter", "--net="+namespace, "ip"); err != nil {
		return "", nil, err
	}
	if err := route(namespace, n.services); err != nil {
		return "", nil, fmt.Errorf("nftables is not available: %w", err)
	}
	n.used[last], n.pods[id] = true, namespace
	return address, func() {
		n.mutex.Lock()
		defer n.mutex.Unlock()
		delete(n.used, last)
		delete(n.pods, id)
	}, nil
}

// free returns a number that no pod has, and not soon one that another pod had.
func (n *network) free() (int, error) {
	for range 253 {
		last := n.next
		n.next = 2 + (n.next-1)%253
		if !n.used[last] {
			return last, nil
		}
	}
	return 0, fmt.Errorf("all addresses of pods are in use")
}

func ip(lines string, command ...string) error {
	run := exec.Command(command[0], append(command[1:], "-batch", "-")...)
	run.Stdin = bytes.NewBufferString(lines)
	if output, err := run.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", command, err, output)
	}
	return nil
}

// within runs a function on a thread in a network namespace; an empty name is that of this machine.
func within(namespace string, function func() error) error {
	if namespace == "" {
		return function()
	}
	target, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer target.Close()
	result := make(chan error, 1)
	go func() {
		// The thread ends with the goroutine, so nothing else runs in the namespace.
		goruntime.LockOSThread()
		if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- err
			return
		}
		result <- function()
	}()
	return <-result
}

// follow keeps the rules of all pods equal to the Services and their endpoints, until ctx ends.
func (n *network) follow(ctx context.Context, client kubernetes.Interface) {
	factory := informers.NewSharedInformerFactory(client, 0)
	services := factory.Core().V1().Services()
	slices := factory.Discovery().V1().EndpointSlices()
	changed := make(chan struct{}, 1)
	wake := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { wake() }, UpdateFunc: func(any, any) { wake() }, DeleteFunc: func(any) { wake() },
	}
	for _, informer := range []cache.SharedIndexInformer{services.Informer(), slices.Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			log.Fatal(err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		allServices, _ := services.Lister().List(labels.Everything())
		allSlices, _ := slices.Lister().List(labels.Everything())
		n.update(table(allServices, allSlices))
	}
}

func (n *network) update(services []service) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.services = services
	for id, namespace := range n.pods {
		if err := route(namespace, services); err != nil {
			log.Printf("sandbox %s: %v", id, err)
		}
	}
}

// table returns the ports of all Services that have an IPv4 address.
func table(services []*core.Service, slices []*discovery.EndpointSlice) []service {
	bySlice := map[string][]*discovery.EndpointSlice{}
	for _, slice := range slices {
		key := slice.Namespace + "/" + slice.Labels[discovery.LabelServiceName]
		bySlice[key] = append(bySlice[key], slice)
	}
	var found []service
	for _, object := range services {
		address := net.ParseIP(object.Spec.ClusterIP).To4()
		if address == nil {
			continue
		}
		for _, port := range object.Spec.Ports {
			made := service{address: address, port: uint16(port.Port), protocol: unix.IPPROTO_TCP}
			if port.Protocol == core.ProtocolUDP {
				made.protocol = unix.IPPROTO_UDP
			}
			for _, slice := range bySlice[object.Namespace+"/"+object.Name] {
				made.backends = append(made.backends, backends(slice, port.Name)...)
			}
			sort.Slice(made.backends, func(i, j int) bool {
				return bytes.Compare(made.backends[i].address, made.backends[j].address) < 0
			})
			found = append(found, made)
		}
	}
	return found
}

func backends(slice *discovery.EndpointSlice, name string) []backend {
	var found []backend
	for _, port := range slice.Ports {
		if port.Port == nil || (port.Name == nil && name != "") || (port.Name != nil && *port.Name != name) {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready != nil && !*endpoint.Conditions.Ready {
				continue
			}
			for _, text := range endpoint.Addresses {
				if address := net.ParseIP(text).To4(); address != nil {
					found = append(found, backend{address, uint16(*port.Port)})
				}
			}
		}
	}
	return found
}

// route replaces the rules of a network namespace: connections to a Service lead to one of its endpoints, and are
// refused if there is none.
func route(namespace string, services []service) error {
	file, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer file.Close()
	rules, err := nftables.New(nftables.WithNetNSFd(int(file.Fd())))
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: "services", Family: nftables.TableFamilyIPv4}
	// A table must be there to be deleted.
	rules.AddTable(table)
	rules.DelTable(table)
	rules.AddTable(table)
	translate := rules.AddChain(&nftables.Chain{
		Name: "translate", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput,
		Priority: nftables.ChainPriorityNATDest,
	})
	refuse := rules.AddChain(&nftables.Chain{
		Name: "refuse", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput,
		Priority: nftables.ChainPriorityFilter,
	})
	for _, service := range services {
		for index, backend := range service.backends {
			expressions := append(service.match(), oneOf(len(service.backends)-index)...)
			expressions = append(expressions, backend.translate()...)
			rules.AddRule(&nftables.Rule{Table: table, Chain: translate, Exprs: expressions})
		}
		if len(service.backends) == 0 {
			rejection := &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3}
			if service.protocol == unix.IPPROTO_TCP {
				rejection = &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}
			}
			rules.AddRule(&nftables.Rule{Table: table, Chain: refuse, Exprs: append(service.match(), rejection)})
		}
	}
	return rules.Flush()
}

func (s *service) match() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: s.address},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{s.protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(s.port)},
	}
}

// oneOf matches one connection of so many, by chance.
func oneOf(count int) []expr.Any {
	if count == 1 {
		return nil
	}
	return []expr.Any{
		&expr.Numgen{Register: 1, Modulus: uint32(count), Type: unix.NFT_NG_RANDOM},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
}

func (b *backend) translate() []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: b.address},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(b.port)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
	}
}
