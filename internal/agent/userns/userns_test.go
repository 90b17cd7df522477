package userns

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/userns"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// pod returns a pod that requests a user namespace, and creates its directory.
func pod(t *testing.T, dir, uid string) *corev1.Pod {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, uid), 0o750); err != nil {
		t.Fatal(err)
	}
	no, p := false, &corev1.Pod{}
	p.UID, p.Spec.HostUsers = types.UID(uid), &no
	return p
}

func open(t *testing.T, dir string) *Users {
	t.Helper()
	u, err := Open(dir, userns.Default(userns.Unit, 110))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// first returns the first id of a user namespace, after checking the rest of it.
func first(t *testing.T, n *runtimeapi.UserNamespace, err error) uint32 {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if n.GetMode() != runtimeapi.NamespaceMode_POD || len(n.Uids) != 1 || len(n.Gids) != 1 {
		t.Fatalf("user namespace %v", n)
	}
	for _, m := range append(n.Uids, n.Gids...) {
		if m.ContainerId != 0 || m.Length != userns.Unit || m.HostId != n.Uids[0].HostId {
			t.Fatalf("user namespace %v", n)
		}
	}
	return n.Uids[0].HostId
}

// mapped returns the kubelet's file of a pod whose IDs begin at first.
func mapped(first uint32) string {
	one := fmt.Sprintf(`[{"hostId":%d,"containerId":0,"length":65536}]`, first)
	return `{"uidMappings":` + one + `,"gidMappings":` + one + `}`
}

// TestOf: a pod keeps its IDs through restarts of the agent, in a file in the kubelet's format. When it is gone, the
// next pod gets them.
func TestOf(t *testing.T) {
	dir := t.TempDir()
	u := open(t, dir)
	a := pod(t, dir, "a")
	b := pod(t, dir, "b")
	for range 2 {
		n, err := u.Of(a)
		if got := first(t, n, err); got != 65536 {
			t.Errorf("a has %d", got)
		}
		n, err = u.Of(b)
		if got := first(t, n, err); got != 131072 {
			t.Errorf("b has %d", got)
		}
		u = open(t, dir)
	}
	text, err := os.ReadFile(filepath.Join(dir, "a", "userns"))
	if want := mapped(65536); string(text) != want {
		t.Errorf("the file has %s (%v), want %s", text, err, want)
	}
	u.Release("a")
	if _, err := os.Stat(filepath.Join(dir, "a", "userns")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of a pod that is gone: %v", err)
	}
	n, err := u.Of(pod(t, dir, "c"))
	if got := first(t, n, err); got != 65536 {
		t.Errorf("c has %d", got)
	}
	yes := true
	for _, host := range []*bool{nil, &yes} {
		a.Spec.HostUsers = host
		if n, err := u.Of(a); n != nil || err != nil {
			t.Errorf("a pod with the host's users has %v (%v)", n, err)
		}
	}
}

// TestKubeletsFile: a pod that a kubelet started keeps its IDs.
func TestKubeletsFile(t *testing.T) {
	dir := t.TempDir()
	a := pod(t, dir, "a")
	if err := os.WriteFile(filepath.Join(dir, "a", "userns"), []byte(mapped(2147483648)), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := open(t, dir).Of(a)
	if got := first(t, n, err); got != 2147483648 {
		t.Errorf("a has %d", got)
	}
}

// TestUnreadableFile: while a file cannot be read, no pod gets IDs, not even the file's own pod. When that pod is gone,
// pods get IDs again.
func TestUnreadableFile(t *testing.T) {
	dir := t.TempDir()
	torn, other := pod(t, dir, "torn"), pod(t, dir, "other")
	if err := os.WriteFile(filepath.Join(dir, "torn", "userns"), []byte(`{"uidMappings":[{"hos`), 0o600); err != nil {
		t.Fatal(err)
	}
	u := open(t, dir)
	for _, p := range []*corev1.Pod{torn, other} {
		if n, err := u.Of(p); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "torn", "userns")) {
			t.Errorf("%s has %v (%v)", p.UID, n, err)
		}
	}
	u.Release("torn")
	n, err := u.Of(other)
	if got := first(t, n, err); got != 65536 {
		t.Errorf("other has %d", got)
	}
}

// TestFileCannotBeWritten: a pod whose file cannot be written gets no IDs, and other pods can get them.
func TestFileCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	u, a := open(t, dir), pod(t, dir, "a")
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if n, err := u.Of(a); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a pod without a directory has %v (%v)", n, err)
	}
	n, err := u.Of(pod(t, dir, "b"))
	if got := first(t, n, err); got != 65536 {
		t.Errorf("b has %d", got)
	}
	n, err = u.Of(pod(t, dir, "a"))
	if got := first(t, n, err); got != 131072 {
		t.Errorf("a has %d", got)
	}
}

// TestLacking: on a node without user namespaces, a pod that requests one gets an error, not the host's namespace.
func TestLacking(t *testing.T) {
	why := errors.New("the kernel has none")
	u, dir := Lacking(why), t.TempDir()
	if n, err := u.Of(pod(t, dir, "a")); !errors.Is(err, why) {
		t.Errorf("it has %v (%v)", n, err)
	}
	if n, err := u.Of(&corev1.Pod{}); n != nil || err != nil {
		t.Errorf("a pod with the host's users has %v (%v)", n, err)
	}
	u.Release("a")
}

// TestRestarts plays pods that come and go, and agents that end at any moment. Running pods never share an ID.
func TestRestarts(t *testing.T) {
	for seed := range uint64(3) {
		random := rand.New(rand.NewPCG(seed, 1))
		dir := t.TempDir()
		u := open(t, dir)
		has := map[string]uint32{}
		for step := range 150 {
			uid := strconv.Itoa(random.IntN(12))
			switch random.IntN(6) {
			case 0:
				u.Release(types.UID(uid))
				delete(has, uid)
			case 1:
				u = open(t, dir)
			default:
				n, err := u.Of(pod(t, dir, uid))
				got := first(t, n, err)
				if had, ok := has[uid]; ok && had != got {
					t.Fatalf("seed %d, step %d: pod %s had %d and has %d", seed, step, uid, had, got)
				}
				for other, its := range has {
					if other != uid && its == got {
						t.Fatalf("seed %d, step %d: pods %s and %s have %d", seed, step, uid, other, got)
					}
				}
				has[uid] = got
			}
		}
	}
}

func TestDecode(t *testing.T) {
	whole := mapped(65536)
	users, _, _ := strings.Cut(whole, `,"gid`)
	for text, want := range map[string]string{
		whole:       "65536-131071",
		users + "}": errMappings.Error(),
		users + `,"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}`: errMappings.Error(),
		strings.ReplaceAll(whole, `}]`, `},{"hostId":9}]`):                           errMappings.Error(),
		strings.ReplaceAll(whole, `"containerId":0`, `"containerId":1`):              errMappings.Error(),
		strings.ReplaceAll(whole, `"hostId":65536`, `"hostId":4294967296`):           "cannot unmarshal",
		"": "unexpected end",
	} {
		got, err := decode([]byte(text))
		if said := got.String(); err == nil && said != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v (%v), want %s", text, got, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	cost.Attack(f, mapped(65536))
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		r, err := decode([]byte(text))
		if err != nil {
			return
		}
		again, err := encode(r)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decode(again); err != nil || back != r {
			t.Errorf("%q: %v becomes %v (%v)", text, r, back, err)
		}
	})
}

func TestParseSubordinate(t *testing.T) {
	first, length, err := parseSubordinate("0: kubelet 65536 7208960\n")
	if first != 65536 || length != 7208960 || err != nil {
		t.Errorf("%d, %d (%v)", first, length, err)
	}
	for _, text := range []string{
		"", "\n", "0: kubelet 65536", "0: kubelet 65536 7208960\n1: kubelet 8000000 65536\n", "0: kubelet -1 2",
		"0: kubelet 1 x", "0: kubelet 4294967296 1",
	} {
		if first, length, err := parseSubordinate(text); err == nil {
			t.Errorf("%q: %d, %d", text, first, length)
		}
	}
}

func FuzzParseSubordinate(f *testing.F) {
	cost.Attack(f, "0: kubelet 65536 7208960\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		first, length, err := parseSubordinate(text)
		if err == nil && (strings.Contains(strings.Trim(text, "\n"), "\n") || length >= 1<<32) {
			t.Errorf("%q: %d, %d", text, first, length)
		}
	})
}
