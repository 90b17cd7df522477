package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestBurstThroughTrouble binds 400 pods while the API server refuses some binds and loses some answers: each is bound
// exactly once, and no node exceeds its allocatable.
func TestBurstThroughTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.trouble = true
		m, _, stop := start(c, 16)
		defer stop()
		for i := range 10 {
			m.nodeHandler().OnAdd(testNode(fmt.Sprintf("n%d", i), "4"), true)
		}
		for i := range 400 {
			c.add(m, testPod(fmt.Sprintf("p%d", i), "100m"))
		}
		m.submit(context.Background(), synced(m))
		elapse(2 * time.Minute)
		perNode := map[string]int{}
		for uid, pod := range c.pods {
			perNode[pod.Spec.NodeName]++
			if c.bound[uid] != 1 {
				t.Errorf("%s bound %d times", uid, c.bound[uid])
			}
		}
		m.submit(context.Background(), func(unit.Instant) {
			if m.binding+len(m.flights)+len(m.ahead)+len(m.lines)+len(m.unknownBinds)+len(m.rejected) > 0 {
				t.Errorf("all are bound, but it keeps %d binds, flights %v, decisions ahead %v, lines %v, unknown binds %v, "+
					"rejected %v",
					m.binding, m.flights, m.ahead, m.lines, m.unknownBinds, m.rejected)
			}
		})
		synctest.Wait()
		for node, n := range perNode {
			if n != 40 {
				t.Errorf("node %q has %d pods of 100m, want 40 on each", node, n)
			}
		}
	})
}

// TestNothingBeforeTheLists checks that nothing is placed until all lists have arrived, however long that takes, and
// whatever happens meanwhile.
func TestNothingBeforeTheLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, _, stop := start(c, 16)
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		c.add(m, testPod("p", "100m"))
		for range 3 {
			elapse(time.Minute)
			m.nodeHandler().OnUpdate(testNode("n", "1"), testNode("n", "2"))
		}
		elapse(time.Minute)
		if len(c.bound) != 0 {
			t.Fatal("bound before the lists were complete")
		}
		m.submit(context.Background(), synced(m))
		elapse(time.Second)
		if len(c.bound) != 1 {
			t.Fatal("not bound after the lists were complete")
		}
	})
}

// TestFailureIsReported checks the Event and the condition of a pod that fits nowhere, that an unchanged condition is
// not written again, and what happens when a node is added.
func TestFailureIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, recorder, stop := start(c, 16)
		defer stop()
		m.nodeHandler().OnAdd(testNode("small", "1"), true)
		c.add(m, testPod("big", "2"))
		m.submit(context.Background(), synced(m))
		elapse(time.Second)
		const want = "0/1 nodes are available: 1 Insufficient cpu. " +
			"preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
		if got := <-recorder.Events; got != "Warning FailedScheduling "+want {
			t.Errorf("event %q", got)
		}
		patches := strings.Join(c.patches, "\n")
		for _, part := range []string{`"type":"PodScheduled"`, `"status":"False"`, `"reason":"Unschedulable"`, want} {
			if len(c.patches) != 1 || !strings.Contains(patches, part) {
				t.Errorf("patches %q, want one with %s", c.patches, part)
			}
		}
		m.nodeHandler().OnAdd(testNode("large", "4"), false)
		elapse(time.Second)
		if got := <-recorder.Events; got != "Normal Scheduled Successfully assigned default/big to large" {
			t.Errorf("event %q", got)
		}
	})
}

func TestOtherSchedulersPodsAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, _, stop := start(c, 16)
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		pod := testPod("p", "100m")
		pod.Spec.SchedulerName = "other"
		c.add(m, pod)
		m.submit(context.Background(), synced(m))
		elapse(time.Minute)
		if len(c.bound) != 0 {
			t.Error("bound a pod of another scheduler")
		}
	})
}

// TestOthersNominate: a waiting pod that others nominate goes to that node as soon as it fits, whichever other nodes
// have room, unless the nomination was removed. The scheduler's own nomination is not changed by a late event.
func TestOthersNominate(t *testing.T) {
	for _, takenBack := range []bool{false, true} {
		chosen := map[string]int{}
		for i := range 8 { // the choice among equal nodes depends on the pod's name
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				m, _, stop := start(c, 10)
				defer stop()
				m.nodeHandler().OnAdd(testNode("small", "100m"), true)
				m.submit(context.Background(), synced(m))
				pod := testPod(fmt.Sprint("p", i), "1")
				c.add(m, pod)
				elapse(time.Second)
				show := func(nominated string) {
					pod = pod.DeepCopy()
					pod.Status.NominatedNodeName = nominated
					c.set(pod)
					m.podHandler().OnUpdate(pod, pod)
					synctest.Wait()
				}
				show("late")
				if takenBack {
					show("")
				}
				begin, told := make(chan struct{}), make(chan struct{})
				go m.submit(context.Background(), func(unit.Instant) { close(told); <-begin })
				<-told
				for _, name := range []string{"a", "b", "late", "c", "d"} { // before the next decision
					m.nodeHandler().OnAdd(testNode(name, "4"), false)
				}
				close(begin)
				elapse(time.Minute)
				chosen[c.pods[pod.UID].Spec.NodeName]++
			})
		}
		if late := chosen["late"] == 8; late == takenBack {
			t.Errorf("removed %v: placed %v", takenBack, chosen)
		}
	}
}

// TestEventsNameTheProfile checks that Events, and the condition of a victim, have the name of the pod's profile.
func TestEventsNameTheProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, _, stop := start(c, 10)
		defer stop()
		second := corescheduler.DefaultProfile()
		second.Name = "second"
		m.o.Profiles = append(m.o.Profiles, second)
		var mu sync.Mutex
		told := map[string]*record.FakeRecorder{}
		m.recorder = func(profile string) record.EventRecorder {
			mu.Lock()
			defer mu.Unlock()
			if told[profile] == nil {
				told[profile] = record.NewFakeRecorder(100)
			}
			return told[profile]
		}
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		c.add(m, onNode(withPriority(testPod("low", "1"), 1), "n"))
		m.submit(context.Background(), synced(m))
		high := withPriority(testPod("high", "1"), 10)
		high.Spec.SchedulerName = "second"
		c.add(m, high)
		elapse(time.Minute)
		if len(told) != 1 || len(told["second"].Events) != 3 {
			t.Errorf("Events by %v", told)
		}
		if !strings.Contains(strings.Join(c.patches, ""), "second: preempting to accommodate") {
			t.Errorf("patches %q", c.patches)
		}
	})
}

// TestFactsWait: submit blocks while factsMax facts wait. None is dropped, and they stay in order.
func TestFactsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newLoop(Options{Metrics: NewMetrics(), Name: DefaultName}, nil, nil)
		var heard []int
		go func() {
			for i := range 2 * factsMax {
				m.submit(context.Background(), func(unit.Instant) { heard = append(heard, i) })
			}
		}()
		synctest.Wait()
		if len(m.facts) != factsMax {
			t.Errorf("%d facts wait, want %d", len(m.facts), factsMax)
		}
		for range 3 {
			m.applyFacts()
			synctest.Wait()
		}
		if len(heard) != 2*factsMax || !slices.IsSorted(heard) {
			t.Errorf("%d of %d facts were applied", len(heard), 2*factsMax)
		}
	})
}

// TestBoundByAnother: a pod that another scheduler has bound gets no Event that its bind failed.
func TestBoundByAnother(t *testing.T) {
	recorder := record.NewFakeRecorder(10)
	o := Options{Metrics: NewMetrics(), Name: DefaultName}
	m := newLoop(o, nil, func(string) record.EventRecorder { return recorder })
	pod := testPod("p", "1")
	m.lookUp = func(corescheduler.Pod) *corev1.Pod { return pod }
	for _, q := range []struct {
		on   string
		told int
	}{{"", 1}, {"another", 1}} { // in total
		pod.Spec.NodeName = q.on
		d := corescheduler.Decision{Pod: corescheduler.Pod{ID: "uid-p", Namespace: "default", Name: "p"}, Node: "n"}
		m.reportBind(d, corescheduler.BindRefused, errors.New("already assigned"))
		if len(recorder.Events) != q.told {
			t.Errorf("on %q: %d Events, want %d", q.on, len(recorder.Events), q.told)
		}
	}
}
