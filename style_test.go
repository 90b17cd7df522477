package plimsoll

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// parallelMax is how many variables one statement may assign from as many expressions: two, so that a swap stays
// possible. With more, a reader counts commas to find what belongs together.
const parallelMax = 2

// unkeyedMax is how many fields a literal of a struct may have without their names. Chosen: three are seen at once.
const unkeyedMax = 3

// columnsMax is how many characters a line of Go code or prose may have (chosen, CONTRIBUTING.md).
const columnsMax = 120

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
	eachSource(t, func(path string) error {
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

// TestLinesEndAt120Columns: no line of Go code is longer, comments and tests included. A tab counts as one column. Raw
// strings are free: a file, a shell or a comparison gets them as they are, and a break would change their value. So are
// preformatted lines and directives (//go:linkname), which cannot be broken.
func TestLinesEndAt120Columns(t *testing.T) {
	files := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, l := range longLines(text) {
			t.Errorf("%s:%d: the line ends after column %d: break it", path, l, columnsMax)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 1000 {
		t.Fatalf("only %d files of Go code were found", files)
	}
}

// TestLongLinesAreFound: the test above sees long code and comments, and leaves out what is free.
func TestLongLinesAreFound(t *testing.T) {
	fits, long := strings.Repeat("ä", columnsMax-len("// ")), strings.Repeat("ä", columnsMax)
	text := strings.Join([]string{
		"package p",
		"// " + fits,
		"// " + fits + "ä",
		"//\t" + long,
		"//go:linkname " + long,
		"var a = `" + long + "`",
		"var b = `",
		long + "`",
		"/* " + long + " */",
		`var c = "` + long + `"`,
	}, "\n")
	if got, want := longLines([]byte(text)), []int{3, 9, 10}; !slices.Equal(got, want) {
		t.Errorf("long lines are %v, want %v", got, want)
	}
}

// longLines returns the numbers of the lines of a Go file that are longer than columnsMax, without those that are free.
func longLines(text []byte) (long []int) {
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	free := map[int]bool{}
	for pos, tok, literal := s.Scan(); tok != token.EOF; pos, tok, literal = s.Scan() {
		raw := tok == token.STRING && literal[0] == '`'
		whole := tok == token.COMMENT && (strings.HasPrefix(literal, "//\t") || strings.HasPrefix(literal, "//go:"))
		if raw || whole {
			first := file.Line(pos)
			for i := range strings.Count(literal, "\n") + 1 {
				free[first+i] = true
			}
		}
	}
	for i, line := range strings.Split(string(text), "\n") {
		if utf8.RuneCountInString(line) > columnsMax && !free[i+1] {
			long = append(long, i+1)
		}
	}
	return long
}

// eachSource calls do with the path of each file of non-test Go code.
func eachSource(t *testing.T, do func(path string) error) {
	t.Helper()
	for _, root := range []string{"cmd", "internal", "lab", "bench", "conformance", "controlplane", "images", "scripts",
		"test"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return do(path)
		})
		if err != nil {
			t.Fatal(err)
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
