package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
)

// runtime is the container runtime: sandboxes, which are network namespaces, and containers, which are processes.
type runtime struct {
	settings *settings
	network  *network
	spawner  *spawner
	streams  streaming.Server

	mutex      sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
}

var _ cri.RuntimeService = &runtime{}

func newRuntime(s *settings, network *network) (*runtime, error) {
	// Those of a kubelet that was killed are left; their processes and mounts are gone with it.
	if err := os.RemoveAll(filepath.Join(s.dir, "containers")); err != nil {
		return nil, err
	}
	r := &runtime{
		settings: s, network: network, spawner: newSpawner(),
		sandboxes: map[string]*sandbox{}, containers: map[string]*container{},
	}
	config := streaming.DefaultConfig
	config.Addr = "127.0.0.1:0"
	var err error
	if r.streams, err = streaming.NewServer(config, &streamed{r}); err != nil {
		return nil, err
	}
	// It returns when the program ends.
	go r.streams.Start(true)
	return r, nil
}

// newID returns an identifier as those of other runtimes.
func newID() string {
	bytes := make([]byte, 32)
	rand.Read(bytes)
	return hex.EncodeToString(bytes)
}

func (r *runtime) sandbox(id string) (*sandbox, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if found := r.sandboxes[id]; found != nil {
		return found, nil
	}
	return nil, status.Errorf(codes.NotFound, "no sandbox %s", id)
}

func (r *runtime) container(id string) (*container, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if found := r.containers[id]; found != nil {
		return found, nil
	}
	return nil, status.Errorf(codes.NotFound, "no container %s", id)
}

func (r *runtime) containersOf(sandboxID string) []*container {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	var found []*container
	for _, container := range r.containers {
		if container.sandbox.id == sandboxID {
			found = append(found, container)
		}
	}
	return found
}

// killAll ends all processes.
func (r *runtime) killAll() {
	r.mutex.Lock()
	sandboxes := maps.Clone(r.sandboxes)
	r.mutex.Unlock()
	for id := range sandboxes {
		_ = r.StopPodSandbox(context.Background(), id)
	}
}

func (r *runtime) Version(context.Context, string) (*api.VersionResponse, error) {
	return &api.VersionResponse{
		Version: "0.1.0", RuntimeName: "process", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1",
	}, nil
}

func (r *runtime) Status(context.Context, bool) (*api.StatusResponse, error) {
	ready := []*api.RuntimeCondition{{Type: api.RuntimeReady, Status: true}, {Type: api.NetworkReady, Status: true}}
	return &api.StatusResponse{Status: &api.RuntimeStatus{Conditions: ready}}, nil
}

func (r *runtime) RuntimeConfig(context.Context) (*api.RuntimeConfigResponse, error) {
	linux := &api.LinuxRuntimeConfiguration{CgroupDriver: api.CgroupDriver_CGROUPFS}
	return &api.RuntimeConfigResponse{Linux: linux}, nil
}

func (r *runtime) UpdateRuntimeConfig(context.Context, *api.RuntimeConfig) error { return nil }

func (r *runtime) Close(context.Context) error { return nil }

func (r *runtime) RunPodSandbox(_ context.Context, config *api.PodSandboxConfig, _ string) (string, error) {
	made, err := r.newSandbox(config)
	if err != nil {
		return "", err
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.sandboxes[made.id] = made
	return made.id, nil
}

func (r *runtime) StopPodSandbox(_ context.Context, id string) error {
	found, err := r.sandbox(id)
	if err != nil {
		// A sandbox that is gone is stopped.
		return nil
	}
	for _, container := range r.containersOf(id) {
		container.kill()
	}
	found.stop()
	return nil
}

func (r *runtime) RemovePodSandbox(ctx context.Context, id string) error {
	if err := r.StopPodSandbox(ctx, id); err != nil {
		return err
	}
	for _, container := range r.containersOf(id) {
		if err := r.RemoveContainer(ctx, container.id); err != nil {
			return err
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	delete(r.sandboxes, id)
	return nil
}

func (r *runtime) PodSandboxStatus(_ context.Context, id string, _ bool) (*api.PodSandboxStatusResponse, error) {
	found, err := r.sandbox(id)
	if err != nil {
		return nil, err
	}
	return &api.PodSandboxStatusResponse{Status: found.status()}, nil
}

func (r *runtime) ListPodSandbox(_ context.Context, filter *api.PodSandboxFilter) ([]*api.PodSandbox, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	var list []*api.PodSandbox
	for _, sandbox := range r.sandboxes {
		if listed := sandbox.listed(); matches(filter, listed) {
			list = append(list, listed)
		}
	}
	return list, nil
}

func matches(filter *api.PodSandboxFilter, sandbox *api.PodSandbox) bool {
	return (filter.GetId() == "" || filter.GetId() == sandbox.Id) &&
		(filter.GetState() == nil || filter.GetState().State == sandbox.State) &&
		contains(sandbox.Labels, filter.GetLabelSelector())
}

// contains returns true if labels have all pairs of a selector.
func contains(labels, selector map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

func (r *runtime) UpdatePodSandboxResources(
	context.Context, *api.UpdatePodSandboxResourcesRequest,
) (*api.UpdatePodSandboxResourcesResponse, error) {
	return &api.UpdatePodSandboxResourcesResponse{}, nil
}

func (r *runtime) CreateContainer(
	_ context.Context, sandboxID string, config *api.ContainerConfig, sandboxConfig *api.PodSandboxConfig,
) (string, error) {
	sandbox, err := r.sandbox(sandboxID)
	if err != nil {
		return "", err
	}
	made := &container{
		id: newID(), sandbox: sandbox, config: config, state: api.ContainerState_CONTAINER_CREATED, created: time.Now(),
		resources: config.GetLinux().GetResources(), ended: make(chan struct{}),
	}
	if config.LogPath != "" {
		made.logPath = filepath.Join(sandboxConfig.LogDirectory, config.LogPath)
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.containers[made.id] = made
	return made.id, nil
}

func (r *runtime) StartContainer(_ context.Context, id string) error {
	found, err := r.container(id)
	if err != nil {
		return err
	}
	return found.start(r)
}

func (r *runtime) StopContainer(_ context.Context, id string, seconds int64) error {
	found, err := r.container(id)
	if err != nil {
		return nil
	}
	found.stop(time.Duration(seconds) * time.Second)
	return nil
}

func (r *runtime) RemoveContainer(_ context.Context, id string) error {
	found, err := r.container(id)
	if err != nil {
		return nil
	}
	found.kill()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	delete(r.containers, id)
	return nil
}

func (r *runtime) ListContainers(_ context.Context, filter *api.ContainerFilter) ([]*api.Container, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	var list []*api.Container
	for _, container := range r.containers {
		listed := container.listed()
		if (filter.GetId() == "" || filter.GetId() == listed.Id) &&
			(filter.GetPodSandboxId() == "" || filter.GetPodSandboxId() == listed.PodSandboxId) &&
			(filter.GetState() == nil || filter.GetState().State == listed.State) &&
			contains(listed.Labels, filter.GetLabelSelector()) {
			list = append(list, listed)
		}
	}
	return list, nil
}

func (r *runtime) ContainerStatus(_ context.Context, id string, _ bool) (*api.ContainerStatusResponse, error) {
	found, err := r.container(id)
	if err != nil {
		return nil, err
	}
	return &api.ContainerStatusResponse{Status: found.status()}, nil
}

func (r *runtime) UpdateContainerResources(_ context.Context, id string, wanted *api.ContainerResources) error {
	found, err := r.container(id)
	if err != nil {
		return err
	}
	found.resize(wanted.GetLinux())
	return nil
}

func (r *runtime) ReopenContainerLog(context.Context, string) error {
	return status.Error(codes.Unimplemented, "logs are not rotated")
}

func (r *runtime) CheckpointContainer(context.Context, *api.CheckpointContainerRequest) error {
	return status.Error(codes.Unimplemented, "a process has no checkpoint")
}

func (r *runtime) GetContainerEvents(
	context.Context, chan *api.ContainerEventResponse, func(api.RuntimeService_GetContainerEventsClient),
) error {
	return status.Error(codes.Unimplemented, "the kubelet lists containers every second")
}

func (r *runtime) ContainerStats(context.Context, string) (*api.ContainerStats, error) {
	return nil, errNoStats
}

func (r *runtime) ListContainerStats(context.Context, *api.ContainerStatsFilter) ([]*api.ContainerStats, error) {
	return nil, nil
}

func (r *runtime) PodSandboxStats(context.Context, string) (*api.PodSandboxStats, error) {
	return nil, errNoStats
}

func (r *runtime) ListPodSandboxStats(context.Context, *api.PodSandboxStatsFilter) ([]*api.PodSandboxStats, error) {
	return nil, nil
}

func (r *runtime) ListMetricDescriptors(context.Context) ([]*api.MetricDescriptor, error) {
	return nil, nil
}

func (r *runtime) ListPodSandboxMetrics(context.Context) ([]*api.PodSandboxMetrics, error) {
	return nil, nil
}

var errNoStats = status.Error(codes.Unimplemented, "processes are not measured")

// images are the names of images: all exist, except those of the registry `registry.invalid`.
type images struct{ dir string }

const missingRegistry = "registry.invalid/"

func (i images) ListImages(context.Context, *api.ImageFilter) ([]*api.Image, error) { return nil, nil }

func (i images) ImageStatus(_ context.Context, image *api.ImageSpec, _ bool) (*api.ImageStatusResponse, error) {
	if len(image.Image) >= len(missingRegistry) && image.Image[:len(missingRegistry)] == missingRegistry {
		return &api.ImageStatusResponse{}, nil
	}
	return &api.ImageStatusResponse{Image: &api.Image{
		Id: image.Image, RepoTags: []string{image.Image}, Size: 1, Uid: &api.Int64Value{Value: 0}, Spec: image,
	}}, nil
}

func (i images) PullImage(
	_ context.Context, image *api.ImageSpec, _ *api.AuthConfig, _ *api.PodSandboxConfig,
) (string, error) {
	if len(image.Image) >= len(missingRegistry) && image.Image[:len(missingRegistry)] == missingRegistry {
		return "", status.Errorf(codes.NotFound, "image %q is not found", image.Image)
	}
	return image.Image, nil
}

func (i images) RemoveImage(context.Context, *api.ImageSpec) error { return nil }

func (i images) ImageFsInfo(context.Context) (*api.ImageFsInfoResponse, error) {
	usage := &api.FilesystemUsage{
		Timestamp: time.Now().UnixNano(), FsId: &api.FilesystemIdentifier{Mountpoint: i.dir},
		UsedBytes: &api.UInt64Value{}, InodesUsed: &api.UInt64Value{},
	}
	return &api.ImageFsInfoResponse{ImageFilesystems: []*api.FilesystemUsage{usage}}, nil
}

func (i images) Close(context.Context) error { return nil }

func (e entrypoints) command(config *api.ContainerConfig) ([]string, error) {
	if len(config.Command) > 0 {
		return append(config.Command, config.Args...), nil
	}
	image := config.GetImage().GetUserSpecifiedImage()
	if image == "" {
		image = config.GetImage().GetImage()
	}
	program, found := e[image]
	if !found {
		return nil, fmt.Errorf("image %q has no program, and the container no command", image)
	}
	return append([]string{program}, config.Args...), nil
}
