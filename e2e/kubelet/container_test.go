package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestOutputIsLoggedByLineAndShownAsItComes(t *testing.T) {
	var shown, log bytes.Buffer
	c := &container{outputs: map[*attachment]bool{{out: &shown}: true}}
	long := strings.Repeat("x", longestLine+1)
	c.pump("stdout", strings.NewReader("one\n"+long+"\nend"), &log)
	c.pump("stderr", strings.NewReader("failed\n"), &log)
	if shown.String() != "one\n"+long+"\nend" {
		t.Errorf("a client of stdout sees %d bytes", shown.Len())
	}
	var found []string
	for line := range strings.Lines(log.String()) {
		words := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if !regexp.MustCompile(`^\d{4}-\d\d-\d\dT`).MatchString(words[0]) {
			t.Errorf("no time: %q", words[0])
		}
		found = append(found, words[1]+" "+words[2]+" "+strings.ReplaceAll(words[3], "xx", ""))
	}
	expected := "stdout F one, stdout P , stdout F x, stdout F end, stderr F failed"
	if got := strings.Join(found, ", "); got != expected {
		t.Errorf("the log is %q", got)
	}
}

func TestTheProgramOfAContainerIsItsCommandOrThatOfItsImage(t *testing.T) {
	e := entrypoints{}
	if err := e.Set("portolan:e2e=/bin/portolan"); err != nil {
		t.Fatal(err)
	}
	image := func(name string) *api.ImageSpec { return &api.ImageSpec{Image: "sha", UserSpecifiedImage: name} }
	for _, row := range []struct {
		config   *api.ContainerConfig
		expected string
	}{
		{&api.ContainerConfig{Command: []string{"a"}, Args: []string{"b"}, Image: image("x")}, "a b"},
		{&api.ContainerConfig{Args: []string{"dns"}, Image: image("portolan:e2e")}, "/bin/portolan dns"},
		{&api.ContainerConfig{Args: []string{"dns"}, Image: image("other")}, ""},
	} {
		command, err := e.command(row.config)
		if got := strings.Join(command, " "); got != row.expected || (err != nil) != (row.expected == "") {
			t.Errorf("%v: %q, %v", row.config, got, err)
		}
	}
	if e.Set("nothing") == nil {
		t.Error("an image without a program is accepted")
	}
}

func TestResolversOfAContainer(t *testing.T) {
	dns := &api.DNSConfig{Servers: []string{"10.1.128.9"}, Searches: []string{"a.svc", "svc"}, Options: []string{"ndots:5"}}
	expected := "nameserver 10.1.128.9\nsearch a.svc svc\noptions ndots:5\n"
	if text := resolvConf(dns); text != expected {
		t.Errorf("found %q", text)
	}
	if text := resolvConf(nil); text != "" {
		t.Errorf("found %q", text)
	}
}

// A process without a network of its own, as a pod with hostNetwork has.
func TestAContainerRunsInARootOfItsOwn(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	r := &runtime{settings: &settings{dir: dir}, spawner: newSpawner()}
	host := &api.LinuxSandboxSecurityContext{NamespaceOptions: &api.NamespaceOption{Network: api.NamespaceMode_NODE}}
	pod := &sandbox{id: "pod", config: &api.PodSandboxConfig{
		Linux: &api.LinuxPodSandboxConfig{SecurityContext: host}, DnsConfig: &api.DNSConfig{Servers: []string{"192.0.2.1"}},
	}}
	if err := os.WriteFile(dir+"/file", []byte("mounted\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := "cat /new/place; cat /etc/resolv.conf; echo $$; touch /left-by-a-test; exit 7"
	c := &container{
		id: "c", sandbox: pod, logPath: dir + "/log", ended: make(chan struct{}),
		config: &api.ContainerConfig{
			Command: []string{"sh", "-c", script},
			Mounts:  []*api.Mount{{HostPath: dir + "/file", ContainerPath: "/new/place", Readonly: true}},
		},
	}
	if err := c.start(r); err != nil {
		t.Fatal(err)
	}
	<-c.ended
	if status := c.status(); status.ExitCode != 7 || status.Reason != "Error" {
		t.Errorf("it ended with %v", status)
	}
	log, _ := os.ReadFile(c.logPath)
	for _, expected := range []string{"stdout F mounted", "stdout F nameserver 192.0.2.1", "stdout F 1\n"} {
		if !strings.Contains(string(log), expected) {
			t.Errorf("the log lacks %q: %s", expected, log)
		}
	}
	if _, err := os.Stat("/left-by-a-test"); err == nil {
		t.Error("the container wrote into the root of the machine")
	}
	missing := &container{id: "m", sandbox: pod, ended: make(chan struct{}), config: &api.ContainerConfig{Command: []string{"no-such"}}}
	if err := missing.start(r); err == nil || !strings.Contains(err.Error(), "executable file not found") {
		t.Errorf("a program that is missing: %v", err)
	}
}

// TestMain becomes a container when a test starts one: the program of a test is that of the kubelet.
func TestMain(m *testing.M) {
	if isContainer() {
		runContainer()
	}
	os.Exit(m.Run())
}
