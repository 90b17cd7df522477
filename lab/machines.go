package lab

import (
	"embed"
	"fmt"
	"path"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/kube/machinefile"
)

//go:embed machines/*.yaml
var readyMade embed.FS

// Names returns the sorted names of the predefined machines.
func Names() []string {
	entries, err := readyMade.ReadDir("machines")
	if err != nil {
		panic(err) // impossible: the files are embedded
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// Describe returns the description of a predefined machine, or that in a machine file, whose path contains a slash or
// ends in .yaml or .json.
func Describe(name string) (machinefile.File, error) {
	if ext := path.Ext(name); strings.Contains(name, "/") || ext == ".yaml" || ext == ".json" {
		return machinefile.Load(name)
	}
	text, err := readyMade.ReadFile("machines/" + name + ".yaml")
	if err != nil {
		return machinefile.File{}, fmt.Errorf("find machine: %q: want one of %s, or the path of a machine file", name,
			strings.Join(Names(), ", "))
	}
	file, err := machinefile.Decode(text)
	if err != nil {
		return file, fmt.Errorf("read machine: %s: %w", name, err)
	}
	return file, nil
}
