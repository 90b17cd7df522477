package deploy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// kinds are the kinds that our programs use, by their names in package kube.
var kinds = map[string]kube.Kind{
	"CSIDrivers":             kube.CSIDrivers,
	"CSINodes":               kube.CSINodes,
	"CSIStorageCapacities":   kube.CSIStorageCapacities,
	"DisruptionBudgets":      kube.DisruptionBudgets,
	"Events":                 kube.Events,
	"Leases":                 kube.Leases,
	"Namespaces":             kube.Namespaces,
	"Nodes":                  kube.Nodes,
	"Pods":                   kube.Pods,
	"ReplicaSets":            kube.ReplicaSets,
	"ReplicationControllers": kube.ReplicationControllers,
	"Services":               kube.Services,
	"StatefulSets":           kube.StatefulSets,
	"StorageClasses":         kube.StorageClasses,
	"SubjectAccessReviews":   kube.SubjectAccessReviews,
	"TokenReviews":           kube.TokenReviews,
	"Topologies":             kube.Topologies,
	"VolumeAttachments":      kube.VolumeAttachments,
	"VolumeClaims":           kube.VolumeClaims,
	"Volumes":                kube.Volumes,
}

// verbs are the API verbs of the methods of kube.Client that take a kind.
var verbs = map[string][]string{
	"Create":   {"create"},
	"Delete":   {"delete"},
	"Get":      {"get"},
	"Informer": {"list", "watch"},
	"List":     {"list"},
	"Patch":    {"patch"},
	"Update":   {"update"},
	"Watch":    {"watch"},
}

// others are calls that send requests without naming a kind.
var others = map[string][]string{
	"Evict":       {"create pods/eviction"},
	"NewRenewals": {"list leases", "watch leases"},
	"NewRecorder": {"create events", "patch events"}, // sink.create and sink.patch in internal/kube/recorder.go
}

// requests returns the requests in the source of packages: "verb resource" or "verb resource/subresource".
func requests(t *testing.T, packages ...string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, dir := range packages {
		paths, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: no source: %v", dir, err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					note(t, path, n, found)
				case *ast.CompositeLit: // a row in a table of watched kinds begins with the kind
					if len(n.Elts) > 0 && kindOf(n.Elts[0]) != "" {
						add(t, path, verbs["Informer"], kindOf(n.Elts[0]), found)
					}
				}
				return true
			})
		}
	}
	return found
}

// note adds the requests of one call.
func note(t *testing.T, path string, call *ast.CallExpr, found map[string]bool) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	for _, request := range others[method.Sel.Name] {
		found[request] = true
	}
	if method.Sel.Name == "REST" {
		t.Errorf("%s calls kube.Client.REST: this test cannot find out what it requests: use a method with a kind", path)
	}
	asks := verbs[method.Sel.Name]
	if asks == nil {
		return
	}
	for _, arg := range call.Args[:min(2, len(call.Args))] { // the kind stands first, or after the context
		kind := kindOf(arg)
		if kind == "" {
			continue
		}
		if of, is := kinds[kind]; is {
			if last, isText := call.Args[len(call.Args)-1].(*ast.BasicLit); isText {
				found[asks[0]+" "+of.Resource+"/"+strings.Trim(last.Value, `"`)] = true // a subresource
				return
			}
			if call.Ellipsis.IsValid() { // the caller passes the subresource: here, a node's status
				found[asks[0]+" "+of.Resource+"/status"] = true
			}
		}
		add(t, path, asks, kind, found)
	}
}

func add(t *testing.T, path string, asks []string, kind string, found map[string]bool) {
	of, ok := kinds[kind]
	if !ok {
		t.Errorf("%s asks for kube.%s, which this test does not know", path, kind)
	}
	for _, verb := range asks {
		found[verb+" "+of.Resource] = true
	}
}

// kindOf returns X of kube.X; empty for any other expression.
func kindOf(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok && x.Name == "kube" {
			return s.Sel.Name
		}
	}
	return ""
}

// granted returns what a manifest's roles allow, in the form of requests.
func granted(t *testing.T, manifest string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, document := range strings.Split(manifest, "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(document), &role); err != nil || role.Kind != "ClusterRole" {
			continue // internal/cluster tests that the manifests are well formed
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all[verb+" "+resource] = true
				}
			}
		}
	}
	return all
}

// TestRolesAreWhatIsAsked: each program's role allows exactly the requests in its source. test/e2e, where programs run
// with their roles, shows that they send no requests that this test misses.
func TestRolesAreWhatIsAsked(t *testing.T) {
	for _, c := range []struct {
		name, manifest string
		packages       []string
	}{
		{"lifecycle", Lifecycle, []string{"internal/lifecycle", "internal/kube/election", "internal/kube/authn"}},
		{"fleet", Fleet, []string{"internal/fleet"}},
		{"shadow", Shadow, []string{"internal/shadow"}},
	} {
		asked, may := requests(t, c.packages...), granted(t, c.manifest)
		if len(asked) < 5 {
			t.Errorf("%s: only %v is found in its source", c.name, asked)
		}
		for _, request := range slices.Sorted(maps.Keys(asked)) {
			if !may[request] {
				t.Errorf("%s asks to %s and may not", c.name, request)
			}
		}
		for _, request := range slices.Sorted(maps.Keys(may)) {
			if !asked[request] {
				t.Errorf("%s may %s and never asks", c.name, request)
			}
		}
	}
}

// TestShadowOnlyReads: the role for `plimsoll shadow` has no verb that changes anything, and names what it reads: no
// wildcard, no subresource, nothing secret.
func TestShadowOnlyReads(t *testing.T) {
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict([]byte(Shadow), &role); err != nil {
		t.Fatal(err)
	}
	if role.Kind != "ClusterRole" || role.AggregationRule != nil || len(role.Rules) == 0 {
		t.Fatalf("%+v: want a ClusterRole with rules of its own", role)
	}
	for _, rule := range role.Rules {
		if len(rule.NonResourceURLs) > 0 {
			t.Errorf("it names paths: %v", rule.NonResourceURLs)
		}
		for _, verb := range rule.Verbs {
			if verb != "get" && verb != "list" && verb != "watch" {
				t.Errorf("it may %s %v", verb, rule.Resources)
			}
		}
		for _, what := range slices.Concat(rule.APIGroups, rule.Resources) {
			if strings.ContainsAny(what, "*/") || what == "secrets" || what == "configmaps" {
				t.Errorf("it may %v %s", rule.Verbs, what)
			}
		}
	}
}
