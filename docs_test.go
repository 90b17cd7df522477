package plimsoll

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docWordsMin is what a package doc has at the least: less cannot say purpose, model, invariants and what the package
// does not do. Chosen: three short sentences. Licence headers are longer, and fail by how a doc begins.
const docWordsMin = 20

// TestEveryPackageHasOneDoc finds packages without a doc, with a second one that a reader would have to reconcile with
// the first, and with one that says nothing.
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
			t.Errorf("%s: %d package docs %v: write one, with purpose, model, invariants and what the package does not do", dir,
				len(files), files)
		}
	}
}

// TestArchitectureListsEveryPackage finds directories with Go code that the tree in ARCHITECTURE.md does not have, and
// names in the tree that are no directories. What is below a directory of another line may stand in one line with it.
func TestArchitectureListsEveryPackage(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{} // paths, and for names below a path: path:name
	top := ""
	tree, _, _ := strings.Cut(string(text), "\nImports go one way")
	for line := range strings.Lines(tree) {
		names := treeNames.FindString(line)
		if names == "" {
			continue
		}
		for _, name := range strings.Fields(names) {
			name = strings.TrimSuffix(name, "/")
			if strings.HasPrefix(line, "     ") {
				listed[top+":"+name] = true
				continue
			}
			if top = name; !isDir(name) {
				t.Errorf("ARCHITECTURE.md: %s is not a directory", name)
			}
			listed[name] = true
		}
	}
	if len(listed) < 150 {
		t.Fatalf("%d names were found in the tree of ARCHITECTURE.md", len(listed))
	}
	there := map[string]bool{}
	for dir, code := range goDirs(t) {
		if code && !inTree(dir, listed) {
			t.Errorf("%s is not in the tree of ARCHITECTURE.md: add it, with a few words about what is in it", dir)
		}
		for above := filepath.ToSlash(filepath.Dir(dir)); above != "."; above = filepath.ToSlash(filepath.Dir(above)) {
			there[above+":"+filepath.Base(dir)] = true
		}
	}
	for name := range listed {
		if strings.Contains(name, ":") && !there[name] {
			t.Errorf("ARCHITECTURE.md: there is no Go code in %s", strings.ReplaceAll(name, ":", "/.../"))
		}
	}
}

// treeNames are the names at the beginning of a line of the tree.
var treeNames = regexp.MustCompile(`^ {4,8}([a-z0-9-]+/)+( ([a-z0-9-]+/)+)*`)

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// goDirs returns the directories with Go code, and whether some of it is not a test.
func goDirs(t *testing.T) map[string]bool {
	dirs := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			dir := filepath.ToSlash(filepath.Dir(path))
			dirs[dir] = dirs[dir] || !strings.HasSuffix(path, "_test.go")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// inTree reports whether a directory is listed: as a path, or by its name below a path. Below internal/ each package is
// listed by itself; elsewhere one line may stand for all that is below it.
func inTree(dir string, listed map[string]bool) bool {
	for above := dir; above != "."; above = filepath.ToSlash(filepath.Dir(above)) {
		if listed[above] && (above == dir || !strings.HasPrefix(dir, "internal/")) || listed[above+":"+filepath.Base(dir)] {
			return true
		}
	}
	return dir == "."
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

// TestDocsNameTestsThatExist: where a page says which test shows something, that test is there.
func TestDocsNameTestsThatExist(t *testing.T) {
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
	named := regexp.MustCompile("`(Test[A-Z]\\w*)`")
	names := map[string][]string{} // pages
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		isTest := strings.HasSuffix(path, "_test.go")
		if !isTest && !strings.HasSuffix(path, ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if isTest {
			for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
				there[m[1]] = true
			}
			return nil
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = append(names[m[1]], path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(names) < 20 {
		t.Errorf("pages name %d tests: too few, they cannot have been read", len(names))
	}
	for name, pages := range names {
		if !there[name] {
			t.Errorf("%v name %s, which is no test", pages, name)
		}
	}
}

// TestLinksLeadSomewhere: a link in a page leads to a file that exists and to a heading that it has; and the index of
// the pages for users has them all.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)
	links := 0
	linked := map[string]bool{} // from docs/README.md
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".md") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			file, heading := m[1], strings.TrimPrefix(m[2], "#")
			if strings.Contains(file, "://") || file == "" && heading == "" {
				continue
			}
			links++
			to := path
			if file != "" {
				to = filepath.Join(filepath.Dir(path), file)
			}
			if path == filepath.Join("docs", "README.md") {
				linked[to] = true
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", path, file, err)
			} else if heading != "" && !headings(t, to)[heading] {
				t.Errorf("%s links to %s#%s, which has no such heading", path, to, heading)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 40 {
		t.Errorf("pages have %d links: too few, they cannot have been read", links)
	}
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if !linked[page] && page != filepath.Join("docs", "README.md") {
			t.Errorf("docs/README.md does not list %s", page)
		}
	}
}

// headings returns the anchors of a page: headings in lower case, spaces as hyphens, other marks left out.
func headings(t *testing.T, path string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.*)$`).FindAllStringSubmatch(string(text), -1) {
		anchor := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		found[strings.ReplaceAll(anchor, " ", "-")] = true
	}
	return found
}

// TestTreeNamesEveryDirectory: the tree in ARCHITECTURE.md has every directory below internal and cmd that has Go code.
func TestTreeNamesEveryDirectory(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tree, _ := strings.Cut(string(text), "## One core, several shells")
	tree, _, found := strings.Cut(tree, "## Glossary")
	if !found {
		t.Fatal("ARCHITECTURE.md has no tree between its first heading and the glossary")
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile(`[a-z0-9-]+/`).FindAllString(tree, -1) {
		named[m] = true
	}
	seen := map[string]bool{}
	eachFile(t, func(path string, _ *ast.File) {
		dir := filepath.ToSlash(filepath.Dir(path))
		if ours := below(path, "internal") || below(path, "cmd"); !ours || seen[dir] {
			return
		}
		if seen[dir] = true; !named[filepath.Base(dir)+"/"] {
			t.Errorf("the tree in ARCHITECTURE.md lacks %s", dir)
		}
	})
	if len(seen) < 50 {
		t.Errorf("%d directories were found: too few", len(seen))
	}
}
