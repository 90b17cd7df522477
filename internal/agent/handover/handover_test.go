package handover

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletstate"
)

const gi = unit.Bytes(1 << 30)

// put writes a file as a kubelet would.
func (d Dirs) put(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(d.path(name)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.path(name), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (d Dirs) get(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(d.path(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func dirsOf(t *testing.T) Dirs {
	root := t.TempDir()
	return Dirs{Root: root, Plugins: filepath.Join(root, "device-plugins")}
}

// TestFound: what a kubelet assigned to a pod becomes its assignment. An init container that has ended shares its CPUs
// with the other containers.
func TestFound(t *testing.T) {
	d := dirsOf(t)
	d.put(t, kubeletstate.CPUsFile, kubeletstate.CPUs{
		Policy: kubeletstate.CPUsStatic, Shared: idset.Of(0, 3),
		Exclusive: map[string]map[string]idset.Set{"u": {"app": idset.Of(1, 2), "init": idset.Of(1)},
			"other": {"c": idset.Of(4)}},
	}.Marshal())
	d.put(t, kubeletstate.MemoryFile, kubeletstate.Memory{
		Policy:   kubeletstate.MemoryStatic,
		Assigned: map[string]map[string][]numa.Block{"u": {"app": {{Nodes: []machine.NUMAID{1}, Bytes: gi}}}},
	}.Marshal())
	d.put(t, kubeletstate.DevicesFile, kubeletstate.Devices{Given: []kubeletstate.Given{{
		Pod: "u", Container: "app", Resource: "example.com/gpu", IDs: map[int64][]string{1: {"g1"}, 0: {"g0", "g1"}},
	}}}.Marshal())
	f := Read(d)
	if err := f.Damage(); err != nil {
		t.Fatal(err)
	}
	a := f.Assignment("u", map[string]string{"app": "id"})
	if a.Pod != "u" || len(a.Containers) != 2 {
		t.Fatalf("%+v", a)
	}
	app, init := a.Containers[0], a.Containers[1]
	if app.Container != "app" || app.Init || app.CPUs.String() != "1-2" || len(app.Memory) != 1 || len(app.Nodes) != 1 ||
		len(app.Devices) != 1 || strings.Join(app.Devices[0].IDs, " ") != "g0 g1" {
		t.Errorf("app: %+v", app)
	}
	if init.Container != "init" || !init.Init || init.CPUs.String() != "1" {
		t.Errorf("init: %+v", init)
	}
	if got := f.Assignment("unknown", nil); len(got.Containers) != 0 {
		t.Errorf("a pod that has nothing: %+v", got)
	}
	if given := f.Given("u", "app"); len(given) != 1 || len(f.Given("u", "init")) != 0 {
		t.Errorf("devices: %+v", given)
	}
}

// TestWrongFile: the error says which file is wrong and what to do. Missing files count as empty.
func TestWrongFile(t *testing.T) {
	d := dirsOf(t)
	if err := Read(d).Damage(); err != nil {
		t.Errorf("without files: %v", err)
	}
	wrong := strings.Replace(string(kubeletstate.CPUs{Policy: kubeletstate.CPUsStatic}.Marshal()), "static", "statix", 1)
	d.put(t, kubeletstate.CPUsFile, []byte(wrong))
	d.put(t, kubeletstate.DevicesFile, nil)
	f := Read(d)
	err := f.Damage()
	for _, want := range []string{
		filepath.Join(d.Root, "cpu_manager_state") + ": checksum ", filepath.Join(d.Plugins, "kubelet_internal_checkpoint") +
			": EOF",
		"Put a whole copy of it back, or drain this node and delete the file",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if d.get(t, kubeletstate.CPUsFile) != wrong {
		t.Error("the file was changed")
	}
	if err := f.SetAside(); err != nil {
		t.Fatal(err)
	}
	if got := d.get(t, kubeletstate.CPUsFile+".damaged"); got != wrong {
		t.Errorf("the renamed file has %q, want %q", got, wrong)
	}
	if err := Read(d).Damage(); err != nil {
		t.Errorf("after they were renamed: %v", err)
	}
}

// TestKeeper: the files are updated when assignments and allocations change, and are complete when the Keeper ends.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine.Machine{
			HugePages: map[unit.Bytes]int64{2 << 20: 0},
			NUMANodes: []machine.NUMANode{{ID: 0, CPUs: idset.Of(0, 1, 2, 3), Memory: 8 * gi}},
			NodeFS:    machine.Filesystem{Capacity: gi},
		}.Complete()
		config := numa.Config{
			CPU:    numa.CPUConfig{Static: true, ReservedCount: 1},
			Memory: numa.MemoryConfig{Static: true, Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{0: {0: gi}}},
		}
		layout, err := numa.New(m, config)
		if err != nil {
			t.Fatal(err)
		}
		state := layout.NewState()
		d, changed := dirsOf(t), make(chan struct{}, 1)
		var version atomic.Uint64
		var pods atomic.Pointer[[]*corev1.Pod]
		k := &Keeper{Dirs: d, Source: Source{
			Machine: m, Config: config, State: state.Fork, Changed: changed, Version: version.Load,
			Devices: func() kubeletstate.Devices { return kubeletstate.Devices{} },
			Pods: func() ([]*corev1.Pod, bool) {
				if p := pods.Load(); p != nil {
					return *p, true
				}
				return nil, false
			},
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- k.Run(ctx) }()
		synctest.Wait()
		if got := d.get(t, kubeletstate.CPUsFile); !strings.Contains(got, `"policyName":"static","defaultCpuSet":"0-3"`) {
			t.Errorf("at the start: %s", got)
		}
		if _, err := os.Lstat(d.path(kubeletstate.AllocatedFile)); !os.IsNotExist(err) {
			t.Errorf("allocations were written before the pods are known: %v", err)
		}

		state.Adopt(numa.Assignment{Pod: "u", Containers: []numa.Assigned{{
			Container: "c", CPUs: idset.Of(2), Memory: []numa.Block{{Nodes: []machine.NUMAID{0}, Bytes: gi}},
		}}})
		changed <- struct{}{}
		synctest.Wait()
		if got := d.get(t, kubeletstate.CPUsFile); !strings.Contains(got,
			`"defaultCpuSet":"0-1,3","entries":{"u":{"c":"2"}}`) {
			t.Errorf("after an assignment: %s", got)
		}
		memory := d.get(t, kubeletstate.MemoryFile)
		for _, want := range []string{`"hugepages-2Mi":{"total":0,`, `"reserved":1073741824,"free":6442450944`} {
			if !strings.Contains(memory, want) {
				t.Errorf("%s lacks %s", memory, want)
			}
		}

		pods.Store(&[]*corev1.Pod{podOf("u", "500m"), endedPod()})
		time.Sleep(pollEvery)
		synctest.Wait()
		for _, name := range []string{kubeletstate.AllocatedFile, kubeletstate.ActuatedFile} {
			got, err := kubeletstate.ParseAllocations([]byte(d.get(t, name)))
			if cpu := got["u"].ContainerResources["c"].Requests["cpu"]; err != nil || len(got) != 1 || cpu.String() != "500m" {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		pods.Store(&[]*corev1.Pod{podOf("u", "700m")})
		version.Add(1)
		cancel() // before the next poll
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := d.get(t, kubeletstate.AllocatedFile); !strings.Contains(got, "700m") {
			t.Errorf("at the end: %s", got)
		}
	})
}

func podOf(uid, cpu string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)},
	}}}
	return pod
}

// endedPod is a pod that has ended: it has no allocation any more.
func endedPod() *corev1.Pod {
	pod := podOf("v", "1")

	pod.Status.Phase = corev1.PodSucceeded
	return pod
}

// Allocations that change at each poll are written when busyMax is over, others at the first poll without a change.
func TestKeeperWaitsWhilePodsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		version := uint64(0)
		k := &Keeper{Source: Source{Version: func() uint64 { return version }}, wroteAt: time.Now()}
		if k.changed() {
			t.Error("nothing has changed, and it is written")
		}
		looks := 0
		for {
			version++
			looks++
			if k.changed() {
				break
			}
			time.Sleep(pollEvery) // virtual
		}
		if want := 1 + int(busyMax/pollEvery); looks != want {
			t.Errorf("changes at each look are written at look %d, want %d", looks, want)
		}
		k.version, k.wroteAt = version, time.Now()
		version++
		if k.changed() || !k.changed() {
			t.Error("one change is to be written at the look after the one that saw it")
		}
	})
}
