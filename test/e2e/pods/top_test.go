//go:build e2e

package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/plimsoll-dev/plimsoll/deploy"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestTop: `plimsoll top` shows a real node and its pod, as somebody who may do only what deploy/rbac-top.yaml allows
// (and read one pod, for its story): as JSON, as text, and on a terminal, where keys lead to the pod's story.
func TestTop(t *testing.T) {
	b := at(t)
	spec := lasting(workload("c"))
	spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: quantity("123m"),
		corev1.ResourceMemory: quantity("45Mi")}
	b.create("shown", spec)
	b.ready("shown")
	reader := b.topReader()

	out, err := b.Plimsoll("top", "--kubeconfig", reader, "--node", b.NodeName, "-o", "json")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var state struct {
		Nodes []struct {
			Name      string
			Requested struct{ CPU, Memory, Pods int64 }
			Capacity  struct{ CPU, Memory, Pods int64 }
		}
		Pods []struct {
			Namespace, Name, State string
			Requested              struct{ CPU int64 }
		}
		Detail struct {
			NoSamples, NoJournal string
			Samples              []struct{ Used struct{ Memory int64 } }
			Decisions            []struct{ About, Text string }
		}
	}
	if err := json.Unmarshal([]byte(out), &state); err != nil {
		t.Fatal(err)
	}
	found := 0 // pods
	for _, p := range state.Pods {
		if p.Namespace == b.ns && p.Name == "shown" && p.State == "Running" && p.Requested.CPU == 123 {
			found++
		}
	}
	if len(state.Nodes) != 1 || state.Nodes[0].Requested.CPU < 123 || state.Nodes[0].Requested.Pods < 1 || found != 1 {
		t.Errorf("nodes %+v, %d pods", state.Nodes, found)
	}
	if d := state.Detail; len(d.Samples) != 1 || d.Samples[0].Used.Memory == 0 || d.NoSamples != "" || d.NoJournal != "" ||
		!strings.Contains(fmt.Sprint(d.Decisions), b.ns+"/shown") {
		t.Errorf("of the agent: %s", out)
	}
	out, err = b.Plimsoll("top", "--kubeconfig", reader)
	if err != nil || !strings.Contains(out, b.NodeName) || strings.Contains(out, "\x1b") {
		t.Errorf("as text: %v\n%s", err, out)
	}

	screen := b.terminal("top", "--kubeconfig", reader, "--filter", b.ns)
	screen.shows("nodes", "Nothing matches the filter")
	screen.press("\x1b", b.NodeName, "Ready")
	screen.press("\r", "node "+b.NodeName, "memory used", "-RESERVED")
	screen.press("2", "pods", b.ns)
	screen.press("/", "filter:")
	screen.press("shown", "filter: shown")
	screen.press("\r", "shown")
	screen.press("\r", "Pod "+b.ns+"/shown is on node "+b.NodeName)
	screen.write("q")
	screen.ends()
}

// topReader returns a kubeconfig of somebody with the role in deploy/, and rights to read this test's pods.
func (b bench) topReader() string {
	t := b.t
	t.Helper()
	apply := b.KubectlCommand(t.Context(), "apply", "-f", "-")
	apply.Stdin = strings.NewReader(deploy.Top)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		for _, kind := range []string{"clusterrolebinding", "clusterrole"} {
			b.Kubectl(t, "delete", kind, "plimsoll:top")
		}
	})
	b.kubectl("create", "serviceaccount", "reader")
	b.Kubectl(t, "create", "clusterrolebinding", "plimsoll:top", "--clusterrole", "plimsoll:top",
		"--serviceaccount", b.ns+":reader")
	b.kubectl("create", "role", "reader", "--verb", "get", "--resource", "pods")
	bind := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: b.ns, Name: "reader"}},
	}
	if _, err := b.API.RbacV1().RoleBindings(b.ns).Create(t.Context(), bind, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := b.API.CoreV1().ServiceAccounts(b.ns).CreateToken(t.Context(), "reader", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(b.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	path := filepath.Join(t.TempDir(), "reader.kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// terminal is a program on a pseudo-terminal (pty(7)).
type terminal struct {
	t     *testing.T
	file  *os.File // the side of the terminal
	wide  uint16
	ended chan error

	mu   sync.Mutex
	text []byte // what was written since the last change of size
}

// terminal runs plimsoll on a pseudo-terminal.
func (b bench) terminal(args ...string) *terminal {
	t := b.t
	t.Helper()
	file, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &terminal{t: t, file: file, wide: 120, ended: make(chan error, 1)}
	t.Cleanup(func() { file.Close() })
	if err := unix.IoctlSetPointerInt(int(file.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(file.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	s.resize()
	other, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c := b.PlimsollCommand(t.Context(), args...)
	c.Env = append(os.Environ(), "TERM=xterm-256color", "NO_COLOR=1")
	c.Stdin, c.Stdout, c.Stderr = other, other, other
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.ended <- c.Wait() }()
	go func() {
		chunk := make([]byte, 64<<10)
		for {
			n, err := file.Read(chunk)
			s.mu.Lock()
			s.text = append(s.text, chunk[:n]...)
			s.mu.Unlock()
			if err != nil {
				return // the program has ended
			}
		}
	}()
	return s
}

// resize makes the terminal wider or narrower by a column, so that the program draws all of it again.
func (s *terminal) resize() {
	s.mu.Lock()
	s.text = nil
	s.wide ^= 1
	s.mu.Unlock()
	size := &unix.Winsize{Row: 50, Col: s.wide}
	if err := unix.IoctlSetWinsize(int(s.file.Fd()), unix.TIOCSWINSZ, size); err != nil {
		s.t.Fatal(err)
	}
}

func (s *terminal) write(keys string) {
	if _, err := s.file.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// press writes keys, and waits until the screen shows texts.
func (s *terminal) press(keys string, texts ...string) {
	s.t.Helper()
	s.write(keys)
	s.shows(texts...)
}

// controls are what moves the cursor or changes colors (ECMA-48), and spaces, which a program may write as movements.
var controls = regexp.MustCompile(`\x1b\[[0-9;?<>=]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b[=>]|[\s]+`)

func (s *terminal) shows(texts ...string) {
	s.t.Helper()
	rig.Eventually(s.t, soon, fmt.Sprintf("the screen shows %q", texts), func(ctx context.Context) error {
		s.resize()
		select {
		case err := <-s.ended:
			s.ended <- err
			return fmt.Errorf("the program has ended: %w", err)
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond): // five frames
		}
		s.mu.Lock()
		shown := controls.ReplaceAllString(string(s.text), "")
		s.mu.Unlock()
		for _, text := range texts {
			if !strings.Contains(shown, strings.ReplaceAll(text, " ", "")) {
				return fmt.Errorf("want %q on %s", text, shown)
			}
		}
		return nil
	})
}

// ends waits until the program has ended, without an error, and has given the screen back.
func (s *terminal) ends() {
	s.t.Helper()
	select {
	case err := <-s.ended:
		if err != nil {
			s.t.Errorf("top: %v", err)
		}
	case <-time.After(soon):
		s.t.Fatal("top does not end")
	}
	rig.Eventually(s.t, soon, "the screen is given back", func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !strings.Contains(string(s.text), "\x1b[?1049l") {
			return fmt.Errorf("the last output is %q", s.text)
		}
		return nil
	})
}
