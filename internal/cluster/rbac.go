package cluster

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/deploy"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

//go:embed rbac.yaml
var rbacManifest string

// fieldManager owns the fields that `up` applies.
const fieldManager = "plimsoll-up"

// installed returns every object that `up` brings, as YAML documents.
func installed() []string {
	return append(strings.Split(rbacManifest, "\n---\n"), strings.Split(deploy.NodeResourceTopology, "\n---\n")...)
}

// install applies what `up` brings. It goes through the raw client: the scheme of internal/kube does not carry these types,
// and applying a manifest needs none.
func install(ctx context.Context, c *kube.Client) error {
	for _, document := range installed() {
		var head metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			return fmt.Errorf("install objects: built-in manifest: %w", err)
		}
		resource := plural(head.Kind)
		err := c.REST(corev1.SchemeGroupVersion).Patch(types.ApplyPatchType).
			AbsPath("/apis", head.APIVersion, resource, head.Name).
			Param("fieldManager", fieldManager).Param("force", "true").
			Body([]byte(document)).Do(ctx).Error()
		if err != nil {
			return fmt.Errorf("install objects: %s %s: %w", head.Kind, head.Name, err)
		}
	}
	return nil
}

// plural is how the API's paths name a kind of ours.
func plural(kind string) string {
	kind = strings.ToLower(kind)
	if stem, ok := strings.CutSuffix(kind, "y"); ok {
		return stem + "ies"
	}
	return kind + "s"
}
