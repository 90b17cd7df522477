package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// containerID matches a container ID of containerd or CRI-O: 64 hexadecimal digits in the last element of the group's
// path: ID, cri-containerd-ID.scope, crio-ID.scope.
var containerID = regexp.MustCompile(`(?:^|[^0-9a-f])([0-9a-f]{64})(?:[^0-9a-f]|$)`)

// monitorPrefix is the prefix of the group of CRI-O's monitor process for a container, whose name has the container's
// ID too.
const monitorPrefix = "crio-conmon-"

// Containers returns the groups of containers by their IDs, wherever runtimes have put them. Groups that a container
// makes below its own are not searched. On v1 the hierarchy of the memory controller is searched.
func (t *Tree) Containers() (map[string]string, error) {
	root := t.hierarchies[0].dir
	if h := t.of["memory"]; h != nil {
		root = h.dir
	}
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil // removed since its parent was read
		case err != nil || !d.IsDir():
			return err
		}
		match := containerID.FindStringSubmatch(d.Name())
		if match == nil {
			return nil
		}
		if !strings.HasPrefix(d.Name(), monitorPrefix) {
			found[match[1]] = strings.TrimPrefix(path, root)
		}
		return filepath.SkipDir
	})
	if err != nil {
		return nil, fmt.Errorf("find containers' cgroups: %w", err)
	}
	return found, nil
}
