//go:build e2e

package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programs are the programs that Build has built, in a directory that is removed after the tests.
var programs struct {
	sync.Mutex
	dir   string
	built map[string]string
}

// Build returns the path of a program for tests, named by its package in the module: test/deviceplugin/plugin. It is
// built once, without the C library, so that guests can run it.
func Build(t *testing.T, name string) string {
	t.Helper()
	path, err := build(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func build(name string) (string, error) {
	programs.Lock()
	defer programs.Unlock()
	if path, ok := programs.built[name]; ok {
		return path, nil
	}
	if programs.dir == "" {
		dir, err := os.MkdirTemp("", "plimsoll-test-")
		if err != nil {
			return "", err
		}
		programs.dir, programs.built = dir, map[string]string{}
	}
	path := filepath.Join(programs.dir, filepath.Base(name))
	command := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/plimsoll-dev/plimsoll/"+name)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	programs.built[name] = path
	return path, nil
}

// removePrograms removes the programs that Build has built.
func removePrograms() error {
	programs.Lock()
	defer programs.Unlock()
	if programs.dir == "" {
		return nil
	}
	err := os.RemoveAll(programs.dir)
	programs.dir, programs.built = "", nil
	if err != nil {
		err = errors.Join(errors.New("remove the tests' programs"), err)
	}
	return err
}
