package statusreport

import (
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestNewer(t *testing.T) {
	for _, c := range []struct {
		version, than string
		want          bool
	}{
		{"10", "9", true},
		{"9", "10", false},
		{"10", "10", false},
		{"99999999999999999999", "1", true},
		{"", "1", true},
		{"1", "", true},
		{"a", "b", true},
	} {
		if got := newer(c.version, c.than); got != c.want {
			t.Errorf("newer(%q, %q) = %v", c.version, c.than, got)
		}
	}
}

// The status that the API is known to have, after writes of the agent and of other clients.
func TestPodTakesVersions(t *testing.T) {
	p := (&owner{}).handle()
	p.Seen(testPod())
	answer := testPod()
	answer.ResourceVersion = "12"
	p.wrote(answer)
	older := testPod()
	older.ResourceVersion = "11"
	if p.Seen(older); p.written == nil {
		t.Error("a version from before our write made us forget what we wrote")
	}
	newest := testPod()
	newest.ResourceVersion = "13"
	if p.Seen(newest); p.written != nil {
		t.Error("after somebody else's write, what we wrote last is not what the server has")
	}
	for version, known := range map[string]bool{"12": false, "13": true, "14": true} {
		answer.ResourceVersion = version
		if p.wrote(answer); (p.written != nil) != known {
			t.Errorf("the answer to our write is version %s, the watch has shown 13: known %v", version, p.written != nil)
		}
	}
}

// Only the status of an answer is kept: a pointer into the answer would keep the whole object, once for each pod.
func TestAnswersAreNotKept(t *testing.T) {
	p := (&owner{}).handle()
	answer := testPod()
	freed := make(chan struct{})
	runtime.AddCleanup(answer, func(freed chan struct{}) { close(freed) }, freed)
	p.wrote(answer)
	answer = nil
	for range 10 {
		runtime.GC()
		select {
		case <-freed:
			runtime.KeepAlive(p)
			return
		case <-time.After(time.Second): // cleanups have a goroutine of their own
		}
	}
	t.Error("the answer to a write is kept")
	runtime.KeepAlive(p)
}

// A mirror that was created again has the status of the new object, whatever was written to the previous one.
func TestReplacedObject(t *testing.T) {
	p := (&owner{}).handle()
	first := testPod()
	p.Replaced(first)
	answer := testPod()
	answer.ResourceVersion = "12"
	answer.Status.Phase = corev1.PodRunning
	if p.wrote(answer); p.known(first).Phase != corev1.PodRunning {
		t.Error("what was written is not known")
	}
	second := testPod()
	if p.Replaced(second); p.known(first) != &second.Status {
		t.Error("what the other one had is known of this one")
	}
}

// TestUpToDate: a status that the API lacks is not up to date, until it is written; without an object nothing is
// lacking.
func TestUpToDate(t *testing.T) {
	var object *corev1.Pod
	status := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Terminated"}
	p := NewPod("u", func() (*corev1.Pod, corev1.PodStatus) { return object, status })
	if !p.UpToDate() {
		t.Error("a pod without an object lacks a status")
	}
	object = &corev1.Pod{}
	object.ResourceVersion = "1"
	object.Status.Phase = corev1.PodRunning
	if p.UpToDate() {
		t.Error("the API has another status, and it is up to date")
	}
	answer := object.DeepCopy()
	answer.ResourceVersion = "2"
	answer.Status = status
	p.wrote(answer)
	if !p.UpToDate() {
		t.Error("what was written is lacking")
	}
}
