package main

import (
	"os/exec"
	goruntime "runtime"
)

// spawner starts all processes from one thread that lives as long as the program: the kernel kills a child with the
// thread that started it.
type spawner struct{ calls chan spawn }

type spawn struct {
	command *exec.Cmd
	started chan error
}

func newSpawner() *spawner {
	s := &spawner{calls: make(chan spawn)}
	go func() {
		goruntime.LockOSThread()
		for call := range s.calls {
			call.started <- call.command.Start()
		}
	}()
	return s
}

func (s *spawner) start(command *exec.Cmd) error {
	call := spawn{command, make(chan error, 1)}
	s.calls <- call
	return <-call.started
}
