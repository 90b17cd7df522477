package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/agent/failurelog"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
)

// ownGroupEvery is the interval at which the agent looks whether it is still in the cgroup of kubeletCgroups. It is the
// kubelet's.
const ownGroupEvery = time.Minute

// keepOwnGroup keeps the agent in the cgroup that kubeletCgroups names, until ctx ends. The cgroup is created if it is
// missing, and stays.
func (a *Agent) keepOwnGroup(ctx context.Context) error {
	group := a.o.Config.KubeletCgroups
	if group == "" {
		return nil
	}
	var failures failurelog.Log
	action := "keep the agent in the cgroup of kubeletCgroups"
	for {
		switch moved, err := moveInto(a.groups.tree, group, os.Getpid()); {
		case err != nil:
			failures.Failed(action, err)
		default:
			failures.Succeeded(action)
			if moved {
				slog.Info("kubeletCgroups: the agent was moved", "cgroup", group)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(ownGroupEvery):
		}
	}
}

// moveInto moves process pid into group, unless it is there already. It creates group.
func moveInto(tree *cgroup.Tree, group string, pid int) (moved bool, err error) {
	group = path.Clean("/" + group)
	if in, err := tree.Has(group, pid); in || err != nil {
		return false, err
	}
	if err := tree.Create(group); err != nil {
		return false, err
	}
	if err := tree.Move(group, pid); err != nil {
		return false, fmt.Errorf("%w; on cgroup v2 a group with groups below it takes no process", err)
	}
	return true, nil
}
