package journal

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
)

func newLog(t testing.TB, bytesMax int, dir string) *Log {
	t.Helper()
	l, err := NewLog("scheduler", bytesMax, dir)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// placed is a placement of a pod as the scheduler records it.
func placed(name string) Note {
	return Note{
		Time: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC),
		Kind: Placed,
		Node: "n1",
		Pods: []Pod{{Namespace: "default", Name: name, UID: "u-" + name}},
		Detail: &Placement{
			Try:      Try{Attempt: 2, Waited: 3 * time.Second, Took: 80 * time.Microsecond, Nodes: 40},
			Node:     "n1",
			Feasible: 12,
			Score:    187,
			Room:     []Room{{"cpu", 500, 1200, 4000}, {"memory", 1 << 30, 3 << 30, 8 << 30}, {"pods", 1, 78, 110}},
		},
	}
}

func ask(t *testing.T, find func(Query) (Answer, error), q Query) Answer {
	t.Helper()
	a, err := find(q)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestLog(t *testing.T) {
	l := newLog(t, BytesMax, "")
	for _, name := range []string{"a", "b", "a"} {
		l.Note(placed(name))
	}
	l.Note(Note{Kind: Remark, Node: "n2", Detail: &Said{Subject: "n2", Why: "because"}})
	a := ask(t, l.Find, Query{Namespace: "default", Name: "a"})
	if len(a.Records) != 2 || a.Records[1].Number != 3 || a.By != "scheduler" || a.First != 1 || a.Last != 4 ||
		a.Missing != 0 || a.Since.IsZero() {
		t.Errorf("%+v", a)
	}
	const want = "placed on n1: 12 of 40 nodes fit, score 187; cpu: 500m requested, 1200m free of 4; " +
		"memory: 1Gi requested, 3Gi free of 8Gi; pods: 1 requested, 78 free of 110 (try 2, 3s after it came)"
	if got := a.Records[0].Text; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	var back Placement
	if err := json.Unmarshal(a.Records[0].Detail, &back); err != nil || back.Room[1].Free != 3<<30 || back.Attempt != 2 {
		t.Errorf("%+v, %v", back, err)
	}
	if a := ask(t, l.Find, Query{Node: "n2"}); len(a.Records) != 1 || a.Records[0].Text != "n2: because" {
		t.Errorf("about n2: %+v", a)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	l.Note(placed("late"))
	(*Log)(nil).Note(placed("nobody"))
	if a := ask(t, l.Find, Query{}); a.Last != 4 {
		t.Errorf("after Close: %+v", a)
	}
}

// TestLogIsBounded: the bound holds for Details of every size, and the answer says that older records were dropped.
func TestLogIsBounded(t *testing.T) {
	l := newLog(t, 1<<20, "")
	for i := range 20_000 {
		n := placed(fmt.Sprint("p", i))
		if i%100 == 0 {
			n.Detail = &Failure{What: "bind", Error: strings.Repeat("x", 1000)}
		}
		l.Note(n)
		if l.bytes > 1<<20 {
			t.Fatalf("%d bytes after %d notes", l.bytes, i+1)
		}
	}
	a := ask(t, l.Find, Query{})
	if a.First < 2 || a.Last != 20_000 || uint64(len(a.Records)) != a.Last-a.First+1 || a.Missing != 0 ||
		len(a.Records) < 1000 {
		t.Errorf("%d records from %d to %d, %d missing", len(a.Records), a.First, a.Last, a.Missing)
	}
}

// TestLogOnDisk: what was noted is on the disk after a crash, in order, and the next Log goes on from it.
func TestLogOnDisk(t *testing.T) {
	dir := t.TempDir()
	l := newLog(t, BytesMax, dir)
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 500 {
				l.Note(placed(fmt.Sprintf("w%d-%d", w, i)))
			}
		})
	}
	writers.Wait()
	for deadline := time.Now().Add(time.Minute); ; {
		a, err := Read(dir, Query{})
		if err == nil && a.Last == 2000 {
			if len(a.Records) != 2000 || a.Missing != 0 || a.Damaged != 0 || a.By != "scheduler" {
				t.Fatalf("%d records, %d missing, %d damaged, by %q", len(a.Records), a.Missing, a.Damaged, a.By)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("until %d, %v", a.Last, err)
		}
	}
	// No Close: the process is killed here, in the middle of a line.
	f, err := os.OpenFile(filepath.Join(dir, newer), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("0badc0de {"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	next := newLog(t, BytesMax, dir)
	next.Note(placed("after"))
	for range 2 { // before and after it is closed
		a := ask(t, next.Find, Query{})
		if len(a.Records) != 2001 || a.Records[2000].Number != 2001 || a.Records[2000].Pods[0].Name != "after" ||
			a.First != 1 || a.Missing != 0 {
			t.Errorf("%d records from %d to %d, %d missing", len(a.Records), a.First, a.Last, a.Missing)
		}
		_ = next.Close()
	}
	a, err := Read(filepath.Join(dir, newer), Query{Name: "w3-499"})
	if err != nil || len(a.Records) != 1 || a.Damaged != 1 {
		t.Errorf("from the file: %+v, %v", a, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestManyDecisions: a Log with a disk keeps to both bounds, and what the disk missed is counted, not hidden.
func TestManyDecisions(t *testing.T) {
	const decisions = 1_000_000
	dir := t.TempDir()
	l := newLog(t, 1<<20, dir)
	n := placed("p")
	for range decisions {
		l.Note(n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, name := range []string{newer, older} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			size += info.Size()
		}
	}
	a, err := Read(dir, Query{})
	if err != nil || size > BytesMax || a.Last != decisions || len(a.Records) == 0 ||
		uint64(len(a.Records))+a.Missing != a.Last-a.First+1 {
		t.Errorf("%d bytes; %d records from %d to %d, %d missing; %v", size, len(a.Records), a.First, a.Last, a.Missing, err)
	}
	t.Logf("%d of the last %d on the disk", len(a.Records), a.Last-a.First+1)
}

// TestServed: what is served can be saved and read again, also as agents of earlier releases served it.
func TestServed(t *testing.T) {
	l := newLog(t, BytesMax, "")
	l.Note(placed("a"))
	l.Note(placed("b"))
	server := httptest.NewServer(Handler(l.Find))
	defer server.Close()
	q := Query{Namespace: "default", Name: "b", UID: "u-b", Node: "n1"}
	response, err := http.Get(server.URL + Path + "?" + q.Parameters().Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	file := filepath.Join(t.TempDir(), "saved")
	saved, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := saved.ReadFrom(response.Body); err != nil {
		t.Fatal(err)
	}
	saved.Close()
	a, err := Read(file, q)
	if err != nil || len(a.Records) != 1 || a.Records[0].Pods[0].Name != "b" || a.Last != 2 {
		t.Errorf("%+v, %v", a, err)
	}
	list, err := json.Marshal(a.Records)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := ReadAnswer(list, q); err != nil || len(a.Records) != 1 || a.First != 2 {
		t.Errorf("a list: %+v, %v", a, err)
	}
}

// TestNotAJournal: files that are no journals are refused, and the error says what was expected.
func TestNotAJournal(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"empty": "", "text": "hello\nworld\n", "half": `{"records":[{`, "yaml": "a: b\n", "directory": "",
	} {
		path := filepath.Join(dir, name)
		err := os.WriteFile(path, []byte(text), 0o600)
		if name == "directory" {
			os.Remove(path)
			err = os.Mkdir(path, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		if a, err := Read(path, Query{}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	if _, err := Read(filepath.Join(dir, "none"), Query{}); err == nil {
		t.Error("a file that does not exist was read")
	}
}

func TestTexts(t *testing.T) {
	victim := Victim{Namespace: "default", Name: "low", UID: "u"}
	for want, d := range map[string]Detail{
		"0/3 nodes are available: 3 Insufficient cpu. Preempts on n1: default/low; 1 of them against their " +
			"disruption budget (try 1, 2ms after it came)": &Refusal{
			Try:        Try{Attempt: 1, Waited: 2 * time.Millisecond, Nodes: 3},
			Why:        "0/3 nodes are available: 3 Insufficient cpu.",
			Node:       "n1",
			Victims:    []Victim{victim},
			Violations: 1,
		},
		"rejected: OutOfcpu: no room": &Admission{Verdict: Rejects, Reason: "OutOfcpu", Message: "no room"},
		"admitted: cpu: 2 requested, 3 free of 4; 7 pods of 110 were here; container c gets CPUs 2-3, " +
			"memory 1Gi of NUMA nodes [0], gpu g1 g2, aligned on NUMA nodes [0]; before it were free on NUMA node 0 " +
			"CPUs 2-3, memory 3Gi, on NUMA node 1 CPUs none, memory 0 (policy restricted)": &Admission{
			Verdict: Admits,
			Judged: Judged{
				Basis: &admission.Basis{Checked: true, Pods: 7, PodsMax: 110, Room: []admission.Room{
					{Resource: "cpu", Requested: 2000, Used: 1000, Allocatable: 4000},
				}},
				Assignment: &Assignment{
					Policy: "restricted",
					Free:   []Free{{NUMANode: 0, CPUs: "2-3", Memory: 3 << 30}, {NUMANode: 1}},
					Given: []Given{{
						Container: "c",
						CPUs:      "2-3",
						NUMANodes: []int{0},
						Memory:    []Memory{{NUMANodes: []int{0}, Bytes: 1 << 30}},
						Devices:   []numa.Devices{{Resource: "gpu", IDs: []string{"g1", "g2"}}},
					}},
				},
			},
		},
		"image r.io/a was pulled from r.io in 1.5s (and waited 20ms for other pulls), 3Mi": &Pull{
			Image: "r.io/a", Registry: "r.io", Took: 1500 * time.Millisecond, Waited: 20 * time.Millisecond, Bytes: 3 << 20},
		"image r.io/a was not pulled from r.io, after 2ms: no": &Pull{
			Image: "r.io/a", Registry: "r.io", Took: 2 * time.Millisecond, Error: "no"},
		"container c ends (run 2) after 3s: exit code 137, OOMKilled; CrashLoopBackOff: 10s": &End{
			Container: "c", Run: 2, Ran: 3 * time.Second, Code: 137, Reason: "OOMKilled", Waits: "CrashLoopBackOff: 10s"},
		"container c is killed: its pod ends": &Stop{Container: "c", Why: "its pod ends"},
		"container c must end: its liveness probe failed 3 times in a row: 500": &Probe{
			Container: "c", Probe: "Liveness", Failed: true, Times: 3, Output: "500"},
		"container c is not ready: its readiness probe failed once: 500": &Probe{
			Container: "c", Probe: "Readiness", Failed: true, Times: 1, Output: "500"},
		"container c is ready: its readiness probe succeeded once": &Probe{Container: "c", Probe: "Readiness", Times: 1},
		"ends to make room for the critical pod kube-system/x, which lacks cpu": &Preemption{
			For: "kube-system/x", Resource: "cpu"},
		"bind, node n1, failed: no": &Failure{What: "bind", Node: "n1", Error: "no"},
		"node n1: Ready becomes Unknown, taint node.kubernetes.io/unreachable:NoSchedule is added: " +
			"no sign of life for 52s": &NodeAction{
			Action: lifecycle.Action{
				Node:    "n1",
				Unknown: []lifecycle.UnknownCondition{{Type: lifecycle.Ready}},
				Add:     []lifecycle.Taint{{Key: "node.kubernetes.io/unreachable", Effect: lifecycle.NoSchedule}},
			},
			Basis: lifecycle.Basis{Now: 62e9, Deadline: 60e9, Silent: true, Options: lifecycle.Defaults()},
		},
	} {
		if got := d.Text(); got != want {
			t.Errorf("%T: %q, want %q", d, got, want)
		}
		if d.Size() < 48 {
			t.Errorf("%T: %d bytes", d, d.Size())
		}
	}
}

// BenchmarkNote is what it costs to hand over a Note. BenchmarkPlace of internal/scheduler includes what it costs to
// make one.
func BenchmarkNote(b *testing.B) {
	for _, disk := range []bool{false, true} {
		b.Run(fmt.Sprintf("disk=%v", disk), func(b *testing.B) {
			dir := ""
			if disk {
				dir = b.TempDir()
			}
			l := newLog(b, BytesMax, dir)
			n := placed("web-7c9")
			b.ReportAllocs()
			for b.Loop() {
				l.Note(n)
			}
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkEncode is what a record costs in the background when it is written to the disk.
func BenchmarkEncode(b *testing.B) {
	l := newLog(b, BytesMax, "")
	late, soon := placed("web-7c9"), placed("web-7c9")
	at := *soon.Detail.(*Placement)
	at.Waited = 109 * time.Microsecond // its text has a letter that is not ASCII
	soon.Detail = &at
	for name, n := range map[string]*Note{"late": &late, "soon": &soon} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var text []byte
			for b.Loop() {
				var err error
				if text, err = l.encode(text[:0], 1, n); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(text)), "bytes/record")
		})
	}
}
