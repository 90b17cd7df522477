package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	coredevicemanager "github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/host/deviceplugin"
	"github.com/plimsoll-dev/plimsoll/test/cost"
	example "github.com/plimsoll-dev/plimsoll/test/deviceplugin"
)

const gpu = "example.com/gpu"

// rig is a Manager on a real socket. Every change wakes until.
type rig struct {
	*Manager
	t        *testing.T
	changes  chan struct{}
	affected chan string
	stop     context.CancelFunc
	ended    chan error
}

func newRig(t *testing.T, dir string) *rig {
	r := &rig{t: t, changes: make(chan struct{}, 1), affected: make(chan string, 100), ended: make(chan error, 1)}
	r.Manager = New(Options{
		Dir: dir, Metrics: metrics.New("n"), Affected: func(uid string) { r.affected <- uid },
		Changed: func() {
			select {
			case r.changes <- struct{}{}:
			default:
			}
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() { r.ended <- r.Run(ctx) }()
	t.Cleanup(r.end)
	// the socket must exist before a plugin starts, or the plugin would register twice
	for deadline := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "kubelet.sock")); err == nil {
			return r
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// end stops the agent's side, as a restart would.
func (r *rig) end() {
	r.stop()
	if err := <-r.ended; !errors.Is(err, context.Canceled) {
		r.t.Errorf("keeper ended: %v", err)
	}
	r.ended <- context.Canceled
}

// until waits until the published amounts read as want: "resource allocatable/capacity", sorted.
func (r *rig) until(want string) {
	r.t.Helper()
	deadline := time.After(time.Minute)
	for {
		amounts, _ := r.Amounts()
		var got []string
		for _, a := range amounts {
			got = append(got, fmt.Sprintf("%s %d/%d", strings.TrimPrefix(a.Resource, "example.com/"), a.Allocatable, a.Capacity))
		}
		if strings.Join(got, ", ") == want {
			return
		}
		select {
		case <-r.changes:
		case <-deadline:
			r.t.Fatalf("published: %q, want %q", got, want)
		}
	}
}

// start runs a plugin until the returned function is called.
func start(t *testing.T, c example.Config) (*example.Plugin, func()) {
	p := example.New(c)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop := func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	return p, stop
}

func config(dir string) example.Config {
	return example.Config{
		Dir: dir, Resource: gpu, Devices: []example.Device{{ID: "g0", Nodes: []int64{0}}, {ID: "g1", Nodes: []int64{1}},
			{ID: "g2"}},
		Prefer: []string{"g2", "g1"}, PreStart: true, Env: "GPUS", Nodes: true,
		Mounts: map[string]string{"/opt/lib": "/usr/lib"},
		Annotations: map[string]string{"example.com/note": "x",
			"io.kubernetes.container.name": "never"}, CDI: "example.com/gpu",
	}
}

// TestPluginComesAndGoes: a plugin lists its devices, becomes unhealthy, dies and comes back; the agent restarts in
// between.
func TestPluginComesAndGoes(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, dir)
	r.until("")
	r.Recall([]coredevicemanager.Amount{{Resource: "example.com/nic", Capacity: 4}})
	r.until("nic 0/4")
	p, stop := start(t, config(dir))
	r.until("gpu 3/3, nic 0/4")
	if facts := r.Inventory(); len(facts) != 2 || facts[0].Gone || !facts[0].Prefers || len(facts[0].Devices) != 3 ||
		!facts[1].Gone {
		t.Errorf("facts: %+v", facts)
	}
	p.SetHealth("g1", false)
	r.until("gpu 2/3, nic 0/4")
	stop()
	r.until("gpu 0/3, nic 0/4")
	_, _ = start(t, config(dir))
	r.until("gpu 3/3, nic 0/4")

	r.end()
	again := newRig(t, dir) // the plugin sees the new socket and registers again
	again.Recall([]coredevicemanager.Amount{{Resource: gpu, Capacity: 3}})
	again.until("gpu 3/3")
}

// TestContainer: a container is given devices, and the next agent creates it again without its plugin.
func TestContainer(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, dir)
	var calls []string
	c := config(dir)
	c.Log = func(format string, args ...any) {
		if !strings.Contains(format, "regist") {
			calls = append(calls, fmt.Sprintf(format, args...))
		}
	}
	_, stop := start(t, c)
	r.until("gpu 3/3")
	ids, err := r.Preferred(t.Context(), numa.Question{Resource: gpu, Available: []string{"g0", "g1", "g2"},
		Included: []string{"g0"}, Size: 2})
	if err != nil || !slices.Equal(ids, []string{"g0", "g2"}) {
		t.Errorf("preferred: %v %v", ids, err)
	}
	a := numa.Assignment{Pod: "u", Containers: []numa.Assigned{{Container: "c", Devices: []numa.Devices{{Resource: gpu,
		IDs: []string{"g0", "g2"}}}}}}
	if err := r.AllocateAssigned(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	made := configured(t, r.Manager)
	want := &runtimeapi.ContainerConfig{
		Envs: []*runtimeapi.KeyValue{{Key: "GPUS", Value: []byte("g0,g2")}, {Key: "HOME", Value: []byte("/")}},
		Mounts: []*runtimeapi.Mount{{ContainerPath: "/opt/lib", HostPath: "/usr/lib", Readonly: true},
			{ContainerPath: "/last"}},
		Devices: []*runtimeapi.Device{{ContainerPath: "/dev/g0", HostPath: "/dev/null", Permissions: "rw"},
			{ContainerPath: "/dev/g2", HostPath: "/dev/null", Permissions: "rw"}},
		Annotations: map[string]string{
			"example.com/note": "x", "io.kubernetes.container.name": "c",
			Annotation: made.Annotations[Annotation],
		},
		CDIDevices: []*runtimeapi.CDIDevice{{Name: "example.com/gpu=g0"}, {Name: "example.com/gpu=g2"}},
	}
	if made.String() != want.String() {
		t.Errorf("made  %v\nwanted %v", made, want)
	}
	if want := []string{"preferred [g0 g2]", "allocate [g0 g2]", "prestart [g0 g2]"}; !slices.Equal(calls, want) {
		t.Errorf("calls: %q, want %q", calls, want)
	}
	stop()
	r.until("gpu 0/3")
	r.end()

	next := New(Options{Metrics: metrics.New("n")})
	if err := next.Recover("u", "c", made.Annotations[Annotation]); err != nil {
		t.Fatal(err)
	}
	if again := configured(t, next); again.String() != made.String() {
		t.Errorf("made again  %v\nmade before %v", again, made)
	}
}

func configured(t *testing.T, k *Manager) *runtimeapi.ContainerConfig {
	t.Helper()
	c := &runtimeapi.ContainerConfig{
		Envs: []*runtimeapi.KeyValue{{Key: "HOME",
			Value: []byte("/")}}, Mounts: []*runtimeapi.Mount{{ContainerPath: "/last"}},
		Annotations: map[string]string{"io.kubernetes.container.name": "c"},
	}
	if err := k.Configure(t.Context(), "u", "c", []numa.Devices{{Resource: gpu, IDs: []string{"g0", "g2"}}},
		c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAffected: when a device becomes unhealthy, exactly the pods that have it are notified.
func TestAffected(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, dir)
	p, _ := start(t, config(dir))
	r.until("gpu 3/3")
	for i, id := range []string{"g0", "g1"} {
		if err := r.AllocateAssigned(t.Context(), numa.Assignment{Pod: fmt.Sprint("pod", i),
			Containers: []numa.Assigned{{Container: "c", Devices: []numa.Devices{{Resource: gpu,
				IDs: []string{id}}}}}}); err != nil {
			t.Fatal(err)
		}
	}
	p.SetHealth("g1", false)
	if uid := <-r.affected; uid != "pod1" {
		t.Errorf("told %s", uid)
	}
	if h := r.Health(gpu, "g1"); h != coredevicemanager.Unhealthy {
		t.Errorf("g1 is %v", h)
	}
	r.Release("pod1")
	if allocations := r.Allocations("pod1", "c"); allocations != nil {
		t.Errorf("released pod holds %v", allocations)
	}
}

// TestRefusals: plugins return errors.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, dir)
	c := config(dir)
	c.Log = t.Logf
	c.Fail = func(call string) error {
		if call == "options" {
			return nil
		}
		return errors.New("no")
	}
	_, stop := start(t, c)
	r.until("gpu 3/3")
	a := numa.Assignment{Pod: "u", Containers: []numa.Assigned{{Container: "c", Devices: []numa.Devices{{Resource: gpu,
		IDs: []string{"g0"}}}}}}
	if err := r.AllocateAssigned(t.Context(), a); err == nil || errors.Is(err, ErrGone) ||
		err.Error() != "rpc error: code = Unknown desc = no" {
		t.Errorf("give: %v", err)
	}
	if _, err := r.Preferred(t.Context(), numa.Question{Resource: gpu, Size: 1}); err == nil || errors.Is(err, ErrGone) {
		t.Errorf("preferred: %v", err)
	}
	stop()
	r.until("gpu 0/3")
	if err := r.AllocateAssigned(t.Context(), a); !errors.Is(err, ErrGone) {
		t.Errorf("give without plugin: %v", err)
	}
	if allocations := r.Allocations("u", "c"); allocations != nil {
		t.Errorf("holds %v", allocations)
	}
	why, until := r.Wait(time.Now(), numa.Pod{Containers: []numa.Container{{Devices: []numa.DeviceRequest{{Resource: gpu,
		Count: 1}}}}}, numa.Assignment{})
	if why != "example.com/gpu: its device plugin is not registered" || until.IsZero() {
		t.Errorf("wait: %q %v", why, until)
	}
	if why, until = r.Wait(time.Now().Add(-coredevicemanager.Grace-time.Second), numa.Pod{}, a); why == "" ||
		!until.IsZero() {
		t.Errorf("wait for too long: %q %v", why, until)
	}
}

func FuzzRead(f *testing.F) {
	cost.Attack(f, `[{"resource":"example.com/gpu","ids":["g0"],"nodes":{"g0":[0]},"needs":"CgA="}]`)
	cost.Attack(f, `[{"resource":"","ids":[]}]`)
	cost.Attack(f, `null`)
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		allocations, err := read(text)
		if err != nil {
			return
		}
		out, err := write(allocations)
		if err != nil {
			t.Skip(err) // JSON replaces what is not UTF-8; protobuf refuses it
		}
		again, err := read(out)
		if err != nil || len(again) != len(allocations) {
			t.Fatalf("%q became %q: %v", text, out, err)
		}
	})
}

// TestGivenUp: a plugin is away for as long as it is waited for, in virtual time.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int64
		k := New(Options{Metrics: metrics.New("n"), Changed: func() { told.Add(1) }, Affected: func(string) {}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { k.notifyLoop(ctx); close(ended) }()
		p := &deviceplugin.Plugin{Resource: gpu}
		l := listener{k}
		l.Connected(p, coredevicemanager.Options{})
		l.Listed(p, []numa.Device{{ID: "g0", Healthy: true}})
		l.Lost(p, errors.New("gone"))
		time.Sleep(coredevicemanager.Grace - time.Second)
		synctest.Wait()
		before := told.Load()
		if a, _ := k.Amounts(); a[0] != (coredevicemanager.Amount{Resource: gpu, Capacity: 1}) {
			t.Errorf("while it is expected back: %+v", a)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if a, _ := k.Amounts(); a[0] != (coredevicemanager.Amount{Resource: gpu}) || told.Load() != before+1 {
			t.Errorf("afterwards: %+v, told %d times", a, told.Load()-before)
		}
		cancel()
		<-ended
	})
}
