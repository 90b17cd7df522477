package agent

import (
	"fmt"
	"log/slog"
)

// find finds the cgroup of a container on nodes where the agent makes no cgroups for pods (cgroupsPerQOS: false).
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
	return "", fmt.Errorf("find cgroup of container %q: no cgroup has its ID in its name "+
		"(the agent makes no cgroups for pods: cgroupsPerQOS: false)", id)
}

// counted returns the cgroup from which a container's usage is read; empty if it is not known. group is the pod's
// cgroup.
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
