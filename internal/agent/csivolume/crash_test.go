package csivolume

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const crashVar = "CSIVOLUME_CRASH" // <root>:<directory of the driver>

// crashVolumes are two pods that share a volume and a block volume, and have one each, inline and persistent.
func crashVolumes(t testing.TB) map[*corev1.Pod][]*Source {
	all := map[*corev1.Pod][]*Source{}
	for _, uid := range []string{"u0", "u1"} {
		pod := podOfUID(uid)
		inline, err := FromPod(pod, &corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{
			CSI: &corev1.CSIVolumeSource{Driver: "d"},
		}})
		must(t, err)
		all[pod] = []*Source{volumeOf(t, "d", "shared"), volumeOf(t, "d", "own-"+uid), inline, volumeOf(t, "d", "block",
			block)}
	}
	return all
}

// TestCrash kills an agent that has volumes mounted and unmounted, at random moments. Another agent continues with what
// it left, on the same driver. The driver must never be called to publish a volume that is not staged, nothing may be
// mounted twice, and in the end nothing may be left.
func TestCrash(t *testing.T) {
	if at := os.Getenv(crashVar); at != "" {
		crashingAgent(t, at)
		return
	}
	r := newRig(t)
	dir := t.TempDir()
	d := startDriver(t, dir)
	r.put("driver/d", detached())
	r.add("d", d.client(), stages)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	var early, late int
	for round := range rounds {
		if r.stop != nil {
			r.stop()
		}
		child := exec.Command(os.Args[0], "-test.run=^TestCrash$")
		child.Env = append(os.Environ(), crashVar+"="+r.root+":"+dir)
		out, err := child.StdoutPipe()
		must(t, err)
		must(t, child.Start())
		ready := bufio.NewScanner(out)
		for ready.Scan() && ready.Text() != "ready" {
		}
		timer := time.NewTimer(time.Duration(rnd.IntN(60_000)) * time.Microsecond)
		<-timer.C
		must(t, child.Process.Kill())
		_ = child.Wait() // it was killed
		early, late = count(r.root, early, late)
		r.start()
		if round%3 > 0 {
			for pod, sources := range crashVolumes(t) {
				for _, source := range sources {
					r.place(pod, source)
				}
			}
		}
		if round%2 > 0 {
			r.Known()
			for pod := range crashVolumes(t) {
				r.release(pod)
			}
			r.empty()
		}
		d.set(func() {
			if len(d.problems) > 0 {
				t.Error(d.problems)
			}
		})
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	r.Known()
	for pod := range crashVolumes(t) {
		r.release(pod)
	}
	r.empty()
	if !testing.Short() && (early == 0 || late == 0) {
		t.Errorf("killed with %d records of calls that had not ended and %d others: the test tests little", early, late)
	}
}

// count counts the records that a kill left of calls that had not ended, and of those that had.
func count(root string, early, late int) (int, int) {
	for _, pattern := range []string{"plugins/kubernetes.io/csi/d/*/" + recordFile, "pods/*/volumes/*/*/" + recordFile} {
		paths, _ := filepath.Glob(filepath.Join(root, pattern))
		for _, path := range paths {
			if r, err := readRecord(filepath.Join(filepath.Dir(path), "x")); err == nil && r.done() {
				late++
			} else {
				early++
			}
		}
	}
	return early, late
}

// crashingAgent has volumes mounted and unmounted until it is killed.
func crashingAgent(t *testing.T, at string) {
	root, dir := filepath.SplitList(at)[0], filepath.SplitList(at)[1]
	r := rigIn(t, root)
	r.put("driver/d", detached())
	r.add("d", connect(t, dir), stages)
	r.start()
	r.Known()
	fmt.Println("ready")
	for {
		for pod, sources := range crashVolumes(t) {
			for _, source := range sources {
				_, _ = r.Want(context.Background(), pod, source.Spec, source)
			}
		}
		<-r.changed
		for pod := range crashVolumes(t) {
			if rand.IntN(3) == 0 {
				r.Release(pod.UID)
			}
		}
	}
}
