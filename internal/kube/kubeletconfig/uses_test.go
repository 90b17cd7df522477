package kubeletconfig

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// readers are the files of this package that translate fields for other packages. The other files decode, set defaults
// and check.
var readers = map[string]bool{"allocatable.go": true, "enforce.go": true, "eviction.go": true, "gates.go": true,
	"numa.go": true, "shutdown.go": true, "kernel.go": true}

// here are the fields that a function of this package carries out, with the name of the function.
var here = map[string]string{"mergeDefaultEvictionSettings": "thresholdDefaults", "failSwapOn": "CheckMachine",
	"failCgroupV1": "CheckMachine"}

// otherKinds are packages that read configuration files of other kinds, some of whose fields have the same names.
var otherKinds = []string{"schedulerconfig", "credentialconfig"}

// TestHonouredFieldsAreUsed: the product reads every field that is marked as honoured, and a test mentions it.
func TestHonouredFieldsAreUsed(t *testing.T) {
	for name := range readers {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("readers: %v", err)
		}
	}
	w := readWords(t)
	names := map[string]string{}
	goNames("", reflect.TypeFor[kubeletconfigv1beta1.KubeletConfiguration](), names)
	for _, f := range fields {
		name := names[f.path]
		if name == "" {
			t.Errorf("%s: no such field", f.path)
		}
		if !f.honoured {
			continue
		}
		if !w.used[name] && !w.inHere[here[f.path]][name] {
			t.Errorf("%s is marked as honoured, and nothing reads it", f.path)
		}
		if json := f.path[strings.LastIndex(f.path, ".")+1:]; !w.tested[name] && !w.tested[json] {
			t.Errorf("%s is marked as honoured, and no test mentions it", f.path)
		}
	}
}

// words are the names by which code mentions fields.
type words struct {
	used   map[string]bool            // by code outside of this package, and by readers
	tested map[string]bool            // by tests, also in strings
	inHere map[string]map[string]bool // by the other functions of this package, by function
}

func readWords(t *testing.T) words {
	w := words{used: map[string]bool{}, tested: map[string]bool{}, inHere: map[string]map[string]bool{}}
	for _, dir := range []string{"cmd", "internal", "test"} {
		err := filepath.WalkDir(filepath.Join("..", "..", "..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || d.Name() == "uses_test.go" {
				return err
			}
			if slices.Contains(otherKinds, filepath.Base(filepath.Dir(path))) {
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			w.add(path, file)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w words) add(path string, file *ast.File) {
	own := filepath.Base(filepath.Dir(path)) == "kubeletconfig"
	switch {
	case strings.HasSuffix(path, "_test.go"):
		addTested(w.tested, file)
	case own && !readers[filepath.Base(path)]:
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				w.inHere[f.Name.Name] = selectors(f)
			}
		}
	default:
		maps.Copy(w.used, selectors(file))
	}
}

// addTested adds what a test selects, its keys of literals, and the words in its strings.
func addTested(tested map[string]bool, file *ast.File) {
	maps.Copy(tested, selectors(file))
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok {
				tested[key.Name] = true
			}
		case *ast.BasicLit:
			if n.Kind != token.STRING {
				return true
			}
			text, _ := strconv.Unquote(n.Value)
			for _, word := range strings.FieldsFunc(text, func(r rune) bool {
				return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9')
			}) {
				tested[word] = true
			}
		}
		return true
	})
}

// selectors returns the names of the selector expressions below a node.
func selectors(in ast.Node) map[string]bool {
	names := map[string]bool{}
	ast.Inspect(in, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			names[s.Sel.Name] = true
		}
		return true
	})
	return names
}

// goNames adds the Go name of each field, by path.
func goNames(prefix string, t reflect.Type, names map[string]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			continue
		}
		names[prefix+name] = f.Name
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && inner.PkgPath() == t.PkgPath() {
			goNames(prefix+name+".", inner, names)
		}
	}
}

// TestWarningsOfFields: a field that is not honoured is a warning if it has another value than its default, and its
// default is none.
func TestWarningsOfFields(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"makeIPTablesUtilChains: true\n":  "",
		"makeIPTablesUtilChains: false\n": "",
		"kubeletCgroups: /system.slice/a.service\n": "",
		"fileCheckFrequency: 7s\n":                  "fileCheckFrequency: 7s: not honoured: the directory is watched",
		"systemCgroups: /a\ncgroupRoot: /b\n":       "systemCgroups: /a: not honoured: no other process is moved",
		"podCIDR: 10.1.0.0/24\n":                    "podCIDR: 10.1.0.0/24: not honoured: the runtime is told the",
		"iptablesDropBit: 7\n":                      "iptablesDropBit: 7: not honoured: no packet is marked",
	} {
		_, warnings, err := Parse([]byte(head+text), "/")
		all := strings.Join(warnings, "\n")
		if err != nil || !strings.HasPrefix(all, want) || (all == "") != (want == "") || len(warnings) > 1 {
			t.Errorf("%q: %q, %v, want %q", text, warnings, err, want)
		}
	}
}
