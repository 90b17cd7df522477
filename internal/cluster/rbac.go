package cluster

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/deploy"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

//go:embed rbac.yaml
var rbacManifest string

// fieldManager is the field manager of the fields that `up` applies.
const fieldManager = "plimsoll-up"

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

func documents(manifests ...string) (all []string) {
	for _, m := range manifests {
		all = append(all, strings.Split(m, "\n---\n")...)
	}
	return all
}

// install applies the objects that `up` installs and deletes those that are no longer wanted. It uses the raw client:
// the scheme of internal/kube does not have these types, and applying a manifest does not need them.
func install(ctx context.Context, c *kube.Client, o Options) error {
	for _, document := range o.installed() {
		head, err := headOf(document)
		if err != nil {
			return err
		}
		err = c.REST(corev1.SchemeGroupVersion).Patch(types.ApplyPatchType).
			AbsPath("/apis", head.APIVersion, plural(head.Kind), head.Name).
			Param("fieldManager", fieldManager).Param("force", "true").
			Body([]byte(document)).Do(ctx).Error()
		if err != nil {
			return fmt.Errorf("install objects: %s %s: %w", head.Kind, head.Name, err)
		}
	}
	for _, document := range o.unwanted() {
		head, err := headOf(document)
		if err != nil {
			return err
		}
		err = c.REST(corev1.SchemeGroupVersion).Delete().AbsPath("/apis", head.APIVersion, plural(head.Kind), head.Name).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove objects that this instance does not need: %s %s: %w", head.Kind, head.Name, err)
		}
	}
	return nil
}

func headOf(document string) (head metav1.PartialObjectMetadata, err error) {
	if err := yaml.Unmarshal([]byte(document), &head); err != nil {
		return head, fmt.Errorf("install objects: built-in manifest: %w", err)
	}
	return head, nil
}

// plural returns the name of a kind in API paths.
func plural(kind string) string {
	kind = strings.ToLower(kind)
	if stem, ok := strings.CutSuffix(kind, "y"); ok {
		return stem + "ies"
	}
	return kind + "s"
}
