package recommend

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	corerecommend "github.com/plimsoll-dev/plimsoll/internal/core/recommend"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// node is a made-up /proc and cgroup v2 mount.
type node struct {
	t   *testing.T
	dir string
}

func (n node) write(name, text string) {
	n.t.Helper()
	file := filepath.Join(n.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// process writes the files of a process in /proc; cpu is in hundredths of a second, memory in kB.
func (n node) process(pid int, name, args, group string, cpu, memory int) {
	dir := fmt.Sprintf("proc/%d/", pid)
	n.write(dir+"stat", fmt.Sprintf("%d (%s) S 1 1 1 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 %d 0 0", pid, name, cpu, pid))
	n.write(dir+"cmdline", strings.ReplaceAll(args, " ", "\x00")+"\x00")
	n.write(dir+"cgroup", "0::"+group+"\n")
	n.write(dir+"statm", "1 1 0\n")
	n.write(dir+"smaps_rollup", fmt.Sprintf("Pss: %d kB\nPss_Anon: %d kB\nPss_Shmem: 0 kB\n", memory, memory/2))
}

func (n node) machine(busy int, available string) {
	n.write("proc/stat", fmt.Sprintf("cpu %d 0 0 0 0 0 0 0 0 0\n", busy))
	n.write("proc/meminfo", "MemTotal: 1048576 kB\nMemFree: 0 kB\nMemAvailable: "+available+" kB\n")
}

func (n node) group(name string, usec int, anon string) {
	n.write("cgroup/"+name+"/cpu.stat", fmt.Sprintf("usage_usec %d\n", usec))
	n.write("cgroup/"+name+"/memory.current", "1000\n")
	n.write("cgroup/"+name+"/memory.stat", "anon "+anon+"\nkernel 0\n")
}

const pods = "/kubepods.slice/kubepods-burstable.slice/" +
	"kubepods-burstable-pod6f2c7a5e_0b1d_4c55_9f0e_2d1a3b4c5d6e.slice/cri-containerd-1.scope"

// newNode returns a node with one pod, a runtime, an agent and a daemon.
func newNode(t *testing.T) (node, Options) {
	n := node{t, t.TempDir()}
	n.machine(1000, "524288")
	n.write("cgroup/cgroup.controllers", "cpu memory\n")
	n.group("kubepods.slice", 5_000_000, "104857600")
	n.group("system.slice", 1_000_000, "52428800")
	n.process(1, "systemd", "/sbin/init", "/init.scope", 10, 10240)
	n.process(10, "containerd", "/usr/bin/containerd", "/system.slice/containerd.service", 100, 40960)
	n.process(11, "containerd-shim", "/usr/bin/containerd-shim-runc-v2", "/system.slice/containerd.service", 10, 10240)
	n.process(20, "plimsoll", "/usr/bin/plimsoll agent", "/system.slice/plimsoll.service", 50, 20480)
	n.process(30, "web", "/web", pods, 500, 102400)
	n.write("proc/sys/x", "")
	return n, Options{
		For: 10 * time.Second, Every: time.Second, MaxPods: 11, Proc: procfs.FS(filepath.Join(n.dir,
			"proc")), Cgroups: filepath.Join(n.dir, "cgroup"),
		Machine: machine.Machine{CPUs: idset.Of(0, 1), Memory: unit.GiB},
	}
}

// TestWatch measures a busy node: each second uses 100 ms in the pod, 20 ms in the runtime, 10 ms in the agent, 30 ms
// in others.
func TestWatch(t *testing.T) {
	n, o := newNode(t)
	i := 0
	o.Seen = func(corerecommend.Sample) {
		i++
		n.machine(1000+16*i, "524288")
		n.group("kubepods.slice", 5_000_000+100_000*i, "104857600")
		n.process(10, "containerd", "/usr/bin/containerd", "/system.slice/containerd.service", 100+2*i, 40960)
		n.process(20, "plimsoll", "/usr/bin/plimsoll agent", "/system.slice/plimsoll.service", 50+i, 20480)
		if i == 5 { // a process may end while it is being read
			if err := os.Remove(filepath.Join(n.dir, "proc/1/stat")); err != nil {
				t.Error(err)
			}
		}
	}
	var r *Result
	synctest.Test(t, func(t *testing.T) {
		var err error
		if r, err = Reservations(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	})
	if r.Report.Samples != 11 || r.Report.For != 10*time.Second || r.Report.Pods.Peak != 1 ||
		r.Report.PerPod != (corerecommend.PerPod{Memory: 10 * unit.MiB, CPUPerHour: 108 * time.Second}) {
		t.Errorf("%+v", r.Report)
	}
	cpu := func(p corerecommend.Part) unit.MilliCPU { return r.Report.Parts[p].CPU.P50 }
	if cpu(corerecommend.Runtime) != 20 || cpu(corerecommend.Agent) != 10 || cpu(corerecommend.System) != 30 ||
		r.Report.Slice == nil {
		t.Errorf("%+v", r.Report.Parts)
	}
	// 512 MiB are in use: 100 of the pods, half of 70 of the runtime and the agent; the other half are files.
	if got := r.Report.Parts[corerecommend.System].Memory.P50; got != (512-100-35)*unit.MiB {
		t.Errorf("memory of the system %v", got)
	}
	// 50 + 20, plus 10 for each of 10 more pods, plus a tenth, rounded up to 16
	if r.Advice.Kube.Memory != 192*unit.MiB {
		t.Errorf("kubeReserved %v: %s", r.Advice.Kube.Memory, r.Advice.Why.KubeMemory)
	}
}

// TestInterrupt ends a measurement early: the result is from the samples so far.
func TestInterrupt(t *testing.T) {
	_, o := newNode(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		seen := 0
		o.Seen = func(corerecommend.Sample) {
			if seen++; seen == 3 {
				cancel()
			}
		}
		r, err := Reservations(ctx, o)
		if err != nil || r.Report.Samples != 3 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestYAMLIsConfiguration uses the output in a configuration.
func TestYAMLIsConfiguration(t *testing.T) {
	_, o := newNode(t)
	o.For = 0
	r, err := Reservations(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	r.Advice.System.CPU = 2000 // printed as 2, which is not a string unless quoted
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + string(r.YAML())
	c, _, err := kubeletconfig.Parse([]byte(text), "/")
	if err != nil || c.SystemReserved["cpu"] != "2" || c.KubeReserved["memory"] == "" {
		t.Errorf("%v\n%s", err, text)
	}
	for _, want := range []string{"GKE", "EKS", "AKS", "OpenShift", "Warning: watched for 0s only", ", 1 pod.",
		"system.slice"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
	asJSON, err := r.JSON()
	var back map[string]any
	if err := json.Unmarshal(asJSON, &back); err != nil || back["systemReserved"] == nil ||
		len(back["formulas"].(map[string]any)) != 4 {
		t.Errorf("%v\n%s", err, asJSON)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestThisMachine takes a sample of the machine on which the test runs.
func TestThisMachine(t *testing.T) {
	r, err := Reservations(t.Context(), Options{For: time.Millisecond, Every: time.Millisecond, MaxPods: 110,
		Proc: procfs.Default, Cgroups: "/sys/fs/cgroup", Machine: machine.Machine{CPUs: idset.Of(0), Memory: unit.GiB}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Report.Samples < 1 || r.Report.Parts[corerecommend.System].Memory.Peak <= 0 || len(r.Report.System) == 0 {
		t.Errorf("%+v", r.Report)
	}
}

func TestBadFilesAreNamed(t *testing.T) {
	for name, want := range map[string]string{"proc/stat": "want cpu", "proc/meminfo": "MemTotal",
		"cgroup/kubepods.slice/memory.stat": "memory.stat"} {
		n, o := newNode(t)
		n.write(name, "anon x\n")
		if _, err := Reservations(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "watch reservations") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
