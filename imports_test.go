package plimsoll

import (
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

const module = "github.com/plimsoll-dev/plimsoll/"

// A rule forbids imports below a directory. The text is the lattice of ARCHITECTURE.md, read top down.
type rule struct {
	in      string   // directory the rule speaks of
	forbids []string // import paths; a trailing "/" covers everything below
	except  []string // directories below in that the rule does not bind
	reason  string
}

var rules = []rule{
	{"internal/core", []string{"os", "os/", "io/ioutil", "syscall", "golang.org/x/sys/"}, nil,
		"the core reads no files and makes no system calls: shells observe the world and pass facts in"},
	{"internal/core", []string{"net", "net/"}, nil,
		"the core opens no connections: the simulator has none"},
	{"internal/core", []string{"context", "log", "log/"}, nil,
		"a decision is never cancelled half-way and never logs: it returns reasons"},
	{"internal/core", []string{"math/rand", "math/rand/", "crypto/rand"}, nil,
		"randomness is an input, so that the same input gives the same output"},
	{"internal/core", []string{"k8s.io/", "sigs.k8s.io/"}, nil,
		"Kubernetes types stop at internal/kube; the core has its own words"},
	{"internal/core", []string{module + "internal/kube", module + "internal/kube/", module + "internal/host/", module + "internal/agent/"}, nil,
		"arrows point to the core, never out of it"},
	{"internal/core/placement/selector", []string{module + "internal/core/placement/rows", module + "internal/core/placement/census", module + "internal/core/placement/volumes"}, nil,
		"what labels select knows no nodes and no pods"},
	{"internal/core/placement/rows", []string{module + "internal/core/placement/selector", module + "internal/core/placement/census", module + "internal/core/placement/volumes"}, nil,
		"a row is a number: what is known by row is for others to say"},
	{"internal/core/placement/census", []string{module + "internal/core/placement/volumes"}, nil,
		"who is where does not depend on volumes"},
	{"internal/core/placement/volumes", []string{module + "internal/core/placement/census"}, nil,
		"what volumes come down to does not depend on other pods' labels"},
	{"internal/core/placement/queue", []string{module + "internal/core/placement/selector", module + "internal/core/placement/rows", module + "internal/core/placement/census", module + "internal/core/placement/volumes", module + "internal/core/numa"}, nil,
		"whose turn it is depends on priorities and times: the queue knows no nodes and no rules"},
	{"internal/core/numa", []string{module + "internal/core/placement", module + "internal/core/placement/", module + "internal/core/admission", module + "internal/core/plugin"}, nil,
		"who gets which CPUs, memory and devices depends on one node, and is asked by those who decide about pods"},
	{"internal/core/numa/bitset", []string{module + "internal/core/numa", module + "internal/core/numa/"}, nil,
		"a set of small numbers does not know what they number"},
	{"internal/core/numa/hints", []string{module + "internal/core/numa", module + "internal/core/numa/cpus", module + "internal/core/numa/memory", module + "internal/core/machine"}, nil,
		"hints come from amounts by NUMA node: of what, and on which machine, does not matter"},
	{"internal/core/numa/cpus", []string{module + "internal/core/numa", module + "internal/core/numa/hints", module + "internal/core/numa/memory"}, nil,
		"CPUs are chosen among those that somebody else found to be free and near"},
	{"internal/core/numa/memory", []string{module + "internal/core/numa", module + "internal/core/numa/cpus"}, nil,
		"memory is picked for a hint: it knows neither CPUs nor pods"},
	{"internal/host", []string{module + "internal/kube", module + "internal/kube/", module + "internal/agent/", module + "internal/scheduler", module + "internal/lifecycle", module + "internal/cluster"}, nil,
		"an adapter knows one outside system and the core, nothing above it"},
	{"internal/kube", []string{module + "internal/host/", module + "internal/agent/", module + "internal/scheduler", module + "internal/lifecycle", module + "internal/cluster"}, nil,
		"the API door knows the core, nothing above it"},
	{"internal/kube/translate", []string{module + "internal/kube", module + "internal/kube/election", module + "internal/kube/authn", module + "internal/kube/serving", "k8s.io/client-go/", "net", "net/", "os", "os/", "context", "log", "log/"}, nil,
		"what an object means does not depend on a connection: translations are functions of objects alone"},
	{"internal/agent", []string{module + "internal/scheduler", module + "internal/lifecycle", module + "internal/fleet", module + "internal/cluster"}, nil,
		"shells do not import each other: each must work alone beside upstream's others"},
	{"internal/scheduler", []string{module + "internal/agent", module + "internal/agent/", module + "internal/lifecycle", module + "internal/fleet", module + "internal/cluster", module + "internal/host/"}, nil,
		"shells do not import each other, and the scheduler has no host"},
	{"internal/lifecycle", []string{module + "internal/agent", module + "internal/agent/", module + "internal/scheduler", module + "internal/fleet", module + "internal/cluster", module + "internal/host/"}, nil,
		"shells do not import each other, and the controller has no host"},
	{"internal/fleet", []string{module + "internal/agent", module + "internal/agent/", module + "internal/scheduler", module + "internal/lifecycle", module + "internal/cluster", module + "internal/host/"}, nil,
		"shells do not import each other, and a hollow node has no host"},
	{"internal/recommend", []string{module + "internal/agent", module + "internal/agent/", module + "internal/scheduler", module + "internal/lifecycle", module + "internal/fleet", module + "internal/cluster"}, nil,
		"recommend watches any machine, node or not: it needs no other shell"},
	{"internal/whatif", []string{module + "internal/agent", module + "internal/agent/", module + "internal/scheduler", module + "internal/lifecycle", module + "internal/fleet", module + "internal/cluster", module + "internal/host/"}, nil,
		"whatif decides on files: the same files give the same answer on any machine"},
	{"internal/sim", []string{module + "internal/kube", module + "internal/kube/", module + "internal/host/", module + "internal/agent/", module + "internal/scheduler", module + "internal/lifecycle", module + "internal/fleet", module + "internal/cluster", "net/", "os", "os/", "k8s.io/"}, nil,
		"the simulator has virtual nodes, a virtual API server and a virtual clock: the cores, and nothing real"},
	{".", []string{"k8s.io/kubernetes", "k8s.io/kubernetes/"}, []string{"controlplane", "oracle", "bench", "conformance"},
		"k8s.io/kubernetes is a judge and an embedded program, never a library: only controlplane, oracle, bench and conformance depend on it"},
	{".", []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/kubernetes/"}, []string{"controlplane", "oracle", "bench", "test"},
		"the generated clientset registers every API group and costs the agent MiBs: use internal/kube"},
	{".", []string{"text/template", "html/template"}, []string{"controlplane", "oracle", "bench"},
		"templates call methods by name, so the linker keeps every exported method of every type: a quarter of the binary, in the memory of each process"},
	{".", []string{"testing"}, []string{"test"},
		"test code must not be reachable from a product binary"},
}

// TestImportsFollowTheArrows checks every non-test Go file against rules.
func TestImportsFollowTheArrows(t *testing.T) {
	for _, r := range rules {
		if _, err := os.Stat(r.in); err != nil {
			t.Errorf("rule %q speaks of a directory that is gone: %v", r.reason, err)
		}
	}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			for _, r := range rules {
				if r.binds(path) && r.forbidsImport(imported) {
					t.Errorf("%s imports %s: %s", path, imported, r.reason)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (r rule) binds(path string) bool {
	for _, dir := range r.except {
		if below(path, dir) {
			return false
		}
	}
	return r.in == "." || below(path, r.in)
}

func (r rule) forbidsImport(imported string) bool {
	for _, f := range r.forbids {
		if imported == f || strings.HasSuffix(f, "/") && strings.HasPrefix(imported, f) {
			return true
		}
	}
	return false
}

func below(path, dir string) bool { return strings.HasPrefix(filepath.ToSlash(path), dir+"/") }

// TestRulesCanFail makes sure that the rules bite: a rule that matches nothing guards nothing.
func TestRulesCanFail(t *testing.T) {
	for _, c := range []struct {
		path, imported string
		forbidden      bool
	}{
		{"internal/core/unit/unit.go", "os", true},
		{"internal/core/unit/unit.go", "os/exec", true},
		{"internal/core/unit/unit.go", "k8s.io/api/core/v1", true},
		{"internal/core/unit/unit.go", "fmt", false},
		{"internal/kube/kube.go", "k8s.io/api/core/v1", false},
		{"internal/kube/kube.go", "k8s.io/client-go/rest", false},
		{"internal/kube/translate/qos.go", "k8s.io/client-go/rest", true},
		{"internal/kube/translate/qos.go", module + "internal/kube", true},
		{"internal/kube/translate/qos.go", module + "internal/kube/podfields", false},
		{"controlplane/main.go", "k8s.io/kubernetes/cmd/kube-apiserver/app", false},
		{"cmd/plimsoll/main.go", "k8s.io/kubernetes/pkg/kubelet", true},
		{"internal/corexyz/a.go", "os", false},
	} {
		got := false
		for _, r := range rules {
			got = got || r.binds(c.path) && r.forbidsImport(c.imported)
		}
		if got != c.forbidden {
			t.Errorf("%s importing %s: forbidden %v, want %v", c.path, c.imported, got, c.forbidden)
		}
	}
}

// reach forbids a package to be linked at all, through whatever library it comes.
type reach struct {
	from    string // the package that must do without
	forbids string // what import paths begin with
	reason  string
}

var reaches = []reach{
	{"./cmd/plimsoll", "k8s.io/client-go/kubernetes/",
		"a library that registers every API group costs each process MiBs: go mod why says who brings it"},
	{"./internal/kube/translate", "k8s.io/client-go/",
		"translations need no connection, and whoever needs them alone need not link one"},
}

// TestReach checks what packages are linked with.
func TestReach(t *testing.T) {
	for _, r := range reaches {
		out, err := exec.Command("go", "list", "-deps", r.from).Output()
		if err != nil {
			t.Fatalf("go list -deps %s: %v", r.from, err)
		}
		linked := strings.Fields(string(out))
		if !slices.Contains(linked, "k8s.io/api/core/v1") {
			t.Errorf("%s: %d packages, and the API's types are none of them: the list cannot be right", r.from, len(linked))
		}
		for _, path := range linked {
			if strings.HasPrefix(path, r.forbids) {
				t.Errorf("%s is linked with %s: %s", r.from, path, r.reason)
			}
		}
	}
}
