package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/creack/pty"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

func (r *runtime) Exec(_ context.Context, request *api.ExecRequest) (*api.ExecResponse, error) {
	return r.streams.GetExec(request)
}

func (r *runtime) Attach(_ context.Context, request *api.AttachRequest) (*api.AttachResponse, error) {
	return r.streams.GetAttach(request)
}

func (r *runtime) PortForward(_ context.Context, request *api.PortForwardRequest) (*api.PortForwardResponse, error) {
	return r.streams.GetPortForward(request)
}

func (r *runtime) ExecSync(
	ctx context.Context, id string, args []string, patience time.Duration,
) ([]byte, []byte, error) {
	command, err := r.entering(id, args)
	if err != nil {
		return nil, nil, err
	}
	var out, failures bytes.Buffer
	command.Stdout, command.Stderr = &out, &failures
	command.WaitDelay = time.Second
	if patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	err = r.finish(ctx, command)
	if ctx.Err() != nil {
		return nil, nil, status.Errorf(codes.DeadlineExceeded, "command %q timed out", args)
	}
	return out.Bytes(), failures.Bytes(), err
}

// entering returns a command in the namespaces of a container, with its environment.
func (r *runtime) entering(id string, args []string) (*exec.Cmd, error) {
	found, err := r.container(id)
	if err != nil {
		return nil, err
	}
	found.mutex.Lock()
	defer found.mutex.Unlock()
	if found.state != api.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.FailedPrecondition, "container %s is not running", id)
	}
	flags := []string{"-t", strconv.Itoa(found.command.Process.Pid), "-m", "-p", "-u", "-n", "-r", "-w"}
	if user, groups := found.identity(); user != 0 {
		flags = append(flags, "-S", strconv.Itoa(user), "-G", strconv.Itoa(groups[0]))
	}
	command := exec.Command("nsenter", append(append(flags, "--"), args...)...)
	command.Env = found.environment()
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	return command, nil
}

// finish runs a command to its end, and kills all of its session when ctx ends. Its error has the exit code.
func (r *runtime) finish(ctx context.Context, command *exec.Cmd) error {
	if err := r.spawner.start(command); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) })
	defer stop()
	err := command.Wait()
	if code := exitCode(command, err); code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

// streamed serves the streams of clients.
type streamed struct{ *runtime }

func (s *streamed) Exec(
	ctx context.Context, id string, args []string, in io.Reader, out, failures io.WriteCloser, tty bool,
	sizes <-chan remotecommand.TerminalSize,
) error {
	command, err := s.entering(id, args)
	if err != nil {
		return err
	}
	if tty {
		return s.execOnScreen(ctx, command, in, out, sizes)
	}
	if in != nil {
		// With a pipe of its own, the command can end before the client's input does.
		input, err := command.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(input, in)
			input.Close()
		}()
	}
	if out != nil {
		command.Stdout = out
	}
	if failures != nil {
		command.Stderr = failures
	}
	command.WaitDelay = time.Second
	return s.finish(ctx, command)
}

func (s *streamed) execOnScreen(
	ctx context.Context, command *exec.Cmd, in io.Reader, out io.Writer, sizes <-chan remotecommand.TerminalSize,
) error {
	screen, child, err := pty.Open()
	if err != nil {
		return err
	}
	defer screen.Close()
	command.Stdin, command.Stdout, command.Stderr = child, child, child
	command.SysProcAttr.Setctty = true
	go follow(screen, sizes)
	if in != nil {
		go io.Copy(screen, in)
	}
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		_, _ = io.Copy(out, screen)
	}()
	err = s.finish(ctx, command)
	child.Close()
	select {
	case <-shown:
	case <-time.After(time.Second):
	}
	return err
}

// follow gives a terminal the sizes of the client's.
func follow(screen *os.File, sizes <-chan remotecommand.TerminalSize) {
	for size := range sizes {
		_ = pty.Setsize(screen, &pty.Winsize{Rows: size.Height, Cols: size.Width})
	}
}

func (s *streamed) Attach(
	ctx context.Context, id string, in io.Reader, out, failures io.WriteCloser, tty bool,
	sizes <-chan remotecommand.TerminalSize,
) error {
	found, err := s.container(id)
	if err != nil {
		return err
	}
	client := &attachment{}
	if out != nil {
		client.out = out
	}
	if failures != nil {
		client.err = failures
	}
	found.mutex.Lock()
	if found.outputs == nil {
		found.outputs = map[*attachment]bool{}
	}
	found.outputs[client] = true
	input, screen := found.input, found.screen
	found.mutex.Unlock()
	defer func() {
		found.mutex.Lock()
		defer found.mutex.Unlock()
		delete(found.outputs, client)
	}()
	if tty && screen != nil {
		go follow(screen, sizes)
	}
	if in != nil && input != nil {
		go func() {
			_, _ = io.Copy(input, in)
			if found.config.StdinOnce && !tty {
				input.Close()
			}
		}()
	}
	select {
	case <-found.ended:
	case <-ctx.Done():
	}
	return nil
}

func (s *streamed) PortForward(ctx context.Context, id string, port int32, client io.ReadWriteCloser) error {
	defer client.Close()
	found, err := s.sandbox(id)
	if err != nil {
		return err
	}
	namespace, err := found.namespace()
	if err != nil {
		return err
	}
	var server net.Conn
	dial := func() error {
		// An address needs no resolver, so the connection is made on this thread.
		server, err = net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		return err
	}
	if err := within(namespace, dial); err != nil {
		return err
	}
	defer server.Close()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.Copy(server, client)
		server.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(client, server)
	return err
}
