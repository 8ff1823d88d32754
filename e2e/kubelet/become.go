package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"

	"github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// failurePipe is the file by which a container says why it does not start.
const failurePipe = 3

// process tells a new process how it becomes a container.
type process struct {
	// Namespace is the file of the network namespace to join; empty for that of the host.
	Namespace string
	Hostname  string
	// Scratch is an empty folder for mounts that only the container sees.
	Scratch    string
	Mounts     []mount
	ResolvConf string
	Args       []string
	Env        []string
	Directory  string
	// User and Groups are those of the process; the first group is the primary one.
	User     int
	Groups   []int
	ReadOnly bool
}

type mount struct {
	Source   string
	Target   string
	ReadOnly bool
}

// isContainer returns true in a process that becomes a container.
func isContainer() bool { return len(os.Args) == 3 && os.Args[1] == roleContainer }

// runContainer becomes the container, or ends with the reason in the pipe for it.
func runContainer() {
	fmt.Fprint(os.NewFile(failurePipe, "failure"), becomeContainer(os.Args[2]))
	os.Exit(128)
}

// becomeContainer turns this process into the container that a file describes. It returns only errors.
func becomeContainer(file string) error {
	bytes, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var p process
	if err := json.Unmarshal(bytes, &p); err != nil {
		return err
	}
	// Without this flag the runtime would wait for the end of the command.
	unix.CloseOnExec(failurePipe)
	// The namespace of the network and the identity of the user are those of a thread, which execve makes the process.
	goruntime.LockOSThread()
	return p.run()
}

func (p *process) run() error {
	if err := p.joinNetwork(); err != nil {
		return fmt.Errorf("cannot join the network of the pod: %w", err)
	}
	if p.Hostname != "" {
		if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
			return fmt.Errorf("cannot set the host name: %w", err)
		}
	}
	if err := p.makeRoot(); err != nil {
		return fmt.Errorf("mount namespaces are not available: %w", err)
	}
	if err := p.enterRoot(); err != nil {
		return fmt.Errorf("cannot change the root: %w", err)
	}
	if p.User != 0 || len(p.Groups) > 0 {
		if err := p.changeUser(); err != nil {
			return fmt.Errorf("cannot change the user: %w", err)
		}
	}
	os.Clearenv()
	for _, pair := range p.Env {
		key, value, _ := strings.Cut(pair, "=")
		os.Setenv(key, value)
	}
	program, err := exec.LookPath(p.Args[0])
	if err != nil {
		return err
	}
	// A change of the user, or another thread, has lost the signal at the end of the kubelet.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	return syscall.Exec(program, p.Args, p.Env)
}

func (p *process) joinNetwork() error {
	if p.Namespace == "" {
		return nil
	}
	file, err := os.Open(p.Namespace)
	if err != nil {
		return err
	}
	defer file.Close()
	return unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
}

func (p *process) root() string { return filepath.Join(p.Scratch, "root") }

// makeRoot lays an empty layer over the root of the host, with devices of its own and the volumes of the container.
func (p *process) makeRoot() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("scratch", p.Scratch, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	upper, work := filepath.Join(p.Scratch, "upper"), filepath.Join(p.Scratch, "work")
	for _, dir := range []string{upper, work, p.root()} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", upper, work)
	if err := unix.Mount("overlay", p.root(), "overlay", 0, layers); err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	if err := p.makeDevices(); err != nil {
		return err
	}
	for _, text := range []struct{ path, content string }{
		{"etc/resolv.conf", p.ResolvConf}, {"etc/hostname", p.Hostname + "\n"},
	} {
		path := filepath.Join(p.root(), text.path)
		// It may be a link to a folder that the container does not have.
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(text.content), 0o644); err != nil {
			return err
		}
	}
	for _, volume := range p.Mounts {
		if err := p.bind(volume); err != nil {
			return fmt.Errorf("%s at %s: %w", volume.Source, volume.Target, err)
		}
	}
	if p.ReadOnly {
		return unix.Mount("", p.root(), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	return nil
}

func (p *process) makeDevices() error {
	in := func(name string) string { return filepath.Join(p.root(), name) }
	for _, fs := range []struct{ target, kind, options string }{
		{"proc", "proc", ""}, {"dev", "tmpfs", "mode=755"},
		{"dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=620"}, {"dev/shm", "tmpfs", "mode=1777"},
		{"run", "tmpfs", "mode=755"},
	} {
		if err := os.MkdirAll(in(fs.target), 0o755); err != nil {
			return err
		}
		if err := unix.Mount(fs.kind, in(fs.target), fs.kind, 0, fs.options); err != nil {
			return fmt.Errorf("%s: %w", fs.target, err)
		}
	}
	if err := unix.Mount("/sys", in("sys"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("sys: %w", err)
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := p.bind(mount{Source: "/dev/" + name, Target: "/dev/" + name}); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, in("dev/"+name)); err != nil {
			return err
		}
	}
	return nil
}

// bind mounts a file or folder of the host, and makes the place for it.
func (p *process) bind(volume mount) error {
	target, err := securejoin.SecureJoin(p.root(), volume.Target)
	if err != nil {
		return err
	}
	info, err := os.Stat(volume.Source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else {
		err = touch(target)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(volume.Source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if !volume.ReadOnly {
		return nil
	}
	return unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

func touch(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}

// enterRoot makes the layered root the only one.
func (p *process) enterRoot() error {
	if err := unix.Chdir(p.root()); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	if p.Directory == "" {
		return unix.Chdir("/")
	}
	return errors.Join(os.MkdirAll(p.Directory, 0o755), unix.Chdir(p.Directory))
}

func (p *process) changeUser() error {
	if err := syscall.Setgroups(p.Groups); err != nil {
		return err
	}
	if len(p.Groups) > 0 {
		if err := syscall.Setgid(p.Groups[0]); err != nil {
			return err
		}
	}
	return syscall.Setuid(p.User)
}
