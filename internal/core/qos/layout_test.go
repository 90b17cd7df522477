package qos

import (
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func layout(t *testing.T, driver Driver, root string) Layout {
	t.Helper()
	l, err := NewLayout(driver, root)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLayout(t *testing.T) {
	fs, sd := layout(t, Cgroupfs, "/"), layout(t, Systemd, "")
	nested, nestedSD := layout(t, Cgroupfs, "/plimsoll/a-b"), layout(t, Systemd, "/plimsoll/a-b/")
	for _, c := range []struct{ got, want string }{
		{fs.Above(), "/"},
		{fs.Node(), "/kubepods"},
		{fs.Tier(Guaranteed), "/kubepods"},
		{fs.Tier(Burstable), "/kubepods/burstable"},
		{fs.Tier(BestEffort), "/kubepods/besteffort"},
		{fs.Pod(Guaranteed, "7-8"), "/kubepods/pod7-8"},
		{fs.Pod(BestEffort, "7-8"), "/kubepods/besteffort/pod7-8"},
		{fs.Container("/kubepods/pod7", "containerd", "abc"), "/kubepods/pod7/abc"},
		{nested.Node(), "/plimsoll/a-b/kubepods"},
		{nested.Above(), "/plimsoll/a-b"},

		{sd.Above(), "/"},
		{sd.Node(), "/kubepods.slice"},
		{sd.Tier(Guaranteed), "/kubepods.slice"},
		{sd.Tier(Burstable), "/kubepods.slice/kubepods-burstable.slice"},
		{sd.Pod(Guaranteed, "7-8"), "/kubepods.slice/kubepods-pod7_8.slice"},
		{sd.Pod(BestEffort, "7-8"), "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod7_8.slice"},
		{
			sd.Container("/kubepods.slice/kubepods-pod7.slice", "containerd", "abc"),
			"/kubepods.slice/kubepods-pod7.slice/cri-containerd-abc.scope",
		},
		{sd.Container("/p.slice", "cri-o", "abc"), "/p.slice/crio-abc.scope"},
		{nestedSD.Node(), "/plimsoll.slice/plimsoll-a_b.slice/plimsoll-a_b-kubepods.slice"},
		{nestedSD.Above(), "/plimsoll.slice/plimsoll-a_b.slice"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// The UID is read from the last element of the path.
func TestUID(t *testing.T) {
	for _, l := range []Layout{layout(t, Cgroupfs, "/"), layout(t, Systemd, "/a-b/c")} {
		for _, uid := range []string{"7-8", "0b1c", "d7a9f2ea-5a02-4f52-a9f4-1b8a5d3b5a07"} {
			for _, class := range []Class{Guaranteed, Burstable, BestEffort} {
				group := l.Pod(class, uid)
				if got, ok := l.UID(group[strings.LastIndexByte(group, '/')+1:]); !ok || got != uid {
					t.Errorf("%s: uid %q, %v, want %q", group, got, ok, uid)
				}
			}
		}
		for _, other := range []string{
			"burstable", "kubepods-burstable.slice", "kubepods.slice", "x.scope", "kubepods-pod7", "",
		} {
			if uid, ok := l.UID(other); ok && !(l.Driver() == Cgroupfs && strings.HasPrefix(other, "pod")) {
				t.Errorf("%q was taken for the pod %q", other, uid)
			}
		}
	}
}

func TestLayoutRefuses(t *testing.T) {
	for _, bad := range []struct {
		driver     Driver
		root, want string
	}{
		{"", "/", "want cgroupfs or systemd"},
		{"cgroups", "/", "want cgroupfs or systemd"},
		{Cgroupfs, "/../x", `must not contain ".."`},
		{Systemd, "/a/./b", `must not contain "."`},
		{Systemd, "/plimsoll.slice", "without .slice"},
		{Systemd, "/a b", "letters, digits"},
		{Systemd, "/a@b", "letters, digits"},
		{Cgroupfs, strings.Repeat("a", 256), "a name of 256 bytes: at most 255 (NAME_MAX)"},
		{Cgroupfs, strings.Repeat("/a", 2048), "a path of 4096 bytes: at most 4095 (PATH_MAX)"},
		{Cgroupfs, strings.Repeat("/a", 2030), "the group of a pod below it"},
		{Systemd, strings.Repeat("a/", 128), "256 bytes: with the systemd driver at most 255"},
		{Systemd, strings.Repeat("a/", 110), "the group of a pod below it"},
		{Systemd, strings.Repeat("a", 195), "a name of 261 bytes: at most 255 (NAME_MAX)"},
	} {
		if _, err := NewLayout(bad.driver, bad.root); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("driver %q, root %q: %v, want %q", bad.driver, bad.root, err, bad.want)
		}
	}
}

func TestReservedGroup(t *testing.T) {
	fs, sd := layout(t, Cgroupfs, "/"), layout(t, Systemd, "/")
	for _, c := range []struct {
		l          Layout
		name, want string
	}{
		{fs, "/system.slice", "/system.slice"},
		{fs, "system.slice", "/system.slice"},
		{fs, "/a/b/", "/a/b"},
		{fs, "/", ""},
		{fs, "", ""},
		{sd, "/system.slice", "/system.slice"},
		{sd, "/system", "/system.slice"},
		{sd, "kube-daemons.slice", "/kube.slice/kube-daemons.slice"},
		{sd, "/kube.slice/kube-daemons.slice", "/kube.slice/kube-daemons.slice"},
		{sd, "/system.slice/containerd.service", "/system.slice/containerd.service"},
		{sd, "/a--b.slice", ""},
		{sd, "/-.slice", ""},
		{sd, "/a b", ""},
	} {
		got, err := c.l.Reserved(c.name)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s %q: %q, %v, want %q", c.l.Driver(), c.name, got, err, c.want)
		}
	}
}

// A group's name and path have the limits of Linux and of systemd, whatever a slice's name expands to. The longest
// possible ones are accepted.
func TestReservedGroupIsBounded(t *testing.T) {
	fs, sd := layout(t, Cgroupfs, "/"), layout(t, Systemd, "/")
	longest := strings.Repeat("a", 249) + ".slice"
	for _, c := range []struct {
		l          Layout
		name, want string
	}{
		{fs, strings.Repeat("a", 256), "a name of 256 bytes: at most 255 (NAME_MAX)"},
		{fs, strings.Repeat("/a", 2048), "a path of 4096 bytes: at most 4095 (PATH_MAX)"},
		{fs, strings.Repeat("/a", 2047), ""},
		{sd, longest, ""},
		{sd, "a" + longest, "a name of 256 bytes"},
		{sd, strings.Repeat("a", 250), "its slices"},
		{sd, strings.Repeat("a", 248) + ".service", "a name of 256 bytes"},
		{sd, strings.Repeat("a-", 70) + "a", "a path of"},
		{sd, strings.Repeat("a-", 8<<10) + "a", "a path of 16385 bytes: at most 4095 (PATH_MAX)"},
	} {
		var got string
		var err error
		cost.Under(t, cost.Budget{}, len(c.name), func() { got, err = c.l.Reserved(c.name) })
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %.40q: %.40q, %v, want %q", c.l.Driver(), c.name, got, err, c.want)
		}
	}
}

// Names of reserved groups come from a file: every name gives a clean path below the root, or an error.
func FuzzReserved(f *testing.F) {
	for _, seed := range []string{"/system.slice", "a-b", "..", "/x/../..", "a--b.slice", "-", "\x00"} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		defer cost.Spend(t, len(name))()
		for _, driver := range []Driver{Cgroupfs, Systemd} {
			l, err := NewLayout(driver, "/")
			if err != nil {
				t.Fatal(err)
			}
			group, err := l.Reserved(name)
			if err == nil && (!strings.HasPrefix(group, "/") || group == "/" || strings.Contains(group+"/", "/../") ||
				strings.Contains(group, "//")) {
				t.Errorf("%s %q: %q", driver, name, group)
			}
		}
	})
}
