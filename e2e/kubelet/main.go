// Program kubelet is the kubelet of the pinned Kubernetes release on a container runtime of its own: each container is
// a process of this machine in its own mount, process and network namespaces. Images are only names, and the root of a
// container is a copy-on-write view of this machine's. Nothing of it outlives the program: all processes get SIGKILL
// with it, and all mounts are in its own mount namespace.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	noopoteltrace "go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sys/unix"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubeletutil "k8s.io/kubernetes/pkg/kubelet/util"
	"k8s.io/kubernetes/pkg/util/oom"
)

// settings are the flags of the program.
type settings struct {
	kubeconfig  string
	dir         string
	node        string
	bridge      string
	address     string
	podPrefix   string
	entrypoints entrypoints
}

func main() {
	if isContainer() {
		runContainer()
	}
	var s settings
	flag.StringVar(&s.kubeconfig, "kubeconfig", "", "administrator's kubeconfig of the API server")
	flag.StringVar(&s.dir, "dir", "", "folder of volumes, logs and root file systems")
	flag.StringVar(&s.node, "node", "", "name of the node")
	flag.StringVar(&s.bridge, "bridge", "", "bridge of this machine that connects the pods")
	flag.StringVar(&s.address, "address", "", "address of the bridge: that of the node, and the gateway of pods")
	flag.StringVar(&s.podPrefix, "pod-prefix", "", "first three numbers of the pods' addresses, such as 10.128.1")
	flag.Var(&s.entrypoints, "entrypoint", "IMAGE=PROGRAM: program of containers of the image without a command; repeatable")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, &s); err != nil {
		log.Fatal(err)
	}
}

// run starts the kubelet and returns when ctx ends.
func run(ctx context.Context, s *settings) error {
	clientConfig, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return err
	}
	clientConfig.QPS, clientConfig.Burst = -1, -1
	client, err := kubernetes.NewForConfig(clientConfig)
	if err != nil {
		return err
	}
	network := newNetwork(s)
	runtime, err := newRuntime(s, network)
	if err != nil {
		return err
	}
	go network.follow(ctx, client)
	server, err := configuration(s)
	if err != nil {
		return err
	}
	deps, err := dependencies(ctx, s, server, clientConfig)
	if err != nil {
		return err
	}
	deps.RemoteRuntimeService, deps.RemoteImageService = runtime, images{dir: s.dir}
	if err := kubeletapp.RunKubelet(ctx, server, deps); err != nil {
		return err
	}
	<-ctx.Done()
	runtime.killAll()
	return nil
}

// configuration returns the settings of a kubelet without cgroups and evictions, with short periods.
func configuration(s *settings) (*options.KubeletServer, error) {
	flags := options.NewKubeletFlags()
	flags.RootDirectory = filepath.Join(s.dir, "kubelet")
	flags.CertDirectory = filepath.Join(s.dir, "pki")
	flags.HostnameOverride = s.node
	flags.NodeIP = s.address
	config, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, err
	}
	config.Address = s.address
	config.PodLogsDir = filepath.Join(s.dir, "logs")
	config.CgroupsPerQOS = false
	config.EnforceNodeAllocatable = nil
	config.EvictionHard = map[string]string{}
	config.LocalStorageCapacityIsolation = false
	config.EnableControllerAttachDetach = false
	config.FailSwapOn = false
	config.RegisterNode = true
	config.MaxPods = 200
	config.SyncFrequency.Duration = 5 * time.Second
	config.NodeStatusUpdateFrequency.Duration = 5 * time.Second
	config.SerializeImagePulls = false
	for _, dir := range []string{flags.RootDirectory, flags.CertDirectory, config.PodLogsDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	return &options.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *config}, nil
}

// dependencies returns those of the published kubelet: real volumes, probes and mounts, but no cgroups.
func dependencies(
	ctx context.Context, s *settings, server *options.KubeletServer, clientConfig *rest.Config,
) (*kubelet.Dependencies, error) {
	deps, err := kubeletapp.UnsecuredDependencies(ctx, server, utilfeature.DefaultFeatureGate)
	if err != nil {
		return nil, err
	}
	if deps.KubeClient, err = kubernetes.NewForConfig(clientConfig); err != nil {
		return nil, err
	}
	heartbeats := rest.CopyConfig(clientConfig)
	heartbeats.Timeout = server.NodeStatusUpdateFrequency.Duration
	if deps.HeartbeatClient, err = kubernetes.NewForConfig(heartbeats); err != nil {
		return nil, err
	}
	deps.EventClient = deps.KubeClient.CoreV1()
	deps.TracerProvider = noopoteltrace.NewTracerProvider()
	deps.CAdvisorInterface = &machine{Fake: cadvisortest.Fake{NodeName: s.node}}
	deps.ContainerManager = cm.NewStubContainerManager()
	deps.OOMAdjuster = oom.NewFakeOOMAdjuster()
	deps.PodStartupLatencyTracker = kubeletutil.NewPodStartupLatencyTracker()
	deps.NodeStartupLatencyTracker = kubeletutil.NewNodeStartupLatencyTracker()
	return deps, nil
}

// machine tells the scheduler of more capacity than this machine has: the pods of tests are idle for the most part.
type machine struct{ cadvisortest.Fake }

func (m *machine) MachineInfo() (*cadvisorapi.MachineInfo, error) {
	info := &cadvisorapi.MachineInfo{NumCores: 16, MemoryCapacity: 32 << 30}
	info.InstanceID = cadvisorapi.InstanceID(m.NodeName)
	return info, nil
}

func (m *machine) VersionInfo() (*cadvisorapi.VersionInfo, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, err
	}
	return &cadvisorapi.VersionInfo{
		KernelVersion: unix.ByteSliceToString(name.Release[:]), ContainerOsVersion: "processes of one machine",
	}, nil
}

// entrypoints are the programs of images.
type entrypoints map[string]string

func (e *entrypoints) String() string { return fmt.Sprint(map[string]string(*e)) }

func (e *entrypoints) Set(text string) error {
	image, program, found := strings.Cut(text, "=")
	if !found {
		return fmt.Errorf("%q is not IMAGE=PROGRAM", text)
	}
	if *e == nil {
		*e = entrypoints{}
	}
	(*e)[image] = program
	return nil
}
