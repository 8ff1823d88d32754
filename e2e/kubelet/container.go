package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// longestLine is the part of a line that is one entry of the log, as in other runtimes.
	longestLine = 16 << 10
	// roleContainer is the argument by which the program becomes a container.
	roleContainer = "become-container"
	defaultPath   = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// container is a process with its log.
type container struct {
	id      string
	sandbox *sandbox
	config  *api.ContainerConfig
	logPath string
	created time.Time
	// ended is closed when the process and its output have ended.
	ended chan struct{}

	mutex     sync.Mutex
	state     api.ContainerState
	command   *exec.Cmd
	started   time.Time
	finished  time.Time
	code      int
	resources *api.LinuxContainerResources
	// input is that of a container with stdin, or its terminal.
	input   io.WriteCloser
	screen  *os.File
	outputs map[*attachment]bool
}

// attachment is a client that reads what a container writes.
type attachment struct{ out, err io.Writer }

// start starts the process, and returns when it runs the command.
func (c *container) start(r *runtime) error {
	command, release, err := c.prepare(r)
	if err != nil {
		return err
	}
	running, failure, err := os.Pipe()
	if err != nil {
		return err
	}
	defer running.Close()
	command.ExtraFiles = []*os.File{failure}
	outputs, err := c.connect(command)
	if err == nil {
		err = r.spawner.start(command)
	}
	failure.Close()
	closeAll(outputs.childEnds)
	if err != nil {
		release()
		return fmt.Errorf("mount and process namespaces are not available: %w", err)
	}
	c.mutex.Lock()
	c.command, c.state, c.started = command, api.ContainerState_CONTAINER_RUNNING, time.Now()
	c.mutex.Unlock()
	go c.wait(outputs.readers, release)
	// The pipe closes when the process becomes the command.
	reason, err := io.ReadAll(running)
	if err != nil || len(reason) > 0 {
		<-c.ended
		return errors.Join(err, errors.New(string(reason)))
	}
	return nil
}

// prepare returns the command that becomes the container, and what removes its files.
func (c *container) prepare(r *runtime) (*exec.Cmd, func(), error) {
	args, err := r.settings.entrypoints.command(c.config)
	if err != nil {
		return nil, nil, err
	}
	namespace, err := c.sandbox.namespace()
	if err != nil {
		return nil, nil, err
	}
	dir := filepath.Join(r.settings.dir, "containers", c.id)
	release := func() { os.RemoveAll(dir) }
	p := process{
		Namespace: namespace, Hostname: c.sandbox.config.Hostname, Scratch: filepath.Join(dir, "scratch"),
		ResolvConf: resolvConf(c.sandbox.config.DnsConfig), Args: args, Env: c.environment(),
		Directory: c.config.WorkingDir, ReadOnly: c.config.GetLinux().GetSecurityContext().GetReadonlyRootfs(),
	}
	p.User, p.Groups = c.identity()
	for _, volume := range c.config.Mounts {
		p.Mounts = append(p.Mounts, mount{Source: volume.HostPath, Target: volume.ContainerPath, ReadOnly: volume.Readonly})
	}
	bytes, err := json.Marshal(p)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(p.Scratch, 0o755); err != nil {
		return nil, nil, err
	}
	file := filepath.Join(dir, "process.json")
	if err := os.WriteFile(file, bytes, 0o600); err != nil {
		return nil, nil, err
	}
	command := exec.Command("/proc/self/exe", roleContainer, file)
	command.Env = []string{"PATH=" + defaultPath}
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true,
	}
	// The pods of the host's network keep the name of the host.
	if namespace != "" {
		command.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUTS
	}
	return command, release, nil
}

func (c *container) environment() []string {
	env := []string{"PATH=" + defaultPath, "HOME=/root"}
	if c.sandbox.config.Hostname != "" {
		env = append(env, "HOSTNAME="+c.sandbox.config.Hostname)
	}
	if c.config.Tty {
		env = append(env, "TERM=xterm")
	}
	for _, pair := range c.config.Envs {
		env = append(env, pair.Key+"="+string(pair.Value))
	}
	return env
}

// identity returns the user and groups of the process, which are root's unless the pod names others.
func (c *container) identity() (int, []int) {
	context := c.config.GetLinux().GetSecurityContext()
	user := int(context.GetRunAsUser().GetValue())
	groups := []int{int(context.GetRunAsGroup().GetValue())}
	for _, group := range context.GetSupplementalGroups() {
		groups = append(groups, int(group))
	}
	return user, groups
}

func resolvConf(dns *api.DNSConfig) string {
	text := ""
	for _, server := range dns.GetServers() {
		text += "nameserver " + server + "\n"
	}
	for _, line := range []struct {
		keyword string
		words   []string
	}{{"search", dns.GetSearches()}, {"options", dns.GetOptions()}} {
		if len(line.words) > 0 {
			text += line.keyword + " " + strings.Join(line.words, " ") + "\n"
		}
	}
	return text
}

// connections are the ends of the pipes of a process.
type connections struct {
	readers   map[string]io.Reader
	childEnds []*os.File
}

// connect gives the process its standard streams.
func (c *container) connect(command *exec.Cmd) (connections, error) {
	if c.config.Tty {
		screen, child, err := pty.Open()
		if err != nil {
			return connections{}, err
		}
		command.Stdin, command.Stdout, command.Stderr = child, child, child
		command.SysProcAttr.Setctty = true
		c.screen, c.input = screen, screen
		return connections{map[string]io.Reader{"stdout": screen}, []*os.File{child}}, nil
	}
	made := connections{readers: map[string]io.Reader{}}
	for name, stream := range map[string]*io.Writer{"stdout": &command.Stdout, "stderr": &command.Stderr} {
		reader, writer, err := os.Pipe()
		if err != nil {
			return made, err
		}
		made.readers[name], *stream = reader, writer
		made.childEnds = append(made.childEnds, writer)
	}
	if c.config.Stdin {
		reader, writer, err := os.Pipe()
		if err != nil {
			return made, err
		}
		command.Stdin, c.input = reader, writer
		made.childEnds = append(made.childEnds, reader)
	}
	return made, nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}

// wait writes the log until the process ends, and notes its end.
func (c *container) wait(readers map[string]io.Reader, release func()) {
	var log io.Writer = io.Discard
	if c.logPath != "" {
		if file, err := os.OpenFile(c.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err == nil {
			defer file.Close()
			log = file
		}
	}
	var pumps sync.WaitGroup
	for name, reader := range readers {
		pumps.Go(func() { c.pump(name, reader, log) })
	}
	err := c.command.Wait()
	if c.screen != nil {
		// Reads of a terminal do not end with the processes that had it open.
		time.AfterFunc(time.Second, func() { c.screen.Close() })
	}
	pumps.Wait()
	c.mutex.Lock()
	c.finished, c.state, c.code = time.Now(), api.ContainerState_CONTAINER_EXITED, exitCode(c.command, err)
	if c.input != nil {
		c.input.Close()
	}
	c.mutex.Unlock()
	release()
	close(c.ended)
}

// pump passes output on to attached clients and to the log, line by line.
func (c *container) pump(name string, from io.Reader, log io.Writer) {
	reader := bufio.NewReaderSize(&tee{c, name, from}, longestLine)
	for {
		line, isPartial, err := reader.ReadLine()
		if err != nil {
			return
		}
		tag := "F"
		if isPartial {
			tag = "P"
		}
		c.mutex.Lock()
		fmt.Fprintf(log, "%s %s %s %s\n", time.Now().Format(time.RFC3339Nano), name, tag, line)
		c.mutex.Unlock()
	}
}

// tee copies all that is read to the clients that are attached.
type tee struct {
	container *container
	name      string
	from      io.Reader
}

func (t *tee) Read(buffer []byte) (int, error) {
	count, err := t.from.Read(buffer)
	t.container.mutex.Lock()
	clients := slices.Collect(maps.Keys(t.container.outputs))
	t.container.mutex.Unlock()
	for _, client := range clients {
		to := client.out
		if t.name == "stderr" {
			to = client.err
		}
		if to != nil {
			// The stream of a client that has gone ends by itself.
			_, _ = to.Write(buffer[:count])
		}
	}
	return count, err
}

func exitCode(command *exec.Cmd, err error) int {
	if err == nil {
		return 0
	}
	if command.ProcessState == nil {
		return 255
	}
	if status, is := command.ProcessState.Sys().(syscall.WaitStatus); is && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return command.ProcessState.ExitCode()
}

// stop asks the process to end, and kills it after the time.
func (c *container) stop(patience time.Duration) {
	if c.signal(syscall.SIGTERM) {
		select {
		case <-c.ended:
		case <-time.After(patience):
		}
	}
	c.kill()
}

func (c *container) kill() {
	if c.signal(syscall.SIGKILL) {
		<-c.ended
	}
}

// signal returns false if there is no process.
func (c *container) signal(signal syscall.Signal) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.state != api.ContainerState_CONTAINER_RUNNING {
		return false
	}
	_ = c.command.Process.Signal(signal)
	return true
}

func (c *container) resize(wanted *api.LinuxContainerResources) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if wanted != nil {
		c.resources = wanted
	}
}

func (c *container) listed() *api.Container {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return &api.Container{
		Id: c.id, PodSandboxId: c.sandbox.id, Metadata: c.config.Metadata, Image: c.config.Image,
		ImageRef: c.config.GetImage().GetImage(), ImageId: c.config.GetImage().GetImage(), State: c.state,
		CreatedAt: c.created.UnixNano(), Labels: c.config.Labels, Annotations: c.config.Annotations,
	}
}

func (c *container) status() *api.ContainerStatus {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	status := &api.ContainerStatus{
		Id: c.id, Metadata: c.config.Metadata, State: c.state, CreatedAt: c.created.UnixNano(), Image: c.config.Image,
		ImageRef: c.config.GetImage().GetImage(), ImageId: c.config.GetImage().GetImage(), Labels: c.config.Labels,
		Annotations: c.config.Annotations, Mounts: c.config.Mounts, LogPath: c.logPath,
		Resources: &api.ContainerResources{Linux: c.resources},
	}
	if name := c.config.GetImage().GetUserSpecifiedImage(); name != "" {
		status.Image = &api.ImageSpec{Image: name}
	}
	if !c.started.IsZero() {
		status.StartedAt = c.started.UnixNano()
	}
	if c.state != api.ContainerState_CONTAINER_EXITED {
		return status
	}
	status.FinishedAt, status.ExitCode, status.Reason = c.finished.UnixNano(), int32(c.code), "Completed"
	if c.code != 0 {
		status.Reason = "Error"
	}
	return status
}
