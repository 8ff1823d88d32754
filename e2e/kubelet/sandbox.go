package main

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandbox is the network of a pod: a namespace that a process holds. Pods in the network of the host have none.
type sandbox struct {
	id      string
	config  *api.PodSandboxConfig
	created time.Time
	// address of the pod, empty in the network of the host.
	address string
	release func()

	mutex sync.Mutex
	// holder is nil once the sandbox is stopped, and in the network of the host.
	holder  *exec.Cmd
	stopped bool
}

// newSandbox makes the network of a pod and connects it to the bridge.
func (r *runtime) newSandbox(config *api.PodSandboxConfig) (*sandbox, error) {
	made := &sandbox{id: newID(), config: config, created: time.Now(), release: func() {}}
	if made.onHost() {
		return made, nil
	}
	made.holder = exec.Command("sleep", "infinity")
	made.holder.Stderr = os.Stderr
	made.holder.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := r.spawner.start(made.holder); err != nil {
		return nil, fmt.Errorf("network namespaces are not available: %w", err)
	}
	var err error
	if made.address, made.release, err = r.network.connect(made.id, made.holder.Process.Pid); err != nil {
		made.stop()
		return nil, err
	}
	return made, nil
}

func (s *sandbox) onHost() bool {
	options := s.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	return options.GetNetwork() == api.NamespaceMode_NODE
}

// namespace returns the file of the network namespace; empty in the network of the host.
func (s *sandbox) namespace() (string, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	switch {
	case s.stopped:
		return "", fmt.Errorf("sandbox %s is stopped", s.id)
	case s.holder == nil:
		return "", nil
	default:
		return fmt.Sprintf("/proc/%d/ns/net", s.holder.Process.Pid), nil
	}
}

func (s *sandbox) stop() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.stopped {
		return
	}
	s.stopped = true
	s.release()
	if s.holder != nil {
		_ = s.holder.Process.Kill()
		_ = s.holder.Wait()
	}
}

func (s *sandbox) state() api.PodSandboxState {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.stopped {
		return api.PodSandboxState_SANDBOX_NOTREADY
	}
	return api.PodSandboxState_SANDBOX_READY
}

func (s *sandbox) listed() *api.PodSandbox {
	return &api.PodSandbox{
		Id: s.id, Metadata: s.config.Metadata, State: s.state(), CreatedAt: s.created.UnixNano(),
		Labels: s.config.Labels, Annotations: s.config.Annotations,
	}
}

func (s *sandbox) status() *api.PodSandboxStatus {
	options := s.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	return &api.PodSandboxStatus{
		Id: s.id, Metadata: s.config.Metadata, State: s.state(), CreatedAt: s.created.UnixNano(),
		Network: &api.PodSandboxNetworkStatus{Ip: s.address},
		Linux:   &api.LinuxPodSandboxStatus{Namespaces: &api.Namespace{Options: options}},
		Labels:  s.config.Labels, Annotations: s.config.Annotations,
	}
}
