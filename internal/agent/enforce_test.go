package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// driverRuntime is a runtime that answers only the question for its cgroup driver.
type driverRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	answer *runtimeapi.RuntimeConfigResponse
	err    error
}

func (r driverRuntime) RuntimeConfig(context.Context,
	*runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return r.answer, r.err
}

func TestCgroupDriverIsTheRuntimes(t *testing.T) {
	says := func(d runtimeapi.CgroupDriver) *runtimeapi.RuntimeConfigResponse {
		return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: d}}
	}
	for name, c := range map[string]struct {
		runtime driverRuntime
		want    qos.Driver // empty: an error
	}{
		"systemd":            {driverRuntime{answer: says(runtimeapi.CgroupDriver_SYSTEMD)}, qos.Systemd},
		"cgroupfs":           {driverRuntime{answer: says(runtimeapi.CgroupDriver_CGROUPFS)}, qos.Cgroupfs},
		"does not say":       {driverRuntime{answer: &runtimeapi.RuntimeConfigResponse{}}, "configured"},
		"has no such call":   {driverRuntime{err: status.Error(codes.Unimplemented, "unknown method")}, "configured"},
		"another driver yet": {driverRuntime{answer: says(7)}, ""},
	} {
		socket := filepath.Join(t.TempDir(), "cri.sock")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		runtimeapi.RegisterRuntimeServiceServer(s, c.runtime)
		go func() { _ = s.Serve(l) }()
		client, err := cri.Dial(socket)
		if err != nil {
			t.Fatal(err)
		}
		a := &Agent{o: Options{Config: &kubeletconfigv1beta1.KubeletConfiguration{CgroupDriver: "configured"}},
			runtime: client}
		if got, err := a.cgroupDriver(t.Context()); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
		_ = client.Close()
		s.Stop()
	}
}

// A controller that a reserved cgroup lacks is either named in the error or created.
func TestReservedGroupsAreFoundOrMade(t *testing.T) {
	tree, root := liveGroup(t)
	layout, err := qos.NewLayout(qos.Cgroupfs, "/")
	if err != nil {
		t.Fatal(err)
	}
	wanted := []kubeletconfig.Reservation{
		{Group: allocatable.SystemReserved, Field: "systemReservedCgroup", Cgroup: root + "/system"},
		{Group: allocatable.KubeReserved, Field: "kubeReservedCgroup", Cgroup: root},
	}
	_, err = findReserved(tree, layout, wanted, false)
	for _, want := range []string{"systemReservedCgroup", "lacks", "- memory at ", "mkdir -p ",
		"--create-missing-cgroups"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	if err != nil && strings.Contains(err.Error(), "kubeReservedCgroup") {
		t.Errorf("a complete group is named: %v", err)
	}
	found, err := findReserved(tree, layout, wanted, true)
	if err != nil || len(found) != 2 {
		t.Fatalf("%+v, %v", found, err)
	}
	if err := createReserved(tree, found); err != nil {
		t.Fatal(err)
	}
	if _, err := findReserved(tree, layout, wanted, false); err != nil {
		t.Errorf("after making it: %v", err)
	}
	wanted[0].Cgroup = "/"
	if _, err := findReserved(tree, layout, wanted, true); err == nil ||
		!strings.Contains(err.Error(), "the machine's root cannot be reserved") {
		t.Errorf("the root: %v", err)
	}
}

// The kernel's refusal is logged once. A lower score stays, except the agent's own.
func TestOOMScoresRefusedOnce(t *testing.T) {
	scores := map[int]int{1: 0, 2: -1000, 3: -1000}
	var asked []string
	s := oomScores{
		get: func(pid int) (int, error) {
			if score, ok := scores[pid]; ok {
				return score, nil
			}
			return 0, os.ErrNotExist
		},
		set: func(pid, score int) error {
			asked = append(asked, fmt.Sprint(pid, "=", score))
			if score < scores[pid] {
				return fmt.Errorf("set: %w", os.ErrPermission)
			}
			scores[pid] = score
			return nil
		},
	}
	s.keep("runtime", 2, -999, false)
	s.keep("gone", 9, -999, true)
	if s.refused || len(asked) != 0 {
		t.Errorf("asked %v, refused %v", asked, s.refused)
	}
	s.keep("agent", 3, -999, true)
	if s.refused || scores[3] != -999 {
		t.Errorf("scores %v", scores)
	}
	for range 3 {
		s.keep("agent", 1, -999, true)
		if !s.refused || scores[1] != 0 {
			t.Errorf("scores %v, refused %v", scores, s.refused)
		}
	}
	s.set = func(int, int) error { return errors.New("odd") }
	s.keep("agent", 1, -999, true) // goes on
}

// The agent's own score is the configured one, whether that is higher or lower.
func TestOOMScoreIsTheConfigurations(t *testing.T) {
	for _, want := range []int{-998, -3, 500} {
		config, warnings, err := kubeletconfig.Parse(fmt.Appendf(nil,
			"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\noomScoreAdj: %d\n", want), "/")
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%v, %v", warnings, err)
		}
		scores := map[int]int{os.Getpid(): -500}
		s := &oomScores{
			get: func(pid int) (int, error) { return scores[pid], nil },
			set: func(pid, score int) error {
				scores[pid] = score
				return nil
			},
		}
		a := &Agent{o: Options{Config: config}, runtime: &cri.Client{Endpoint: "unix://" + filepath.Join(t.TempDir(),
			"nobody.sock")}}
		a.giveOOMScores(s)
		if len(scores) != 1 || scores[os.Getpid()] != want {
			t.Errorf("scores %v, want %d for process %d alone", scores, want, os.Getpid())
		}
	}
}

func TestRuntimeResources(t *testing.T) {
	v := qos.Values{
		CPUShares: unit.Of(qos.Shares(512)), Memory: unit.LimitTo(128 * unit.MiB), Swap: unit.LimitTo(unit.Bytes(0)),
		MemoryMin: unit.Of(unit.Bytes(0)), MemoryLow: unit.Of(64 * unit.MiB), MemoryHigh: unit.LimitTo(96 * unit.MiB),
	}
	out := runtimeResources(v, true)
	want := map[string]string{"memory.min": "0", "memory.low": "67108864", "memory.high": "100663296",
		"memory.swap.max": "0"}
	if !maps.Equal(out.Unified, want) || out.MemorySwapLimitInBytes != 0 || out.MemoryLimitInBytes != 134217728 {
		t.Errorf("v2: %v, want %v", out, want)
	}
	v.Swap = v.Memory
	if out = runtimeResources(v, false); out.Unified != nil || out.MemorySwapLimitInBytes != 134217728 {
		t.Errorf("v1: %v", out)
	}
	if out = runtimeResources(qos.Values{}, true); out.Unified != nil {
		t.Errorf("nothing: %v", out)
	}
}
