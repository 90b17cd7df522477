package oracle

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// kubeletMetricsList is the list of the kubelet's metrics with which a test of ours compares what the agent serves.
const kubeletMetricsList = "../internal/agent/metrics/testdata/kubelet-1.36.3.txt"

// TestKubeletMetricsList checks that the list is what the kubelet declares in its source. PLIMSOLL_UPDATE=1 writes it.
func TestKubeletMetricsList(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	got := declaredMetrics(t, strings.TrimSpace(string(dir)))
	if strings.Count(got, "\n") < 100 {
		t.Fatalf("only %d metrics found", strings.Count(got, "\n"))
	}
	if os.Getenv("PLIMSOLL_UPDATE") != "" {
		if err := os.WriteFile(kubeletMetricsList, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(kubeletMetricsList); err != nil || string(want) != got {
		t.Errorf("%s, %v: want\n%s", kubeletMetricsList, err, got)
	}
}

// declaredMetrics returns the metrics that the kubelet's packages declare, one a line: name, type and labels.
func declaredMetrics(t *testing.T, module string) string {
	t.Helper()
	d := declarations{strings: map[string]string{}}
	var files []*ast.File
	set := token.NewFileSet()
	for _, root := range []string{"pkg/kubelet", "pkg/credentialprovider/plugin", "pkg/volume/util"} {
		err := filepath.WalkDir(filepath.Join(module, root), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			files = append(files, f)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range files {
		ast.Inspect(f, d.constant)
	}
	for _, f := range files {
		ast.Inspect(f, d.declaration)
	}
	slices.Sort(d.lines)
	return strings.Join(slices.Compact(d.lines), "\n") + "\n"
}

// declarations are what was found in the source.
type declarations struct {
	strings map[string]string // constants by name
	lines   []string
}

// constant records the text of a constant.
func (d *declarations) constant(n ast.Node) bool {
	if v, ok := n.(*ast.ValueSpec); ok && len(v.Names) == len(v.Values) {
		for i, name := range v.Names {
			if text := d.text(v.Values[i]); text != "" {
				d.strings[name.Name] = text
			}
		}
	}
	return true
}

// text returns the value of an expression: a string, a constant, or BuildFQName of these.
func (d *declarations) text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		if err != nil || e.Kind != token.STRING {
			return ""
		}
		return text
	case *ast.Ident:
		return d.strings[e.Name]
	case *ast.SelectorExpr:
		return d.strings[e.Sel.Name]
	case *ast.CallExpr:
		if called(e) == "BuildFQName" {
			return d.name(e.Args...)
		}
	}
	return ""
}

// name joins the parts of a name.
func (d *declarations) name(parts ...ast.Expr) string {
	var texts []string
	for _, p := range parts {
		if text := d.text(p); text != "" {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "_")
}

// called returns the name of the function that is called.
func called(c *ast.CallExpr) string {
	if s, ok := c.Fun.(*ast.SelectorExpr); ok {
		return s.Sel.Name
	}
	return ""
}

// declaration records a metric where it is created: New<Type>(&Opts{...}), New<Type>Vec(&Opts{...}, labels),
// NewDesc(name, ...).
func (d *declarations) declaration(n ast.Node) bool {
	c, ok := n.(*ast.CallExpr)
	if !ok || len(c.Args) == 0 {
		return true
	}
	kind := strings.TrimPrefix(called(c), "New")
	var labels ast.Expr
	name := ""
	switch kind {
	case "Desc":
		if len(c.Args) > 2 {
			name, labels = d.text(c.Args[0]), c.Args[2]
		}
	case "Counter", "Gauge", "Histogram", "CounterVec", "GaugeVec", "HistogramVec", "GaugeFunc":
		name = d.optsName(c.Args[0])
		if len(c.Args) > 1 {
			labels = c.Args[1]
		}
		kind = strings.TrimSuffix(strings.TrimSuffix(kind, "Vec"), "Func")
	}
	if name == "" {
		return true
	}
	var names []string
	if list, ok := labels.(*ast.CompositeLit); ok {
		for _, e := range list.Elts {
			names = append(names, d.text(e))
		}
	}
	d.lines = append(d.lines, strings.TrimSpace(fmt.Sprintln(name, strings.ToLower(kind), strings.Join(names, ","))))
	return true
}

// optsName returns the name in a literal of options.
func (d *declarations) optsName(e ast.Expr) string {
	if u, ok := e.(*ast.UnaryExpr); ok {
		e = u.X
	}
	literal, ok := e.(*ast.CompositeLit)
	if !ok {
		return ""
	}
	parts := map[string]ast.Expr{}
	for _, e := range literal.Elts {
		if field, ok := e.(*ast.KeyValueExpr); ok {
			parts[fmt.Sprint(field.Key)] = field.Value
		}
	}
	if parts["Name"] == nil {
		return ""
	}
	return d.name(parts["Namespace"], parts["Subsystem"], parts["Name"])
}
