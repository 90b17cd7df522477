package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/userns"
	coreuserns "github.com/plimsoll-dev/plimsoll/internal/core/userns"
	"github.com/plimsoll-dev/plimsoll/internal/host/idmap"
)

// prepareUsers finds out which IDs of the host pods with user namespaces may have, and which IDs the present pods have.
// If that fails, pods with hostUsers: false are held, and all others run. The volumes' directories must exist.
func (a *Agent) prepareUsers(ctx context.Context) {
	users, err := a.openUsers(ctx)
	if err != nil {
		slog.Warn("pods with hostUsers: false are held on this node", "err", err)
		users = userns.Lacking(err)
	}
	a.users, a.hasUsers = users, err == nil
}

func (a *Agent) openUsers(ctx context.Context) (*userns.Users, error) {
	pods := filepath.Join(a.o.RootDir, "pods")
	if err := idmap.Check(pods, filepath.Join(a.o.RootDir, "memory")); err != nil {
		return nil, fmt.Errorf("user namespaces are not supported by the kernel: %w", err)
	}
	c := a.o.Config
	config, err := userns.ConfigOfHost(ctx, idsPerPod(c), int(c.MaxPods))
	if err != nil {
		return nil, fmt.Errorf("find IDs for pods with hostUsers: false: %w", err)
	}
	return userns.Open(pods, config)
}

// idsPerPod returns how many IDs a pod with hostUsers: false has. The configuration was validated.
func idsPerPod(c *kubeletconfigv1beta1.KubeletConfiguration) uint32 {
	if c.UserNamespaces != nil && c.UserNamespaces.IDsPerPod != nil {
		return uint32(*c.UserNamespaces.IDsPerPod)
	}
	return coreuserns.Unit
}
