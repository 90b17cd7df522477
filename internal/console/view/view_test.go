package view

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/explain"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

func text(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestRow: what a row says about a node.
func TestRow(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	room := explain.LiveRoom{Node: node, Load: []explain.LiveLoad{
		{Resource: "cpu", Capacity: 4000, Allocatable: 3500, Requested: 4200},
	}}
	for _, c := range []struct {
		change func()
		want   string
	}{
		{func() {}, `{"n":"n1","s":"unknown","l":[{"r":"cpu","c":4000,"a":3500,"q":4200}]}`},
		{func() {
			node.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "True"},
				{Type: "PIDPressure", Status: "True"}, {Type: "DiskPressure", Status: "True"},
				{Type: "MemoryPressure", Status: "False"}}
		}, `{"n":"n1","s":"ready","p":["DiskPressure","PIDPressure"],"l":[{"r":"cpu","c":4000,"a":3500,"q":4200}]}`},
		{func() {
			node.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "False"}}
			node.Spec.Unschedulable = true
			node.Spec.Taints = []corev1.Taint{{Key: "k"}}
			node.Status.NodeInfo.KubeletVersion = "v1.36.3+plimsoll.0.1.0"
		}, `{"n":"n1","s":"not ready","c":true,"t":1,"o":true,"l":[{"r":"cpu","c":4000,"a":3500,"q":4200}]}`},
		{func() { node.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "Unknown"}} },
			`{"n":"n1","s":"unknown","c":true,"t":1,"o":true,"l":[{"r":"cpu","c":4000,"a":3500,"q":4200}]}`},
	} {
		c.change()
		if got := text(t, RowOf(room)); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// TestPods: the pods that request most memory come first.
func TestPods(t *testing.T) {
	now := metav1.Now()
	pod := func(name string, memory int64) *explain.LivePod {
		p := &explain.LivePod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Phase: "Running"}
		if memory > 0 {
			p.Requests = append(p.Requests, struct {
				Resource string
				Value    int64
			}{"memory", memory})
		}
		return p
	}
	leaving := pod("leaving", 1)
	leaving.DeletionTimestamp = &now
	got := PodsOf([]*explain.LivePod{pod("none", 0), leaving, pod("most", 3), pod("more", 2)})
	order := ""
	for _, p := range got {
		order += p.Pod + " "
	}
	if order != "a/most a/more a/leaving a/none " || !got[2].Leaving || got[0].Requests["memory"] != 3 {
		t.Errorf("%s %s", order, text(t, got))
	}
	if got := PodsOf(nil); got == nil || len(got) != 0 {
		t.Errorf("no pods: %v", got)
	}
}

// TestMap: who has which CPU, memory and device.
func TestMap(t *testing.T) {
	m := machine.Machine{
		CPUs:   idset.Of(0, 1, 2, 3, 4, 5, 6, 7),
		Memory: 16 << 30,
		NUMANodes: []machine.NUMANode{
			{ID: 0, CPUs: idset.Of(0, 1, 2, 3), Memory: 8 << 30},
			{ID: 2, CPUs: idset.Of(4, 5, 6, 7), Memory: 8 << 30},
		},
		Cores: []idset.Set{idset.Of(0, 1), idset.Of(2, 3), idset.Of(4, 5), idset.Of(6, 7)},
	}.Complete()
	config := numa.Config{}
	config.CPU.Static = true
	config.CPU.Reserved = idset.Of(0, 1)
	layout, err := numa.New(m, config)
	if err != nil {
		t.Fatal(err)
	}
	s := layout.NewState()
	s.SetPlugin(numa.Plugin{Resource: "gpu", Devices: []numa.Device{{ID: "g0", Nodes: []machine.NUMAID{2}, Healthy: true},
		{ID: "g1", Nodes: []machine.NUMAID{2}, Healthy: true}}})
	for _, a := range []numa.Assignment{
		{Pod: "u1", Containers: []numa.Assigned{{Container: "c", CPUs: idset.Of(2, 3)}}},
		{Pod: "u2", Containers: []numa.Assigned{{Container: "c", CPUs: idset.Of(4, 5),
			Devices: []numa.Devices{{Resource: "gpu", IDs: []string{"g1"}}}}}},
	} {
		if problems := s.Adopt(a); len(problems) > 0 {
			t.Fatal(problems)
		}
	}
	got := MapOf(m, s, func(uid string) string { return map[string]string{"u1": "shop/web"}[uid] })
	if want := "node 0: -- AA\nnode 2: BB ..\n"; got.String() != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	config.CPU.Static = false
	if layout, err = numa.New(m, config); err != nil {
		t.Fatal(err)
	}
	none := MapOf(m, layout.NewState(), nil)
	if want := "node 0: -- --\nnode 2: -- --\n"; none.String() != want || none.Nodes[0].Free != 0 {
		t.Errorf("a node that assigns nothing: got\n%swant\n%s", none.String(), want)
	}
	if want := `["shop/web","pod u2"]`; text(t, got.Owners) != want {
		t.Errorf("owners %s, want %s", text(t, got.Owners), want)
	}
	if want := `[{"resource":"gpu","id":"g0","owner":-1},{"resource":"gpu","id":"g1","owner":1}]`; text(t,
		got.Nodes[1].Devices) != want {
		t.Errorf("devices %s, want %s", text(t, got.Nodes[1].Devices), want)
	}
	if got.Nodes[0].Devices != nil || got.Nodes[1].ID != 2 || got.Nodes[0].Memory != 8<<30 {
		t.Errorf("%s", text(t, got))
	}
}

// TestThresholds: those of memory, with the amount that a share means here.
func TestThresholds(t *testing.T) {
	c := eviction.Config{Thresholds: []eviction.Threshold{
		{Signal: allocatable.MemoryAvailable, Value: allocatable.Threshold{Amount: 100 << 20}, Text: "100Mi"},
		{Signal: allocatable.MemoryAvailable, Value: allocatable.Threshold{Share: 0.5}, Grace: 90 * time.Second},
		{Signal: allocatable.NodeFSAvailable, Value: allocatable.Threshold{Share: 0.1}},
	}}
	want := `[{"bytes":104857600,"text":"100Mi"},{"bytes":536870912,"text":"512Mi","grace":"1m30s"}]`
	if got := text(t, Thresholds(c, 1<<30)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestMarks: decisions by which pods were evicted.
func TestMarks(t *testing.T) {
	at := time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)
	met := json.RawMessage(`{"Decided":{"Met":[{"Signal":"nodefs.available","Available":9,"Line":10,"Acts":false},` +
		`{"Signal":"memory.available","Available":5,"Line":7,"Acts":true}]}}`)
	pods := []journal.Pod{{Namespace: "a", Name: "p"}}
	got := Marks([]journal.Record{
		{Kind: journal.Intent, Time: at, Pods: pods, Detail: met},
		{Kind: journal.Eviction, Time: at, Detail: met}, // only the pressure changed
		{Kind: journal.Eviction, Time: at, Pods: pods, Detail: json.RawMessage(`"x"`)},
		{Kind: journal.Eviction, Time: at, Pods: pods, Detail: met, Text: "because"},
	})
	want := `[{"t":"2026-11-26T10:00:00Z","signal":"memory.available","available":5,"threshold":7,"pods":["a/p"],"text":"because"}]`
	if text(t, got) != want {
		t.Errorf("got  %s\nwant %s", text(t, got), want)
	}
}

// TestSample: a summary without memory is no sample.
func TestSample(t *testing.T) {
	if _, known := SampleOf(&statsapi.Summary{}); known {
		t.Error("an empty summary has memory")
	}
	available, used := uint64(3<<30), uint64(1<<30)
	s := &statsapi.Summary{Node: statsapi.NodeStats{Memory: &statsapi.MemoryStats{AvailableBytes: &available,
		WorkingSetBytes: &used}}}
	got, known := SampleOf(s)
	if !known || got.Available != 3<<30 || got.Capacity != 4<<30 || got.Stalled != -1 {
		t.Errorf("%+v", got)
	}
	s.Node.Memory.PSI = &statsapi.PSIStats{Some: statsapi.PSIData{Avg10: 2.5}}
	if got, _ := SampleOf(s); got.Stalled != 2.5 {
		t.Errorf("%+v", got)
	}
}
