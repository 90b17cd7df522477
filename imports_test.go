package plimsoll

import (
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

const module = "github.com/plimsoll-dev/plimsoll/"

// arrows says of every directory with Go code of this module which others of the module it may import; "x/..." is x and
// all below it. A new directory needs a line, and an arrow that nobody uses any more is taken out.
//
// The cores do not know who asks them, adapters know the cores alone, shells do not know each other. A translation
// (internal/kube/translate) needs no connection. The simulator has the cores and nothing real.
const arrows = `
# the cores: decisions, as functions of what they are told
internal/core/admission: internal/core/eviction internal/core/scheduler internal/core/scheduler/selector
    internal/core/qos internal/core/unit internal/core/wellknown
internal/core/eviction: internal/core/allocatable internal/core/unit internal/core/wellknown
internal/core/fairqueue:
internal/core/fault: internal/core/unit
internal/core/imagegc: internal/core/unit
internal/core/lifecycle: internal/core/heap internal/core/unit internal/core/wellknown
internal/core/heap:
internal/core/heartbeat: internal/core/unit
internal/core/imageaccess: internal/core/unit
internal/core/idset:
internal/core/allocatable: internal/core/idset internal/core/machine internal/core/qos internal/core/unit
internal/core/localvolume: internal/core/unit
internal/core/machine: internal/core/idset internal/core/unit
internal/core/nodecert: internal/core/unit
internal/core/numa: internal/core/idset internal/core/machine internal/core/numa/bitset internal/core/numa/cpus
    internal/core/numa/hints internal/core/numa/memory internal/core/unit
internal/core/numa/bitset: internal/core/idset
internal/core/numa/cpus: internal/core/machine internal/core/numa/bitset
internal/core/numa/hints: internal/core/numa/bitset
internal/core/numa/memory: internal/core/machine internal/core/numa/bitset internal/core/numa/hints
    internal/core/unit
internal/core/oom: internal/core/unit
internal/core/scheduler: internal/core/heap internal/core/numa internal/core/scheduler/census
    internal/core/scheduler/encode internal/core/scheduler/queue internal/core/scheduler/rows
    internal/core/scheduler/selector internal/core/scheduler/shrink internal/core/scheduler/volumes
    internal/core/unit internal/core/wellknown
internal/core/scheduler/census: internal/core/scheduler/encode internal/core/scheduler/rows
    internal/core/scheduler/selector internal/core/scheduler/shrink
internal/core/scheduler/encode:
internal/core/scheduler/queue: internal/core/heap internal/core/unit
internal/core/scheduler/remedy: internal/core/heap internal/core/numa internal/core/scheduler internal/core/scheduler/selector
    internal/core/unit internal/core/wellknown
internal/core/scheduler/rows:
internal/core/scheduler/trace: internal/core/numa internal/core/scheduler internal/core/unit
internal/core/scheduler/selector: internal/core/scheduler/encode internal/core/wellknown
internal/core/scheduler/shrink:
internal/core/scheduler/volumes: internal/core/scheduler/rows internal/core/scheduler/selector
    internal/core/scheduler/shrink internal/core/wellknown
internal/core/csinode: internal/core/unit
internal/core/devicemanager: internal/core/machine internal/core/numa internal/core/unit
internal/core/growth: internal/core/unit
internal/core/podcert: internal/core/unit
internal/core/podroutes:
internal/core/serverchoice: internal/core/unit
internal/core/servingcert:
internal/core/shadow: internal/core/lifecycle internal/core/scheduler internal/core/unit internal/core/wellknown
internal/core/clientcert:
internal/core/shutdown: internal/core/unit
internal/core/podlife: internal/core/resize internal/core/unit
internal/core/probe: internal/core/unit
internal/core/qos: internal/core/idset internal/core/unit
internal/core/recommend: internal/core/allocatable internal/core/unit
internal/core/registration: internal/core/unit
internal/core/resize: internal/core/qos internal/core/unit
internal/core/volume: internal/core/heap internal/core/unit
internal/core/volumelimit: internal/core/unit
internal/core/volumestats: internal/core/heap internal/core/unit
internal/core/throttle: internal/core/unit
internal/core/unit:
internal/core/userns:
internal/core/watchdog: internal/core/unit
internal/core/wellknown:

# adapters: one outside system each
internal/host/epoll:
internal/host/cgroup: internal/core/idset internal/core/allocatable internal/core/qos internal/core/unit
    internal/host/epoll internal/host/psi
internal/host/cni: internal/host/nat
internal/host/cri:
internal/host/csi: internal/host/socket
internal/host/deviceplugin: internal/core/machine internal/core/numa internal/core/devicemanager internal/host/socket
internal/host/disk: internal/core/unit
internal/host/durable:
internal/host/idmap:
internal/host/iptables:
internal/host/link:
internal/host/journalctl:
internal/host/logind: internal/host/durable
internal/host/kmsg: internal/core/oom internal/core/unit
internal/host/mount:
internal/host/nat:
internal/host/pluginregistry: internal/core/registration internal/host/socket
internal/host/process:
internal/host/procfs: internal/core/unit
internal/host/psi: internal/host/epoll
internal/host/quota: internal/core/unit
internal/host/sdnotify:
internal/host/shortage:
internal/host/socket:
internal/host/loop:
internal/host/selinux:
internal/host/machineinfo: internal/core/machine internal/core/unit internal/host/disk internal/host/procfs
    internal/host/shortage internal/host/sysfs
internal/host/sysfs: internal/core/idset internal/core/machine internal/core/unit
internal/host/untrusted:

# the API: the client, what objects mean, files and flags
internal/kube: internal/clock internal/core/throttle internal/core/unit internal/kube/scheme internal/kube/topology
internal/kube/authn: internal/kube
internal/kube/compat: internal/kube/featuregate internal/kube/kubeletconfig internal/kube/podfields
internal/kube/configfile:
internal/kube/credentialconfig: internal/kube/configfile
internal/kube/certrequest: internal/core/nodecert internal/kube
internal/kube/election: internal/kube
internal/kube/featuregate:
internal/kube/kubeletconfig: internal/core/... internal/kube/configfile internal/kube/featuregate
internal/kube/kubeletflags: internal/kube/kubeletconfig
internal/kube/kubelethash:
internal/kube/kubeletstate: internal/core/idset internal/core/machine internal/core/numa internal/core/unit
    internal/kube/kubelethash
internal/kube/machinefile: internal/core/idset internal/core/machine internal/core/unit internal/kube/configfile
internal/kube/manifests: internal/kube/scheme
internal/kube/podfields: internal/core/wellknown
internal/kube/podfields/sample: internal/kube/manifests internal/kube/podfields
internal/kube/schedulerconfig: internal/core/scheduler internal/kube/configfile internal/kube/translate
internal/kube/scheme: internal/kube/topology
internal/kube/serving: internal/kube internal/kube/authn
internal/kube/topology: internal/core/idset internal/core/machine internal/core/numa internal/core/unit
    internal/kube/machinefile
internal/kube/translate: internal/core/... internal/kube/kubelethash internal/kube/podfields

# the shells: each works alone beside upstream's others
internal/agent: internal/clock internal/agent/... internal/core/... internal/host/... internal/image internal/journal
    internal/kube internal/kube/kubeletconfig internal/kube/translate internal/version
internal/agent/cadvisor: internal/agent/stats internal/core/machine internal/host/cgroup
internal/agent/allocation: internal/core/unit internal/kube/translate
internal/agent/containerconfig: internal/agent/criconfig internal/agent/dns internal/agent/env internal/agent/volume
    internal/kube/kubelethash internal/kube/translate
internal/agent/credentialprovider: internal/agent/pullsecret internal/core/imageaccess
internal/agent/criconfig: internal/core/admission internal/host/cri internal/kube/translate
internal/agent/csivolume: internal/agent/poddir internal/core/unit internal/core/volume internal/core/volumestats
    internal/host/csi internal/host/durable internal/host/loop internal/host/mount internal/host/untrusted
internal/agent/devicemanager: internal/clock internal/agent/metrics internal/core/machine internal/core/numa
    internal/core/devicemanager internal/core/registration internal/host/deviceplugin internal/kube/kubeletstate
internal/agent/env: internal/kube/translate
internal/agent/eviction: internal/clock internal/agent/failurelog internal/agent/metrics internal/agent/podentry
    internal/agent/pods
    internal/core/eviction internal/core/allocatable
    internal/core/unit internal/host/epoll internal/host/cgroup internal/host/disk internal/host/procfs
    internal/host/psi internal/journal internal/kube/translate
internal/agent/numa: internal/agent/metrics internal/core/idset internal/core/machine internal/core/numa
    internal/core/unit internal/kube internal/kube/topology
internal/agent/handover: internal/agent/failurelog internal/core/idset internal/core/machine internal/core/numa
    internal/core/unit internal/host/durable internal/host/untrusted internal/kube/kubeletstate
internal/agent/hook: internal/agent/metrics internal/agent/probe internal/host/cri
internal/agent/identity: internal/core/nodecert internal/core/unit internal/host/durable internal/kube
    internal/kube/certrequest
internal/agent/imageaccess: internal/core/imageaccess internal/core/unit internal/host/durable
internal/agent/imagegc: internal/agent/criconfig internal/clock internal/core/eviction internal/core/imagegc
    internal/core/unit internal/host/disk
internal/agent/imagepull: internal/agent/credentialprovider internal/core/imageaccess internal/core/podlife
    internal/agent/criconfig internal/agent/pullsecret internal/kube/translate
internal/agent/metrics: internal/version
internal/agent/csidrivers: internal/agent/failurelog internal/clock internal/core/csinode internal/core/registration
    internal/host/csi internal/kube
internal/agent/dns:
internal/agent/failurelog:
internal/agent/node: internal/clock internal/agent/failurelog internal/agent/runtimehandler internal/core/heartbeat
    internal/core/allocatable internal/core/machine internal/core/devicemanager internal/core/unit internal/host/procfs
    internal/kube internal/kube/kubeletconfig internal/kube/podfields internal/kube/translate internal/version
internal/agent/objectcache: internal/core/volumelimit internal/kube
internal/agent/poddir:
internal/agent/pluginregistry: internal/agent/failurelog internal/clock internal/core/registration internal/core/unit
    internal/host/pluginregistry
internal/agent/podcert: internal/core/podcert internal/core/unit internal/kube
internal/agent/podentry: internal/agent/allocation internal/agent/podstatus internal/agent/podview
    internal/agent/statusreport internal/core/eviction internal/core/podlife internal/core/unit internal/kube/translate
internal/agent/podlog: internal/host/shortage internal/host/untrusted
internal/agent/podresources: internal/agent/devicemanager internal/agent/metrics internal/core/machine
    internal/core/numa internal/host/socket internal/kube/translate
internal/agent/oomwatch: internal/core/oom internal/core/podlife internal/core/unit internal/host/kmsg internal/kube
    internal/kube/translate
internal/agent/pods: internal/clock internal/agent/... internal/core/... internal/host/cri internal/host/process
    internal/journal internal/kube internal/kube/podfields internal/kube/translate
internal/agent/podstatus: internal/agent/volume internal/core/podlife internal/core/resize internal/core/unit
    internal/kube/translate
internal/agent/podview: internal/agent/criconfig internal/agent/podlog internal/agent/podstatus internal/core/podlife
    internal/core/unit internal/host/cri internal/host/untrusted
internal/agent/probe: internal/clock internal/agent/env internal/core/heap internal/core/podlife internal/core/probe
    internal/core/unit internal/host/cri internal/kube/translate
internal/agent/pullsecret: internal/core/imageaccess
internal/agent/remains: internal/agent/criconfig internal/agent/devicemanager internal/host/cri
internal/agent/runtimehandler: internal/kube internal/kube/podfields
internal/agent/shutdown: internal/agent/failurelog internal/agent/podentry internal/agent/pods internal/clock
    internal/core/shutdown internal/host/durable internal/host/logind internal/kube/translate
internal/agent/server: internal/agent/metrics internal/agent/poddir internal/agent/podlog internal/agent/stats
    internal/host/cri internal/host/durable internal/host/journalctl internal/journal internal/kube/authn
    internal/kube/serving internal/kube/translate internal/version
internal/agent/staticpods: internal/kube internal/kube/kubelethash internal/kube/manifests internal/kube/translate
internal/agent/stats: internal/agent/poddir internal/core/unit internal/host/cgroup internal/host/process
    internal/host/psi internal/host/quota
internal/agent/statusreport: internal/agent/podstatus internal/core/podlife internal/core/throttle internal/kube
internal/agent/trustbundle: internal/kube
internal/agent/diskusage: internal/core/eviction internal/host/disk internal/kube/translate
internal/agent/tracing: internal/agent/failurelog
internal/agent/turns: internal/core/fairqueue
internal/agent/userns: internal/core/userns internal/host/durable
internal/agent/volumestats: internal/core/unit internal/core/volumestats
internal/agent/watchdog: internal/agent/failurelog internal/clock internal/core/watchdog internal/host/sdnotify
internal/agent/volume: internal/agent/csivolume internal/agent/env internal/agent/dns internal/agent/podcert
    internal/agent/poddir internal/agent/turns internal/agent/volumestats
    internal/core/unit internal/core/volumelimit internal/core/volumestats internal/host/disk
    internal/host/mount internal/host/quota internal/host/shortage internal/host/untrusted internal/kube
    internal/kube/podfields internal/kube/translate
internal/scheduler: internal/clock internal/core/numa internal/core/scheduler internal/core/scheduler/trace
    internal/core/throttle internal/core/unit internal/journal internal/kube internal/kube/schedulerconfig
    internal/kube/topology internal/kube/translate
internal/lifecycle: internal/clock internal/core/growth internal/core/lifecycle internal/core/throttle
    internal/core/unit internal/journal internal/kube internal/kube/translate
internal/fleet: internal/clock internal/core/fault internal/core/heap internal/core/heartbeat internal/core/podlife
    internal/core/unit internal/kube internal/kube/translate internal/version
internal/recommend: internal/core/allocatable internal/core/machine internal/core/recommend internal/core/unit
    internal/host/cgroup internal/host/procfs internal/kube/translate
internal/console: internal/console/view internal/core/idset internal/core/machine internal/core/unit internal/explain
    internal/journal internal/kube internal/kube/kubeletconfig internal/kube/manifests internal/kube/topology
    internal/version internal/whatif
internal/console/view: internal/core/allocatable internal/core/eviction internal/core/idset internal/core/machine
    internal/core/numa internal/explain internal/journal internal/kube/translate
internal/whatif: internal/core/... internal/kube/kubeletconfig internal/kube/manifests internal/kube/schedulerconfig
    internal/kube/topology internal/kube/translate
internal/shadow: internal/clock internal/core/lifecycle internal/core/scheduler internal/core/shadow internal/core/unit
    internal/kube internal/kube/schedulerconfig internal/kube/topology internal/kube/translate
internal/sim: internal/core/...

# the cluster on one machine
internal/cluster: deploy internal/clock internal/cluster/bootstrap internal/cluster/pki internal/cluster/progress
    internal/cluster/sparedisk internal/cluster/supervise internal/containerruntime internal/core/clientcert
    internal/core/podroutes internal/core/qos internal/core/serverchoice internal/core/servingcert internal/core/unit internal/fleet
    internal/host/cgroup internal/host/durable internal/host/link internal/host/loop internal/host/mount
    internal/host/nat internal/host/procfs internal/host/shortage internal/image internal/kube
    internal/kube/kubeletconfig internal/version
internal/cluster/bootstrap: internal/host/durable internal/kube internal/kube/certrequest
internal/cluster/pki: internal/host/durable
internal/cluster/progress:
internal/cluster/sparedisk:
internal/cluster/supervise: internal/host/link internal/host/shortage

# the CSI driver
internal/csi: internal/core/localvolume internal/core/unit internal/csi/store internal/host/disk internal/host/loop
    internal/host/socket
internal/csi/store: internal/core/localvolume internal/core/unit internal/host/disk internal/host/durable
    internal/host/loop internal/host/quota

# what is shared by those
internal/containerruntime: internal/host/... internal/image
internal/explain: internal/core/eviction internal/core/scheduler internal/core/scheduler/remedy internal/core/unit
    internal/journal internal/kube internal/kube/schedulerconfig internal/kube/topology internal/kube/translate
internal/top: internal/core/unit
internal/top/screen: internal/top
internal/top/source: internal/core/machine internal/core/scheduler internal/core/unit internal/explain internal/journal
    internal/kube internal/kube/topology internal/kube/translate internal/top
internal/image:
internal/journal: internal/core/admission internal/core/eviction internal/core/idset internal/core/lifecycle
    internal/core/machine internal/core/numa internal/core/scheduler
    internal/core/scheduler/trace internal/core/unit internal/host/shortage
internal/journal/replay: internal/core/admission internal/core/eviction internal/core/numa internal/core/scheduler
    internal/core/scheduler/trace internal/journal internal/kube/topology
internal/version:
internal/clock: internal/core/unit

# programs
cmd/plimsoll: internal/agent internal/agent/node internal/cluster internal/cluster/bootstrap internal/cluster/progress
    internal/console
    internal/core/eviction internal/core/fault internal/core/lifecycle internal/core/recommend internal/explain
    internal/fleet internal/host/procfs internal/host/machineinfo internal/journal internal/journal/replay
    internal/kube/... internal/lifecycle
    internal/recommend internal/scheduler internal/shadow internal/sim internal/top internal/top/screen
    internal/top/source internal/version internal/whatif
cmd/plimsoll-csi: internal/csi internal/version
cmd/plimsoll-hostport: internal/host/cni
cmd/plimsoll-lab: lab

# the lab and the tests
lab: internal/core/idset internal/core/machine internal/core/unit internal/host/procfs internal/image
    internal/kube/machinefile lab/wire
lab/guest: lab/wire
lab/wire:
deploy:
images/build: internal/image
images/workload:
scripts/sbom:
test/amounts:
test/apart: internal/core/idset
test/apart/watch: test/apart
test/atonce:
test/cost:
test/criproxy:
test/csidriver: internal/host/mount
test/csidriver/driver: test/csidriver
test/deviceplugin:
test/deviceplugin/plugin: test/deviceplugin
test/e2e/charts:
test/e2e/disk:
test/e2e/lab:
test/e2e/lifecycle:
test/e2e/nodes:
test/e2e/pods:
test/e2e/rig: internal/cluster/pki internal/host/loop internal/host/mount internal/image internal/scheduler lab lab/wire
    test/freeport
test/e2e/scheduler:
test/e2e/storage:
test/e2e/volumes:
test/flagdoc:
test/freeport:
test/scenario:
test/logind:
test/otlp:
test/smallfs: internal/core/unit
`

// coreMay is what of the standard library the cores may import: what computes. They read no files, make no system
// calls, open no connections (net/netip only computes), cancel nothing half-way and log nothing; randomness and time
// are passed in.
const coreMay = "cmp encoding/binary errors fmt iter maps math math/bits net/netip path regexp slices strconv " +
	"strings time unicode/utf8"

// A rule forbids imports below a directory of packages that are not of this module.
type rule struct {
	in      string   // directory the rule speaks of
	forbids []string // import paths; a trailing "/" covers everything below
	except  []string // directories below in that the rule does not bind
	reason  string
}

var rules = []rule{
	{"internal/kube/translate", []string{"k8s.io/client-go/", "net", "net/", "os", "os/", "context", "log", "log/"}, nil,
		"what an object means does not depend on a connection: translations are functions of objects alone"},
	{"internal/kube/manifests", []string{"k8s.io/client-go/", "net", "net/", "context"}, nil,
		"files are read without a connection"},
	{"internal/whatif", []string{"k8s.io/client-go/", "net", "net/", "context"}, nil,
		"whatif speaks to nobody: what it is asked about is in files"},
	{"internal/sim", []string{"net/", "os", "os/", "k8s.io/"}, nil,
		"the simulator has virtual nodes, a virtual API server and a virtual clock"},
	{".", []string{"k8s.io/kubernetes", "k8s.io/kubernetes/"}, []string{"controlplane", "oracle", "bench", "conformance"},
		"k8s.io/kubernetes is a judge and an embedded program, never a library: only controlplane, oracle, bench and " +
			"conformance depend on it"},
	{".", []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/kubernetes/"}, []string{"controlplane", "oracle",
		"bench", "storage", "test"},
		"the generated clientset registers every API group and costs the agent MiBs: use internal/kube"},
	{".", []string{"text/template", "html/template"}, []string{"controlplane", "oracle", "bench"},
		"templates call methods by name, so the linker keeps every exported method of every type: a quarter of the binary, " +
			"in the memory of each process"},
	{".", []string{"testing"}, []string{"test"},
		"test code must not be reachable from a product binary"},
}

// TestImportsFollowTheArrows checks the imports of every Go file that is not a test.
func TestImportsFollowTheArrows(t *testing.T) {
	may, used, found := readArrows(t), map[string]bool{}, map[string]bool{}
	eachFile(t, func(path string, file *ast.File) {
		dir := filepath.ToSlash(filepath.Dir(path))
		arrows, known := may[dir]
		if ours := dir != "." && !ownModule(dir); ours && !known && !found[dir] {
			t.Errorf("%s has no line in arrows: say which of our packages it may import", dir)
		}
		found[dir] = true
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			for _, objection := range objectionsTo(path, imported) {
				t.Errorf("%s imports %s: %s", path, imported, objection)
			}
			to, ours := strings.CutPrefix(imported, module)
			if !ours || !known {
				continue
			}
			by := arrowTo(arrows, to)
			if used[dir+" "+by] = true; by == "" {
				t.Errorf("%s imports %s: no arrow leads from %s there", path, to, dir)
			}
		}
	})
	for dir, arrows := range may {
		if !found[dir] {
			t.Errorf("arrows has a line for %s, where no Go code is", dir)
			continue
		}
		for _, to := range arrows {
			if !used[dir+" "+to] {
				t.Errorf("nothing in %s imports %s any more: take the arrow out", dir, to)
			}
		}
	}
}

// TestCoreReadsNoClock: the cores are told what time it is.
func TestCoreReadsNoClock(t *testing.T) {
	read := 0
	eachFile(t, func(path string, file *ast.File) {
		if !below(path, "internal/core") {
			return
		}
		read++
		for _, call := range clockIn(file) {
			t.Errorf("%s uses time.%s: the core gets the time as an argument", path, call)
		}
	})
	if read < 100 {
		t.Errorf("%d files of the core were read: too few to say anything", read)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "x.go",
		`package x; import "time"; var _ = time.Now().Add(time.Second)`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := clockIn(file); !slices.Equal(got, []string{"Now"}) {
		t.Errorf("a file that reads the clock once: found %v", got)
	}
}

// clockIn lists what a file uses of package time that reads the clock or waits.
func clockIn(file *ast.File) (calls []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		x, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if of, ok := x.X.(*ast.Ident); !ok || of.Name != "time" {
			return true
		}
		switch x.Sel.Name {
		case "Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker":
			calls = append(calls, x.Sel.Name)
		}
		return true
	})
	return calls
}

// eachFile calls see for every Go file that is not a test.
func eachFile(t *testing.T, see func(path string, file *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			see(path, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ownModule reports whether a directory belongs to a module of its own, which may import what it wants of this one.
func ownModule(dir string) bool {
	for ; dir != "."; dir = filepath.ToSlash(filepath.Dir(dir)) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return true
		}
	}
	return false
}

// readArrows returns for each directory the patterns of those that it may import.
func readArrows(t *testing.T) map[string][]string {
	t.Helper()
	may, dir := map[string][]string{}, ""
	for line := range strings.Lines(arrows) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if !strings.HasPrefix(line, " ") {
			name, ok := strings.CutSuffix(words[0], ":")
			if _, twice := may[name]; !ok || twice {
				t.Fatalf("arrows: %q: want a directory that was not there before, and a colon", words[0])
			}
			dir, words = name, words[1:]
			may[dir] = nil
		}
		may[dir] = append(may[dir], words...)
	}
	return may
}

// arrowTo is the arrow that leads to a directory; empty: none does.
func arrowTo(arrows []string, to string) string {
	for _, arrow := range arrows {
		if all, ok := strings.CutSuffix(arrow, "/..."); arrow == to || ok && (to == all || strings.HasPrefix(to, all+"/")) {
			return arrow
		}
	}
	return ""
}

// objectionsTo says why a file may not import a package that is not ours.
func objectionsTo(path, imported string) (objections []string) {
	for _, r := range rules {
		if r.binds(path) && r.forbidsImport(imported) {
			objections = append(objections, r.reason)
		}
	}
	if below(path, "internal/core") && !strings.HasPrefix(imported, module) && !slices.Contains(strings.Fields(coreMay),
		imported) {
		objections = append(objections, "the cores import what coreMay lists, and no library")
	}
	return objections
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
		{"controlplane/main.go", "k8s.io/kubernetes/cmd/kube-apiserver/app", false},
		{"cmd/plimsoll/main.go", "k8s.io/kubernetes/pkg/kubelet", true},
		{"internal/corexyz/a.go", "os", false},
	} {
		if got := len(objectionsTo(c.path, c.imported)) > 0; got != c.forbidden {
			t.Errorf("%s importing %s: forbidden %v, want %v", c.path, c.imported, got, c.forbidden)
		}
	}
	for arrow, to := range map[string]string{"internal/core/...": "internal/corexyz",
		"internal/kube": "internal/kube/authn"} {
		if arrowTo([]string{arrow}, to) != "" {
			t.Errorf("the arrow %s leads to %s", arrow, to)
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
	{"./internal/kube/manifests", "k8s.io/client-go/",
		"files are read without a connection"},
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
