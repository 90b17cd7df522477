// Command build makes the archives of Plimsoll's own images from programs that are already built.
//
//	build --pause bin/images/pause --workload bin/images/workload --coredns bin/images/coredns \
//	  --metrics-server bin/images/metrics-server --out bin/images
//	build --plimsoll bin/plimsoll --out bin/images
//
// Only the images are made whose programs are named.
//
// Each image is one uncompressed layer (small, and an import need not decompress it) in an OCI layout archive. The same
// programs give the same bytes: no time, user or host name is included. The command runs at build time only, so that
// bin/plimsoll needs no image library.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/plimsoll-dev/plimsoll/internal/image"
)

func main() {
	pause := flag.String("pause", "", "the pause program")
	workload := flag.String("workload", "", "the workload program")
	coredns := flag.String("coredns", "", "the CoreDNS program")
	metrics := flag.String("metrics-server", "", "the metrics-server program")
	program := flag.String("plimsoll", "", "the program plimsoll, for pods of deploy/")
	out := flag.String("out", "", "directory for the archives")
	arch := flag.String("arch", runtime.GOARCH, "architecture of the programs")
	flag.Parse()
	var recipes []recipe
	for _, one := range []struct {
		program string
		recipe
	}{
		{*pause, pauseRecipe(*pause)},
		{*workload, workloadRecipe(*workload)},
		{*coredns, addonRecipe(*coredns, "coredns", image.CoreDNSFile, image.CoreDNS)},
		{*metrics, addonRecipe(*metrics, "metrics-server", image.MetricsServerFile, image.MetricsServer)},
		{*program, addonRecipe(*program, "plimsoll", image.ProgramFile, image.Program)},
	} {
		if one.program != "" {
			recipes = append(recipes, one.recipe)
		}
	}
	if err := run(recipes, *out, *arch); err != nil {
		fmt.Fprintln(os.Stderr, "build images:", err)
		os.Exit(1)
	}
}

func run(recipes []recipe, out, arch string) error {
	for _, recipe := range recipes {
		archive, err := recipe.build(arch)
		if err != nil {
			return fmt.Errorf("%s: %w", recipe.names[0], err)
		}
		path := filepath.Join(out, recipe.file)
		if err := writeIfChanged(path, archive); err != nil {
			return err
		}
	}
	return nil
}

// writeIfChanged does not write the file if its content is the same, so that make sees an unchanged time.
func writeIfChanged(path string, content []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func pauseRecipe(program string) recipe {
	return recipe{
		file:       image.PauseFile,
		names:      []string{image.Pause},
		entrypoint: []string{"/pause"},
		entries:    []entry{{name: "pause", mode: 0o755, program: program}},
	}
}

// addonRecipe has the program and nothing else: authorities come with the pods' service accounts.
func addonRecipe(program, name, file, image string) recipe {
	return recipe{
		file:       file,
		names:      []string{image},
		entrypoint: []string{"/" + name},
		environ:    []string{"PATH=/"},
		entries:    []entry{{name: name, mode: 0o755, program: program}, {name: "tmp/", mode: 0o1777}},
	}
}

// linked are the verbs that are also in /bin: those that kubectl cp uses, and common commands for kubectl exec.
var linked = []string{"cat", "env", "ls", "sleep", "tar", "test"}

func workloadRecipe(program string) recipe {
	r := recipe{
		file:       image.WorkloadFile,
		names:      []string{image.Workload, image.Demo},
		entrypoint: []string{"/workload"},
		command:    []string{"http"},
		environ:    []string{"PATH=/bin:/"},
		entries: []entry{
			{name: "workload", mode: 0o755, program: program},
			{name: "bin/", mode: 0o755},
			{name: "etc/", mode: 0o755},
			{name: "etc/group", mode: 0o644, text: "root:x:0:\nworkload:x:1000:\nnogroup:x:65534:\n"},
			{name: "etc/passwd", mode: 0o644, text: "root:x:0:0:root:/:/workload\n" +
				"workload:x:1000:1000:workload:/tmp:/workload\nnobody:x:65534:65534:nobody:/tmp:/workload\n"},
			{name: "tmp/", mode: 0o1777},
		},
	}
	for _, verb := range linked {
		r.entries = append(r.entries, entry{name: "bin/" + verb, link: "/workload"})
	}
	return r
}

// A recipe is one image.
type recipe struct {
	file                string
	names               []string
	entrypoint, command []string
	environ             []string
	entries             []entry
}

// An entry is one file of the image: a program copied from the build, a text, a link, or with a trailing slash a
// directory.
type entry struct {
	name    string
	mode    int64
	program string
	text    string
	link    string
}

func (e entry) header(size int) *tar.Header {
	h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(size), Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
	switch {
	case e.link != "":
		h.Typeflag = tar.TypeSymlink
		h.Linkname = e.link
		h.Mode = 0o777
	case e.name[len(e.name)-1] == '/':
		h.Typeflag = tar.TypeDir
	}
	return h
}
