package cluster

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/bootstrap"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// nodeToken is the file with the token of local nodes that have no certificate yet.
func (l layout) nodeToken() string { return l.run("nodes.token") }

// tokenSigned returns nil if the ConfigMap cluster-info is signed with the token of local nodes, by which they
// recognize the cluster, or if there is no token.
func (c *cluster) tokenSigned(ctx context.Context, client *kube.Client) error {
	text, err := os.ReadFile(c.nodeToken())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return bootstrap.Signed(ctx, client, string(bytes.TrimSpace(text)))
}

// keepToken makes or renews the token of local nodes while one of them needs it to join, and deletes it otherwise.
func (c *cluster) keepToken(ctx context.Context, client *kube.Client) error {
	needed, err := c.tokenNeeded()
	if err != nil {
		return err
	}
	path := c.nodeToken()
	if !needed {
		return c.dropToken(ctx, client)
	}
	if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) < localTokenLife/2 {
		return nil
	}
	token, err := bootstrap.CreateToken(ctx, client, localTokenLife, "nodes of this machine (plimsoll up --nodes)")
	if err != nil {
		return err
	}
	return durable.Write(path, []byte(token+"\n"))
}

// dropToken deletes the token of local nodes, if there is one.
func (c *cluster) dropToken(ctx context.Context, client *kube.Client) error {
	text, err := os.ReadFile(c.nodeToken())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = bootstrap.ForgetToken(ctx, client, string(bytes.TrimSpace(text)))
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return os.Remove(c.nodeToken())
}

// tokenNeeded reports whether a local node has no valid client certificate. With one, it can request the next one
// itself.
func (c *cluster) tokenNeeded() (bool, error) {
	text, err := c.keptAuthority()
	if err != nil {
		return false, err
	}
	authority, err := bootstrap.ParseAuthority(text)
	if err != nil {
		return false, err
	}
	for _, n := range c.localNodes() {
		identity, _ := layout{n.o}.identities()
		if why, _ := identity.Due(authority, time.Now()); why != "" && why != bootstrap.ExpiresSoon {
			return true, nil
		}
	}
	return false, nil
}
