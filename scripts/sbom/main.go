// Command sbom writes a software bill of materials in CycloneDX 1.5 JSON for programs built with Go, from what the
// linker records in every program (debug/buildinfo). So it describes what was built, not what a go.mod would allow.
//
//	sbom bin/plimsoll bin/plimsoll-controlplane > sbom.json
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// A bill is the used part of a CycloneDX document.
type bill struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type dependency struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(programs []string) error {
	b := bill{Format: "CycloneDX", Spec: "1.5", Version: 1, Components: []component{}, Dependencies: []dependency{}}
	known := map[string]bool{}
	for _, path := range programs {
		program, parts, err := read(path)
		if err != nil {
			return fmt.Errorf("read what is in %s: %w", path, err)
		}
		on := []string{}
		for _, part := range parts {
			if on = append(on, part.Ref); !known[part.Ref] {
				known[part.Ref] = true
				b.Components = append(b.Components, part)
			}
		}
		b.Components = append(b.Components, program)
		b.Dependencies = append(b.Dependencies, dependency{Ref: program.Ref, On: on})
	}
	slices.SortFunc(b.Components, func(x, y component) int { return strings.Compare(x.Ref, y.Ref) })
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(b)
}

// read returns a program and its modules. A program that was not built with Go has no modules.
func read(path string) (program component, parts []component, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return component{}, nil, err
	}
	sum := sha256.Sum256(text)
	program = component{
		Type:   "application",
		Ref:    "file:" + path,
		Name:   filepath.Base(path),
		Hashes: []hash{{Algorithm: "SHA-256", Content: hex.EncodeToString(sum[:])}},
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil { // the pause program is written in C, without libraries
		return program, nil, nil
	}
	program.Version = info.Main.Version
	parts = append(parts, module("stdlib", strings.TrimPrefix(info.GoVersion, "go")))
	for _, d := range info.Deps {
		parts = append(parts, moduleOf(d))
	}
	return program, parts, nil
}

// moduleOf returns a module, or the one that replaces it.
func moduleOf(d *debug.Module) component {
	if d.Replace != nil {
		d = d.Replace
	}
	return module(d.Path, d.Version)
}

func module(path, version string) component {
	purl := "pkg:golang/" + path + "@" + version
	return component{Type: "library", Ref: purl, Name: path, Version: version, PURL: purl}
}
