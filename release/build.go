package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// build is one run. Files are made in stage, and what users get in results.
type build struct {
	options
	ctx     context.Context
	source  string // absolute
	stage   string
	results string
}

// shells are those for which there is completion, with the place of its file.
var shells = map[string]string{
	"bash": "usr/share/bash-completion/completions/plimsoll",
	"fish": "usr/share/fish/vendor_completions.d/plimsoll.fish",
	"zsh":  "usr/share/zsh/vendor-completions/_plimsoll",
}

// goTool runs the go tool in the repository and returns its output. What a user may have set for it has no influence on
// programs: flags, experiments, levels of instruction sets, C.
func (b build) goTool(env []string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(b.ctx, "go", args...)
	cmd.Dir = b.source
	cmd.Env = slices.Concat(os.Environ(), []string{"CGO_ENABLED=0", "GOFLAGS=", "GOEXPERIMENT=", "GOAMD64=v1",
		"GOARM64=v8.0", "GOWORK=off"}, b.goEnv, env)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go %s: %w: %s%s", strings.Join(args, " "), err, out.Bytes(), problems.Bytes())
	}
	return out.Bytes(), nil
}

// flags are those of the Makefile's target bin/plimsoll, without what git knows: a tag is a version already.
func (b build) flags() []string {
	return []string{"-tags", "grpcnotrace", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -X github.com/plimsoll-dev/plimsoll/internal/version.stamp=" + b.version}
}

// program is where the program of an architecture is, below stage.
func program(arch string) string { return filepath.Join("bin", arch, "plimsoll") }

func (b build) programs() error {
	archs := b.archs
	if !slices.Contains(archs, runtime.GOARCH) {
		archs = append(slices.Clone(archs), runtime.GOARCH) // it writes the completions
	}
	for _, arch := range archs {
		args := slices.Concat([]string{"build"}, b.flags(), []string{"-o", filepath.Join(b.stage, program(arch)),
			"./cmd/plimsoll"})
		if _, err := b.goTool([]string{"GOOS=linux", "GOARCH=" + arch}, args...); err != nil {
			return err
		}
	}
	return nil
}

// manualPages has the test of cmd/plimsoll write them, and compresses them as Debian wants it.
func (b build) manualPages() error {
	pages := filepath.Join(b.stage, "man")
	if err := os.Mkdir(pages, 0o755); err != nil {
		return err
	}
	args := slices.Concat([]string{"test", "-count=1", "-run", "^TestManualPages$"}, b.flags(),
		[]string{"./cmd/plimsoll", "-man", pages, "-man-date", strconv.FormatInt(b.time.Unix(), 10)})
	if _, err := b.goTool(nil, args...); err != nil {
		return err
	}
	files, err := os.ReadDir(pages)
	if err != nil {
		return err
	}
	for _, f := range files {
		to := filepath.Join("usr/share/man/man1", f.Name()+".gz")
		if err := b.compress(filepath.Join(pages, f.Name()), to); err != nil {
			return err
		}
	}
	return nil
}

// root is where the files are that are the same for each architecture.
func (b build) root() string { return filepath.Join(b.stage, "root") }

// write writes a file below root.
func (b build) write(path string, text []byte) error {
	path = filepath.Join(b.root(), path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// compress writes a file below root, compressed, without its name and time.
func (b build) compress(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return b.write(to, out.Bytes())
}

func (b build) completions() error {
	for shell, path := range shells {
		text, err := exec.CommandContext(b.ctx, filepath.Join(b.stage, program(runtime.GOARCH)), "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("completion for %s: %w", shell, err)
		}
		if err := b.write(path, text); err != nil {
			return err
		}
	}
	return nil
}

// texts copies the units, the manifests for clusters, and the documents that Debian wants.
func (b build) texts() error {
	for from, to := range map[string]string{
		"release/units/plimsoll-agent.service":     "usr/lib/systemd/system/plimsoll-agent.service",
		"release/units/plimsoll-scheduler.service": "usr/lib/systemd/system/plimsoll-scheduler.service",
		"release/units/plimsoll-lifecycle.service": "usr/lib/systemd/system/plimsoll-lifecycle.service",
		"deploy/noderesourcetopology.yaml":         "usr/share/plimsoll/noderesourcetopology.yaml",
		"deploy/rbac-explain.yaml":                 "usr/share/plimsoll/rbac-explain.yaml",
		"deploy/rbac-shadow.yaml":                  "usr/share/plimsoll/rbac-shadow.yaml",
		"deploy/rbac-top.yaml":                     "usr/share/plimsoll/rbac-top.yaml",
		"deploy/lifecycle/rbac.yaml":               "usr/share/plimsoll/rbac-lifecycle.yaml",
		"LICENSE":                                  "usr/share/doc/plimsoll/copyright",
	} {
		text, err := os.ReadFile(filepath.Join(b.source, from))
		if err != nil {
			return err
		}
		if err := b.write(to, text); err != nil {
			return err
		}
	}
	return b.compress(filepath.Join(b.source, "CHANGELOG.md"), "usr/share/doc/plimsoll/changelog.gz")
}

// bill writes which modules are in the programs.
func (b build) bill() error {
	tool := filepath.Join(b.stage, "sbom")
	if _, err := b.goTool(nil, "build", "-trimpath", "-o", tool, "./scripts/sbom"); err != nil {
		return err
	}
	var paths []string
	for _, arch := range b.archs {
		paths = append(paths, program(arch))
	}
	cmd := exec.CommandContext(b.ctx, tool, paths...)
	cmd.Dir = b.stage
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("bill of materials: %w", err)
	}
	name := "plimsoll_" + strings.TrimPrefix(b.version, "v") + ".cdx.json"
	return os.WriteFile(filepath.Join(b.results, name), text, 0o644)
}

// checksums writes those of all results, for sha256sum --check.
func (b build) checksums() error {
	files, err := os.ReadDir(b.results)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(b.results, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(text), f.Name())
	}
	return os.WriteFile(filepath.Join(b.results, "SHA256SUMS"), []byte(lines.String()), 0o644)
}
