package csivolume

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// growing has a volume expanded when it is published.
func growing(pv *corev1.PersistentVolume) {
	pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi")
}

// TestHangsInEachCall: a call that hangs, of whatever kind, delays no other volume of the driver. What it was about
// goes on when the call has ended.
func TestHangsInEachCall(t *testing.T) {
	for _, method := range []string{"stage", "publish", "expand", "unpublish", "unstage"} {
		t.Run(method, func(t *testing.T) {
			r, d := rigWithDriver(t)
			hang := make(chan struct{})
			d.set(func() { d.hang[method+" ill"] = hang })
			a, b := podOfUID("a"), podOfUID("b")
			ill, well := volumeOf(t, "d", "ill", growing), volumeOf(t, "d", "well")
			if method == "stage" || method == "publish" || method == "expand" {
				if _, err := r.Want(context.Background(), a, "data", ill); err == nil {
					t.Fatal("it is there at once")
				}
				r.asked(d, method+" ill", 1)
				r.place(b, well)
				r.release(b)
				close(hang)
				r.place(a, ill)
				r.release(a)
			} else {
				r.place(a, ill)
				r.Release(a.UID)
				r.asked(d, method+" ill", 1)
				r.place(b, well)
				r.release(b)
				close(hang)
				r.release(a)
			}
			r.Known()
			r.empty()
			if n := d.times(method + " ill"); n != 1 {
				t.Errorf("%s ill: %d calls: want one", method, n)
			}
		})
	}
}

// TestAnswersLate: a driver carries out a call after the agent gave it up, while the same call is made again. An Event
// says that the call took too long. The volume is mounted once, and nothing of it is left.
func TestAnswersLate(t *testing.T) {
	for _, method := range []string{"stage", "publish", "expand", "unpublish", "unstage"} {
		t.Run(method, func(t *testing.T) {
			r, d := rigWithDriver(t)
			r.callMax = 100 * time.Millisecond
			late := make(chan struct{})
			d.set(func() { d.late[method+" v"] = late })
			a, source := podOfUID("a"), volumeOf(t, "d", "v", growing)
			if method == "stage" || method == "publish" || method == "expand" {
				if _, err := r.Want(context.Background(), a, "data", source); err == nil {
					t.Fatal("it is there at once")
				}
				r.event(t, "code = DeadlineExceeded")
			} else {
				r.place(a, source)
				r.Release(a.UID)
			}
			r.asked(d, method+" v", 2) // the first call has ended for the agent, and hangs in the driver
			d.set(func() { clear(d.late) })
			close(late)
			if method == "stage" || method == "publish" || method == "expand" {
				r.place(a, source)
			}
			r.release(a)
			r.Known()
			r.empty()
			d.set(func() {
				for _, problem := range d.problems {
					t.Error(problem)
				}
			})
		})
	}
}

// TestPublishesNothing: a driver says that it has published a volume, and there is nothing at its path. An Event says
// so, and another volume of the driver comes and goes. The pod has its volume when the driver does what it says.
func TestPublishesNothing(t *testing.T) {
	r, d := rigWithDriver(t)
	d.set(func() { d.lie["publish"] = true })
	a, source := podOfUID("a"), volumeOf(t, "d", "v")
	if _, err := r.Want(context.Background(), a, "data", source); err == nil {
		t.Fatal("it is there at once")
	}
	r.event(t, "the driver says that it succeeded, and "+r.target(source.id, a.UID)+" does not exist")
	if _, err := r.Want(context.Background(), a, "data", source); err == nil {
		t.Error("the pod has what does not exist")
	}
	d.set(func() { delete(d.lie, "publish") })
	b := podOfUID("b")
	r.place(b, volumeOf(t, "d", "well"))
	r.release(b)
	r.place(a, source)
	r.release(a)
	r.Known()
	r.empty()
}

// TestAbsence: while a driver is away, one pod ends, one stays, and one comes; the agent is restarted; and another
// driver's volume comes and goes. When the driver is back, the pod that ended loses its volume, the pod that stays
// keeps its mount, and the pod that came has its volume.
func TestAbsence(t *testing.T) {
	r, d := rigWithDriver(t)
	other := startDriver(t, t.TempDir())
	r.put("driver/other", detached())
	r.add("other", other.client(), stages)
	ends, stays, comes, well := podOfUID("ends"), podOfUID("stays"), podOfUID("comes"), podOfUID("well")
	ending, staying, coming := volumeOf(t, "d", "1"), volumeOf(t, "d", "2"), volumeOf(t, "d", "3")
	r.place(ends, ending)
	r.place(stays, staying)
	r.mu.Lock()
	delete(r.drivers, "d")
	r.mu.Unlock()
	r.DriverChanged("d")
	for restarted := range 2 {
		if restarted == 1 {
			r.start()
		}
		if r.Release(ends.UID) {
			t.Error("released without its driver")
		}
		r.place(stays, staying)
		if _, err := r.Want(context.Background(), comes, "data", coming); err == nil {
			t.Error("a volume without its driver")
		}
		r.event(t, "driver name d not found in the list of registered CSI drivers")
		r.place(well, volumeOf(t, "other", "w"))
		r.release(well)
		r.Known()
	}
	expectCalls(t, d, "stage 1", "publish 1", "stage 2", "publish 2")
	r.add("d", d.client(), stages)
	r.place(stays, staying)
	r.place(comes, coming)
	r.release(ends)
	r.eventually("the volume is unstaged", func() bool { return d.times("unstage 1") == 1 })
	if d.times("publish 2") != 1 || d.times("unpublish 2") != 0 {
		t.Errorf("the pod that stays: calls %v", d.called())
	}
	r.release(stays)
	r.release(comes)
	r.empty()
}

// TestOtherName: the program at a driver's socket says that it is another driver than the one that registered, at once
// or after a restart. An Event says so. It is asked neither for a new volume nor to take the last of one away. What is
// mounted stays, and another driver's volume comes and goes. All goes on when the driver says its name again.
func TestOtherName(t *testing.T) {
	for _, test := range []struct {
		name  string
		takes string // the last call that takes a volume away
		can   []csi.NodeServiceCapability_RPC_Type
		swap  func(d *testDriver, name string)
	}{
		{"at once", "unstage", []csi.NodeServiceCapability_RPC_Type{stages}, (*testDriver).rename},
		{"by a restart", "unstage", []csi.NodeServiceCapability_RPC_Type{stages}, (*testDriver).replace},
		{"of one that does not stage", "unpublish", nil, (*testDriver).rename},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			d, other := startDriver(t, t.TempDir()), startDriver(t, t.TempDir())
			d.rename("csi.example.com") // not as it is registered, which the kubelet allows
			other.rename("other")
			for name, driver := range map[string]*testDriver{"d": d, "other": other} {
				r.put("driver/"+name, detached())
				r.add(name, driver.client(), test.can...)
			}
			r.start()
			ends, stays, comes, well := podOfUID("ends"), podOfUID("stays"), podOfUID("comes"), podOfUID("well")
			ending, staying, coming := volumeOf(t, "d", "1"), volumeOf(t, "d", "2"), volumeOf(t, "d", "3")
			r.place(ends, ending)
			r.place(stays, staying)
			before := len(d.called())
			test.swap(d, "csi.example.org")
			r.Release(ends.UID)
			if _, err := r.Want(context.Background(), comes, "data", coming); err == nil {
				t.Error("a volume of another driver")
			}
			r.event(t, `the program at the socket of driver d says now that its name is "csi.example.org", and not `+
				`"csi.example.com"`)
			r.place(stays, staying)
			r.place(well, volumeOf(t, "other", "w"))
			r.release(well)
			r.Known()
			for _, call := range d.called()[before:] {
				if call != "unpublish 1" || test.takes == "unpublish" {
					t.Errorf("another driver was called: %s", call)
				}
			}
			test.swap(d, "csi.example.com")
			r.place(comes, coming)
			r.release(ends)
			r.asked(d, test.takes+" 1", 1)
			r.place(stays, staying)
			if n := d.times("publish 2"); n != 1 {
				t.Errorf("the pod that stays: published %d times", n)
			}
			r.release(stays)
			r.release(comes)
			r.empty()
		})
	}
}

// rename makes the driver say another name.
func (d *testDriver) rename(name string) { d.set(func() { d.name = name }) }

// replace ends the driver, and starts one with another name at its socket.
func (d *testDriver) replace(name string) {
	d.server.Stop()
	d.rename(name)
	d.serve()
}

// rigWithDriver returns a running agent with the driver "d", which stages and expands volumes.
func rigWithDriver(t *testing.T) (*rig, *testDriver) {
	t.Helper()
	r := newRig(t)
	d := startDriver(t, t.TempDir())
	r.put("driver/d", detached())
	r.add("d", d.client(), stages, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	r.start()
	return r, d
}

// asked waits until a call was made this often.
func (r *rig) asked(d *testDriver, call string, times int) {
	r.t.Helper()
	r.eventually(call, func() bool { return d.times(call) >= times })
}

// times returns how often a call was made.
func (d *testDriver) times(call string) int {
	return len(slices.DeleteFunc(d.called(), func(c string) bool { return c != call }))
}
