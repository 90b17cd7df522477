package scheduler

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// TestJournal: a pod that waits, preempts, is placed, and one whose binds fail: the journal has each decision in order,
// with its numbers, and finds those about a victim, too.
func TestJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		log, err := journal.NewLog("scheduler", journal.BytesMax, "")
		if err != nil {
			t.Fatal(err)
		}
		m, _, stop := startPrepared(c, 4, func(m *loop) { m.o.Journal = log })
		defer stop()
		m.nodeHandler().OnAdd(testNode("n1", "2"), false)
		m.facts <- synced(m)
		c.add(m, testPod("low", "2"))
		elapse(time.Second)
		c.add(m, testPod("equal", "1"))
		elapse(time.Second)
		c.add(m, withPriority(testPod("high", "1500m"), 10))
		elapse(20 * time.Second)
		c.mu.Lock()
		c.refuses = true
		c.mu.Unlock()
		c.add(m, testPod("refused", "100m"))
		elapse(time.Second)

		for name, want := range map[string][]string{
			"low": {
				"placement n1 placed on n1: 1 of 1 nodes fit; cpu: 2 requested, 2 free of 2; pods: 1 requested, 110 free of 110",
				"unschedulable n1 0/1 nodes are available: 1 Insufficient cpu. Preempts on n1: default/low",
			},
			"equal": {"unschedulable  0/1 nodes are available: 1 Insufficient cpu. preemption: "},
			"high": {
				"unschedulable n1 0/1 nodes are available: 1 Insufficient cpu. Preempts on n1: default/low (try 1, ",
				"placement n1 placed on n1: 1 of 1 nodes fit; cpu: 1500m requested, 2 free of 2; pods: 1 requested, ",
			},
			"refused": {
				"placement n1 placed on n1: 1 of 1 nodes fit; cpu: 100m requested, 500m free of 2;",
				"failed n1 bind, node n1, failed: no",
			},
		} {
			found, err := log.Find(journal.Query{Namespace: "default", Name: name})
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range found.Records {
				line := fmt.Sprintf("%s %s %s", r.Kind, r.Node, r.Text)
				if i < len(want) && !strings.HasPrefix(line, want[i]) {
					t.Errorf("%s, record %d: %q, want %q", name, i, line, want[i])
				}
			}
			if len(found.Records) < len(want) {
				t.Errorf("%s: %d records, want %d: %+v", name, len(found.Records), len(want), found.Records)
			}
		}
		found, err := log.Find(journal.Query{UID: "uid-high"})
		if err != nil {
			t.Fatal(err)
		}
		var d journal.Refusal
		if err := json.Unmarshal(found.Records[0].Detail, &d); err != nil {
			t.Fatal(err)
		}
		if d.Priority != 10 || d.Nodes != 1 || d.Reasons["Insufficient cpu"] != 1 || d.Requests[0].Requested != 1500 ||
			len(d.Victims) != 1 || d.Victims[0].UID != "uid-low" || strings.Join(d.Plugins, " ") != "NodeResourcesFit" {
			t.Errorf("%+v", d)
		}
	})
}

// BenchmarkPlace is a decision on 1,000 nodes, without and with the journal: the difference is what the journal costs
// on the way to a decision.
func BenchmarkPlace(b *testing.B) {
	for _, kept := range []bool{false, true} {
		b.Run(fmt.Sprintf("journal=%v", kept), func(b *testing.B) {
			m, _ := idle()
			if kept {
				log, err := journal.NewLog("scheduler", journal.BytesMax, "")
				if err != nil {
					b.Fatal(err)
				}
				m.o.Journal = log
			}
			for i := range 1000 {
				m.placer.NodeSeen(1, translate.SchedulerNode(testNode(fmt.Sprint("n", i), "64")))
			}
			pod := translate.SchedulerPod(testPod("web-7c9", "10m"))
			number := 0
			b.ReportAllocs()
			for b.Loop() {
				number++
				pod.ID = corescheduler.PodID(fmt.Sprint("u", number))
				m.placer.PodSeen(1, pod)
				d, ok := m.placer.Next(1)
				if !ok || d.Node == "" {
					b.Fatal("not placed")
				}
				m.notePlaced(&d, 1, 0)
				m.placer.PodGone(1, pod.ID)
			}
		})
	}
}
