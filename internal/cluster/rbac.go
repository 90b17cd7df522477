package cluster

import (
	"context"
	_ "embed"

	"github.com/plimsoll-dev/plimsoll/deploy"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

//go:embed rbac.yaml
var rbacManifest string

// installed returns every object that `up` installs, as YAML documents. Those for hollow nodes are included only if
// there are hollow nodes.
func (o Options) installed() []string {
	manifests := []string{rbacManifest, deploy.NodeResourceTopology, deploy.Lifecycle}
	if o.Hollow > 0 {
		manifests = append(manifests, deploy.Fleet)
	}
	return documents(manifests...)
}

// unwanted returns objects that an `up` with other options installed.
func (o Options) unwanted() []string {
	if o.Hollow > 0 {
		return nil
	}
	return documents(deploy.Fleet)
}

// install applies the objects that `up` installs and deletes those that are no longer wanted.
func install(ctx context.Context, c *kube.Client, o Options) error {
	if err := applyObjects(ctx, c, o.installed()); err != nil {
		return err
	}
	return removeObjects(ctx, c, o.unwanted())
}
