package podfields_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields/sample"
)

// root is the path of the repository.
const root = "../../.."

// TestEveryFieldHasARow: a field of k8s.io/api without a row would be ignored silently; a row without a field hides a
// misspelling.
func TestEveryFieldHasARow(t *testing.T) {
	rows := map[string]int{}
	for _, row := range podfields.Rows() {
		meant := 0
		for _, leaf := range podfields.Leaves(row.Path) {
			rows[leaf]++
			if slices.Contains(podfields.AllLeaves(), leaf) {
				meant++
			}
		}
		if meant == 0 {
			t.Errorf("row %s means no field", row.Path)
		}
	}
	for _, leaf := range podfields.AllLeaves() {
		if rows[leaf] != 1 {
			t.Errorf("field %s has %d rows, want one: say in rows.go or otherrows.go what becomes of it", leaf, rows[leaf])
		}
	}
}

// all is a node that can do everything that some nodes with this agent can do.
var all = podfields.Abilities{UserNamespaces: true, ImageVolumes: true, TrustBundles: true, CSIVolumes: true, NFS: true,
	PodCertificates: true}

// TestHeldFieldsHold sets each field that the table marks as held, alone.
func TestHeldFieldsHold(t *testing.T) {
	for _, row := range podfields.Rows() {
		if row.Outcome != podfields.Held {
			continue
		}
		for _, leaf := range podfields.Leaves(row.Path) {
			pod := &corev1.Pod{}
			if err := sample.Set(pod, leaf); err != nil {
				t.Error(err)
				continue
			}
			at := strings.TrimSuffix(row.Path, "*")
			here := func(r podfields.Hold) bool { return r.Field == at }
			if !slices.ContainsFunc(podfields.Holds(pod, all), here) {
				t.Errorf("a pod with %s is not held for %s: %+v", leaf, at, podfields.Holds(pod, all))
			}
		}
	}
}

// TestSamplesAreNotHeld: the agent accepts all fields that the table marks as carried out.
func TestSamplesAreNotHeld(t *testing.T) {
	for _, pod := range sample.Pods() {
		if holds := podfields.Holds(pod, all); len(holds) > 0 {
			t.Errorf("sample %s: %+v", pod.Name, holds)
		}
	}
}

// TestEveryRowIsProved: a row that is carried out or rejected names its proof, and the proof exists. An observer's test
// calls sample.Unproved; another test must mention the field.
func TestEveryRowIsProved(t *testing.T) {
	observed := observers(t)
	for _, observer := range podfields.Observers() {
		if !observed[observer] {
			t.Errorf("no test calls sample.Unproved for observer %s", observer)
		}
	}
	for _, row := range podfields.Rows() {
		proved := row.Outcome != podfields.Held && row.Outcome != podfields.NoEffect
		switch {
		case !proved && row.By != "":
			t.Errorf("%s is proved by %s, and neither carried out nor rejected", row.Path, row.By)
		case row.Outcome == podfields.NoEffect && row.Note == "":
			t.Errorf("%s is without effect, and its row has no note", row.Path)
		case !proved || observed[row.By]:
		default:
			if err := mentions(row); err != "" {
				t.Errorf("%s: %s", row.Path, err)
			}
		}
	}
}

// observers returns the observers for which tests call sample.Unproved.
func observers(t *testing.T) map[string]bool {
	names := map[string]string{}
	for _, o := range podfields.Observers() {
		names["Observer"+strings.ToUpper(o[:1])+o[1:]] = o
	}
	found := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 || selected(call.Fun) != "sample.Unproved" {
				return true
			}
			if name, ok := strings.CutPrefix(selected(call.Args[0]), "podfields."); ok {
				found[names[name]] = true
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// selected returns a selector expression as text: package.Name.
func selected(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + s.Sel.Name
}

// mentions says what is wrong with the test that a row names; empty: it exists and mentions the field.
func mentions(row podfields.Row) string {
	i := strings.LastIndex(row.By, ".")
	if i < 0 {
		return "nobody proves it"
	}
	dir, name := filepath.Join(root, row.By[:i]), row.By[i+1:]
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err.Error()
	}
	words := strings.FieldsFunc(strings.TrimSuffix(row.Path, "*"), func(r rune) bool {
		return r == '.' || r == '[' ||
			r == ']'
	})
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err.Error()
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Name.Name != name {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err.Error()
			}
			body := strings.ToLower(string(text[set.Position(f.Pos()).Offset:set.Position(f.End()).Offset]))
			for _, word := range words[len(words)-min(len(words)-1, 2):] {
				if strings.Contains(body, strings.ToLower(word)) {
					return ""
				}
			}
			return row.By + " does not speak of it"
		}
	}
	return row.By + ": there is no such test"
}
