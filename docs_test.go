package plimsoll

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// docWordsMin is what a package doc has at the least: less cannot say purpose, model, invariants and what the package does
// not do. Chosen: three short sentences. Licence headers are longer, and fail by how a doc begins.
const docWordsMin = 20

// TestEveryPackageHasOneDoc finds packages without a doc, with a second one that a reader would have to reconcile with the
// first, and with one that says nothing.
func TestEveryPackageHasOneDoc(t *testing.T) {
	docs := map[string][]string{} // of each directory with Go files
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		if _, known := docs[dir]; !known {
			docs[dir] = nil // a directory without any doc is in the map too
		}
		if file.Doc == nil {
			return nil
		}
		docs[dir] = append(docs[dir], path)
		if problem := docProblem(file); problem != "" {
			t.Errorf("%s: package doc %s", path, problem)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, files := range docs {
		if len(files) != 1 {
			t.Errorf("%s: %d package docs %v: write one, with purpose, model, invariants and what the package does not do", dir, len(files), files)
		}
	}
}

func docProblem(file *ast.File) string {
	text := file.Doc.Text()
	name := strings.TrimSuffix(file.Name.Name, "_test")
	first := "Package " + name + " "
	if name == "main" {
		first = "Command "
	}
	switch {
	case !strings.HasPrefix(text, first):
		return "does not begin with " + first
	case len(strings.Fields(text)) < docWordsMin:
		return "says too little: " + text
	}
	return ""
}

// TestDocProblemsAreFound makes sure that the rule bites.
func TestDocProblemsAreFound(t *testing.T) {
	enough := strings.Repeat("word ", docWordsMin)
	for text, want := range map[string]string{
		"Package x " + enough:                   "",
		"Copyright 2026 The Authors. " + enough: "does not begin with",
		"Package y " + enough:                   "does not begin with",
		"Package x holds things.":               "says too little",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "// "+text+"\npackage x\n", parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if got := docProblem(file); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%.40q: %q, want %q", text, got, want)
		}
	}
}
