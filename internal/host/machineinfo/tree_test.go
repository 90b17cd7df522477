package machineinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/machinefile"
	"github.com/plimsoll-dev/plimsoll/test/scenario"
)

// TestOddMachines runs testdata. The command "survey" makes trees of /sys and /proc from its input, reads them and
// prints the machine, its notes, or the error. Each line of the input makes files as a kernel would:
//
//	cpus ONLINE [present=LIST] [isolated=LIST]
//	package ID CPUS           physical_package_id of each
//	die CPUS                  die_cpus_list of each
//	core CPUS                 core_cpus_list and thread_siblings_list of each; a CPU in no line is alone
//	l3 ID CPUS                an index directory of level 3 for each; ID - leaves the id file out
//	node ID [cpus=LIST] [memory=SIZE] [blocks=LIST] [distances=N,N] [2Mi=COUNT] [1Gi=COUNT]
//	nodes LIST                the node directory's list of online nodes
//	memory SIZE [swap=SIZE]   /proc/meminfo
//	pages [2Mi=COUNT] [1Gi=COUNT]    the machine's huge pages
//	pci ADDRESS CLASS VENDOR DEVICE NODE
//	file PATH TEXT            any file, replacing an existing one; without TEXT an empty one
//	remove PATH
//
// A memory block has 128 MiB. The file system is always the same one: statfs has no injected root.
func TestOddMachines(t *testing.T) {
	scenario.Play(t, "testdata/machines", "survey", func(t *testing.T, d *datadriven.TestData) string {
		root := treeRoot{t, treeDir(t)}
		for _, line := range strings.Split(d.Input, "\n") {
			root.make(strings.Fields(line))
		}
		h := Host{Root: root.dir, StateDir: root.dir}
		m, notes, err := h.Look()
		if err != nil {
			return "error: " + strings.ReplaceAll(err.Error(), root.dir, "") + "\n"
		}
		m.NodeFS = machine.Filesystem{Capacity: unit.TiB}
		m.ImageFS = m.NodeFS
		out := string(machinefile.File{Machine: m}.YAML())
		_, out, _ = strings.Cut(out, "spec:\n")
		out, _, _ = strings.Cut(out, "  filesystems:")
		for _, note := range notes {
			out += "note: " + strings.ReplaceAll(note, root.dir, "") + "\n"
		}
		return out
	})
}

// treeDir returns a directory for thousands of small files: in memory if possible, because a busy disk is slow with
// them.
func treeDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "survey-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

type treeRoot struct {
	t   *testing.T
	dir string
}

const cpuDir, nodeDir = "sys/devices/system/cpu", "sys/devices/system/node"

func (r treeRoot) make(words []string) {
	if len(words) == 0 {
		return
	}
	options := map[string]string{}
	var args []string
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok && words[0] != "file" {
			options[key] = value
		} else {
			args = append(args, w)
		}
	}
	switch words[0] {
	case "cpus":
		r.cpus(args[0], options)
	case "package":
		r.each(args[1], "topology/physical_package_id", args[0])
		r.each(args[1], "topology/package_cpus_list", args[1])
	case "die":
		r.each(args[0], "topology/die_cpus_list", args[0])
	case "core":
		r.each(args[0], "topology/core_cpus_list", args[0])
		r.each(args[0], "topology/thread_siblings_list", args[0])
	case "l3":
		r.each(args[1], "cache/index3/level", "3")
		r.each(args[1], "cache/index3/shared_cpu_list", args[1])
		if args[0] != "-" {
			r.each(args[1], "cache/index3/id", args[0])
		}
	case "node":
		r.node(args[0], options)
	case "nodes":
		r.file(nodeDir+"/online", args[0])
	case "memory":
		r.file("proc/meminfo", fmt.Sprintf("MemTotal: %d kB\nSwapTotal: %d kB", r.kiB(args[0]), r.kiB(options["swap"])))
	case "pages":
		r.pages("sys/kernel/mm/hugepages", options)
	case "pci":
		for i, name := range []string{"class", "vendor", "device", "numa_node"} {
			r.file("sys/bus/pci/devices/"+args[0]+"/"+name, args[i+1])
		}
	case "file":
		r.file(args[0], strings.Join(args[1:], " "))
	case "remove":
		if err := os.RemoveAll(filepath.Join(r.dir, args[0])); err != nil {
			r.t.Fatal(err)
		}
	default:
		r.t.Fatalf("unknown line %q", words)
	}
}

// cpus makes the files that every kernel has for a CPU, and two more caches among which the right one must be found.
func (r treeRoot) cpus(online string, options map[string]string) {
	r.file(cpuDir+"/online", online)
	r.file(cpuDir+"/isolated", options["isolated"])
	r.file(cpuDir+"/possible", "0-511")
	r.file("proc/sys/kernel/pid_max", "4194304")
	r.file("proc/sys/kernel/threads-max", "4194304")
	present := options["present"]
	if present == "" {
		present = online
	}
	r.file(cpuDir+"/present", present)
	for cpu := range r.set(online).All() {
		id := fmt.Sprint(cpu)
		for i, level := range []string{"1", "1", "2"} {
			r.each(id, fmt.Sprintf("cache/index%d/level", i), level)
			r.each(id, fmt.Sprintf("cache/index%d/shared_cpu_list", i), id)
		}
		r.each(id, "topology/core_cpus_list", id)
		r.each(id, "topology/thread_siblings_list", id)
		r.each(id, "topology/physical_package_id", "-1")
	}
}

func (r treeRoot) node(id string, options map[string]string) {
	dir := nodeDir + "/node" + id
	r.file(dir+"/cpulist", options["cpus"])
	r.file(dir+"/meminfo", fmt.Sprintf("\nNode %s MemTotal:       %d kB\nNode %s MemFree:        0 kB", id,
		r.kiB(options["memory"]), id))
	r.file(dir+"/distance", strings.ReplaceAll(options["distances"], ",", " "))
	r.file(dir+"/memory_failure/total", "0")
	for block := range r.set(options["blocks"]).All() {
		r.file(fmt.Sprintf("%s/memory%d/online", dir, block), "1")
		r.file("sys/devices/system/memory/block_size_bytes", "8000000")
	}
	r.pages(dir+"/hugepages", options)
}

func (r treeRoot) pages(dir string, options map[string]string) {
	for _, size := range []string{"2Mi", "1Gi"} {
		if count, ok := options[size]; ok {
			r.file(fmt.Sprintf("%s/hugepages-%dkB/nr_hugepages", dir, r.kiB(size)), count)
		}
	}
}

// each writes a file for every CPU of a list.
func (r treeRoot) each(cpus, name, text string) {
	for cpu := range r.set(cpus).All() {
		r.file(fmt.Sprintf("%s/cpu%d/%s", cpuDir, cpu, name), text)
	}
}

func (r treeRoot) file(name, text string) {
	file := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r treeRoot) set(list string) idset.Set {
	s, err := idset.Parse(list)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r treeRoot) kiB(size string) int64 {
	if size == "" {
		return 0
	}
	q, err := resource.ParseQuantity(size)
	if err != nil {
		r.t.Fatal(err)
	}
	return q.Value() / 1024
}

// TestEveryPathIsBelowTheRoot searches for paths that would be read from the machine on which the test runs: such a
// reader would work in tests and return wrong values elsewhere.
func TestEveryPathIsBelowTheRoot(t *testing.T) {
	absolute := regexp.MustCompile(`"/(sys|proc|etc|dev)\b`)
	for _, dir := range []string{".", "../sysfs", "../procfs"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatal(err, files)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.Split(string(text), "\n") {
				if absolute.MatchString(line) && !strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(line,
					"const Default FS = ") {
					t.Errorf("%s: %s: join it with the root", file, strings.TrimSpace(line))
				}
			}
		}
	}
}
