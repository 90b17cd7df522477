package cluster

import (
	"context"
	_ "embed"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/deploy"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

//go:embed rbac.yaml
var rbacManifest string

// installed returns every object that `up` installs, as YAML documents. Those for hollow nodes are included only if
// there are hollow nodes, those of an add-on only if the instance has it, those for machines that join only if other
// machines can.
func (l layout) installed() ([]string, error) {
	manifests := []string{rbacManifest, deploy.NodeResourceTopology, deploy.Lifecycle}
	if l.o.Hollow > 0 {
		manifests = append(manifests, deploy.Fleet)
	}
	if l.o.has(addonCSI) {
		manifests = append(manifests, deploy.Storage)
	}
	all := documents(manifests...)
	if !l.o.shared() {
		return all, nil
	}
	more, err := l.bootstrapObjects()
	return append(all, more...), err
}

// unwanted returns objects that an earlier `up` with other options may have installed. wasShared: other machines could
// join then. A further server leaves alone what another one has installed.
func (l layout) unwanted(wasShared bool) (all []string, err error) {
	if l.o.further() {
		return nil, nil
	}
	if l.o.Hollow == 0 {
		all = documents(deploy.Fleet)
	}
	if !l.o.has(addonCSI) {
		all = append(all, documents(deploy.Storage)...)
	}
	if l.o.shared() || !wasShared {
		return all, nil
	}
	more, err := l.bootstrapObjects()
	return append(all, more...), err
}

// install applies the objects that `up` installs and deletes those that are no longer wanted.
func (l layout) install(ctx context.Context, c *kube.Client) error {
	objects, err := l.installed()
	if err != nil {
		return err
	}
	if err := l.installDefinitions(ctx, c); err != nil {
		return err
	}
	if err := applyObjects(ctx, c, objects); err != nil {
		return err
	}
	// There are many objects for machines that join, so only one of them is looked for.
	err = c.Get(ctx, kube.ConfigMaps, metav1.NamespaceSystem, settingsName, &corev1.ConfigMap{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("find objects that this instance does not need: %w", err)
	}
	old, err := l.unwanted(err == nil)
	if err != nil {
		return err
	}
	return removeObjects(ctx, c, old)
}
