package agent

import (
	"fmt"
	"log/slog"
)

// find finds the group of a container where pods have no groups of ours.
func (g *groups) find(id string) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if group, ok := g.found[id]; ok {
		return group, nil
	}
	var err error
	if g.found, err = g.tree.Containers(); err != nil {
		return "", err
	}
	if group, ok := g.found[id]; ok {
		return group, nil
	}
	return "", fmt.Errorf("find cgroup of container %q: none is named for it, and pods have none of ours (cgroupsPerQOS: false)", id)
}

// counted names the group that the usage of a container is read from; empty if none is known. group is its pod's.
func (g *groups) counted(group, runtime, id string) string {
	switch {
	case !g.unmanaged && group != "":
		return g.layout.Container(group, runtime, id)
	case g.unmanaged:
		found, err := g.find(id)
		if err != nil {
			slog.Debug("usage of a container not read", "id", id, "err", err)
		}
		return found
	}
	return ""
}
