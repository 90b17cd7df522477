package pods

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const noon = unit.Instant(12 * time.Hour)

func TestOrdersMerge(t *testing.T) {
	remove := podlife.StopOrder{Remove: true}
	evict := podlife.StopOrder{Phase: podlife.Failed, Reason: "Evicted"}
	type step struct {
		after, grace time.Duration
		order        podlife.StopOrder
	}
	for _, c := range []struct {
		name       string
		steps      []step
		deadline   time.Duration
		remove     bool
		reason     string
		interrupts int
	}{
		{"one order", []step{{0, 30 * time.Second, remove}}, 30 * time.Second, true, "", 1},
		{"a later one shortens", []step{{0, 30 * time.Second, remove}, {time.Second, time.Second, remove}}, 2 * time.Second, true, "", 2},
		{"none stretches", []step{{0, 5 * time.Second, remove}, {time.Second, time.Minute, remove}}, 5 * time.Second, true, "", 1},
		{"an eviction that is deleted goes, and keeps its reason", []step{{0, 5 * time.Second, evict}, {time.Second, time.Minute, remove}}, 5 * time.Second, true, "Evicted", 1},
		{"a deletion that is evicted stays a deletion", []step{{0, time.Minute, remove}, {0, time.Second, evict}}, time.Second, true, "", 2},
		{"an eviction alone keeps its containers", []step{{0, 0, evict}}, 0, false, "Evicted", 1},
	} {
		interrupts := 0
		e := newEntry("u", 0)
		e.interrupt = func() { interrupts++ }
		now := noon
		for _, s := range c.steps {
			now = now.Add(s.after)
			before := e.stop
			e.orderStop(now, s.grace, s.order)
			if before != nil && before == e.stop {
				t.Errorf("%s: an order that a worker may be reading was written to", c.name)
			}
		}
		if e.stop.Deadline != noon.Add(c.deadline) || e.stop.Remove != c.remove || e.stop.Reason != c.reason || interrupts != c.interrupts {
			t.Errorf("%s: got %+v after %s, %d interrupts", c.name, *e.stop, e.stop.Deadline.Sub(noon), interrupts)
		}
	}
}

func TestEntryTakesVersions(t *testing.T) {
	e := newEntry("uid-1", 0)
	pod := testPod()
	if !e.set(pod, noon) || e.set(pod, noon) {
		t.Error("the first version is a change, the same version is none")
	}
	doomed := pod.DeepCopy()
	doomed.ResourceVersion, doomed.DeletionTimestamp, doomed.DeletionGracePeriodSeconds = "14", &metav1.Time{}, new(int64)
	if !e.set(doomed, noon) {
		t.Error("another version is no change")
	}
	if e.stop == nil || !e.stop.Remove || e.stop.Deadline != noon {
		t.Errorf("deletion without grace ordered %+v", e.stop)
	}
}

func TestVanishedPodGoesWithinItsGrace(t *testing.T) {
	e := newEntry("uid-1", 0)
	e.set(testPod(), noon)
	e.vanish(noon)
	if e.stop == nil || !e.stop.Remove || e.stop.Deadline != noon.Add(7*time.Second) || e.source != sourceGone {
		t.Errorf("got %+v", e.stop)
	}
}

// The compiler gives every file of a package every field. That only the methods of entry touch what its lock guards,
// and that a worker is reached only by the goroutine to which its entry handed it, is what this test adds.
func TestOnlyEntryTouchesWhatItsLockGuards(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	parsed := map[string]*ast.File{}
	set := token.NewFileSet()
	for _, name := range files {
		if parsed[name], err = parser.ParseFile(set, name, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	guarded := map[string]bool{}
	ast.Inspect(parsed["entry.go"], func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != "entry" {
			return true
		}
		for _, f := range spec.Type.(*ast.StructType).Fields.List {
			if name := f.Names[0].Name; name == "mu" || guarded["mu"] {
				guarded[name] = true
			}
		}
		return false
	})
	if len(guarded) < 20 {
		t.Fatalf("found %d guarded fields", len(guarded))
	}
	for name, file := range parsed {
		if strings.HasPrefix(name, "entry") || name == "phase.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		called := map[ast.Expr]bool{} // methods may have the name of a field
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				called[call.Fun] = true
			}
			s, ok := n.(*ast.SelectorExpr)
			if !ok || called[s] || !guarded[s.Sel.Name] {
				return true
			}
			of := ""
			switch x := s.X.(type) {
			case *ast.Ident:
				of = x.Name
			case *ast.SelectorExpr:
				of = x.Sel.Name
			}
			if of == "e" { // what entries are called here
				t.Errorf("%s: %s of an entry is touched without a method of entry", set.Position(n.Pos()), s.Sel.Name)
			}
			return true
		})
	}
}
