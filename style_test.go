package plimsoll

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// parallelMax is how many variables one statement may assign from as many expressions: two, so that a swap stays
// possible. With more, a reader counts commas to find what belongs together.
const parallelMax = 2

// unkeyedMax is how many fields a literal of a struct may have without their names. Chosen: three are seen at once.
const unkeyedMax = 3

// source is the non-test Go code of one directory of this repository.
type source struct {
	files   []*ast.File
	structs map[string]*ast.StructType // declared here, by name
	named   map[string]ast.Expr        // other types declared here, by name
}

// TestStatementsAreReadAtOnce: no assignment is parallel beyond a pair, and a literal of a struct with many fields
// names them. Both hide which value goes where, and a new field moves all that follow.
func TestStatementsAreReadAtOnce(t *testing.T) {
	fset := token.NewFileSet()
	dirs := map[string]*source{}
	for _, root := range []string{"cmd", "internal", "lab", "bench", "conformance", "controlplane", "images", "scripts",
		"test"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			dir := filepath.Dir(path)
			if dirs[dir] == nil {
				dirs[dir] = &source{structs: map[string]*ast.StructType{}, named: map[string]ast.Expr{}}
			}
			dirs[dir].add(f)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(dirs) < 100 {
		t.Fatalf("only %d directories with Go code were found", len(dirs))
	}
	for _, s := range dirs {
		for _, f := range s.files {
			for _, n := range unreadable(f, s, dirs) {
				t.Errorf("%s: %s", fset.Position(n.node.Pos()), n.why)
			}
		}
	}
}

// finding is a statement that is not read at once.
type finding struct {
	node ast.Node
	why  string
}

func (s *source) add(f *ast.File) {
	s.files = append(s.files, f)
	ast.Inspect(f, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if st, ok := spec.Type.(*ast.StructType); ok {
				s.structs[spec.Name.Name] = st
			} else {
				s.named[spec.Name.Name] = spec.Type
			}
		}
		return true
	})
}

// unreadable returns the findings in one file of s. Types of other modules are not known: go vet names their literals.
func unreadable(f *ast.File, s *source, dirs map[string]*source) (findings []finding) {
	imports := map[string]*source{}
	for _, i := range f.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		dir := dirs[strings.TrimPrefix(path, module)]
		name := path[strings.LastIndex(path, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = dir
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if len(n.Lhs) > parallelMax && len(n.Lhs) == len(n.Rhs) {
				findings = append(findings, finding{n, fmt.Sprintf("%d variables are assigned in one statement", len(n.Lhs))})
			}
		case *ast.ValueSpec:
			if len(n.Names) > parallelMax && len(n.Names) == len(n.Values) {
				findings = append(findings, finding{n, fmt.Sprintf("%d variables are declared in one specification", len(n.Names))})
			}
		case *ast.CompositeLit:
			// Without a type it is a row of a table, which is read by its columns.
			if n.Type == nil || len(n.Elts) <= unkeyedMax {
				return true
			}
			_, isStruct := underlying(n.Type, s, imports).(*ast.StructType)
			if _, keyed := n.Elts[0].(*ast.KeyValueExpr); isStruct && !keyed {
				findings = append(findings, finding{n, fmt.Sprintf("a literal of %d fields does not name them", len(n.Elts))})
			}
		}
		return true
	})
	return findings
}

// underlying follows names of types of this repository to what they stand for; nil: not known.
func underlying(e ast.Expr, in *source, imports map[string]*source) ast.Expr {
	for range 10 {
		if in == nil {
			return nil
		}
		switch t := e.(type) {
		case *ast.Ident:
			if st := in.structs[t.Name]; st != nil {
				return st
			}
			if in.named[t.Name] == nil {
				return nil
			}
			e = in.named[t.Name]
		case *ast.SelectorExpr:
			name, ok := t.X.(*ast.Ident)
			if !ok {
				return nil
			}
			in, e = imports[name.Name], t.Sel
		case *ast.IndexExpr:
			e = t.X
		case *ast.IndexListExpr:
			e = t.X
		default:
			return e
		}
	}
	return nil
}
