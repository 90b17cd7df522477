package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// fieldManager is the field manager of the fields that `up` applies.
const fieldManager = "plimsoll-up"

func documents(manifests ...string) (all []string) {
	for _, m := range manifests {
		all = append(all, strings.Split(m, "\n---\n")...)
	}
	return all
}

// applyObjects creates or corrects the objects of YAML documents. It uses the raw client: the scheme of internal/kube
// does not have these types, and applying a manifest does not need them. In a ConfigMap or StorageClass it keeps what
// others have set, for example a user who edited it or made another class the default.
func applyObjects(ctx context.Context, c *kube.Client, documents []string) error {
	for _, document := range documents {
		head, err := headOf(document)
		if err != nil {
			return err
		}
		request := c.REST(corev1.SchemeGroupVersion).Patch(types.ApplyPatchType).AbsPath(pathOf(head)).
			Param("fieldManager", fieldManager).Body([]byte(document))
		users := head.Kind == "ConfigMap" || head.Kind == "StorageClass"
		if !users {
			request.Param("force", "true")
		}
		if err := request.Do(ctx).Error(); err != nil && (!users || !apierrors.IsConflict(err)) {
			return fmt.Errorf("install objects: %s %s: %w", head.Kind, head.Name, err)
		}
	}
	return nil
}

// removeObjects deletes the objects of YAML documents, if they exist.
func removeObjects(ctx context.Context, c *kube.Client, documents []string) error {
	for _, document := range documents {
		head, err := headOf(document)
		if err != nil {
			return err
		}
		err = c.REST(corev1.SchemeGroupVersion).Delete().AbsPath(pathOf(head)).Do(ctx).Error()
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

// pathOf returns the path of an object in the API.
func pathOf(head metav1.PartialObjectMetadata) string {
	path := "/apis/" + head.APIVersion
	if !strings.Contains(head.APIVersion, "/") {
		path = "/api/" + head.APIVersion
	}
	if head.Namespace != "" {
		path += "/namespaces/" + head.Namespace
	}
	return path + "/" + plural(head.Kind) + "/" + head.Name
}

// plural returns the name of a kind in API paths.
func plural(kind string) string {
	kind = strings.ToLower(kind)
	if stem, ok := strings.CutSuffix(kind, "y"); ok {
		return stem + "ies"
	}
	if strings.HasSuffix(kind, "s") {
		return kind + "es"
	}
	return kind + "s"
}

// A podAddon is an add-on that runs as a Deployment of its name in kube-system.
type podAddon struct {
	name     string
	manifest string // YAML documents with words in capitals, which fill replaces
	fill     func(layout) (*strings.Replacer, error)
	archive  string // of its image, in the image directory
	awaited  bool   // `up` waits for it: pods need it as soon as they run
}

var podAddons = []podAddon{
	{name: addonDNS, manifest: dnsManifest, fill: layout.fillDNS, archive: image.CoreDNSFile, awaited: true},
	// `up` does not wait for it: it is ready after its first two measurements, 15 s apart (the project's default).
	{name: addonMetrics, manifest: metricsManifest, fill: layout.fillMetrics, archive: image.MetricsServerFile},
}

// objects returns the add-on's objects as YAML documents.
func (a podAddon) objects(l layout) ([]string, error) {
	words, err := a.fill(l)
	if err != nil {
		return nil, err
	}
	return documents(words.Replace(a.manifest)), nil
}

// podAddons returns the add-ons that the instance has and that run as pods.
func (o *Options) podAddons() (has []podAddon) {
	for _, a := range podAddons {
		if o.has(a.name) {
			has = append(has, a)
		}
	}
	return has
}

// installAddons applies the objects of add-ons that run as pods, and deletes those of add-ons that are left out.
func (c *cluster) installAddons(ctx context.Context, client *kube.Client) error {
	if err := installSnapshotClass(ctx, client, c.o); err != nil {
		return err
	}
	for _, a := range podAddons {
		if !c.o.has(a.name) {
			if err := removeObjects(ctx, client, documents(a.manifest)); err != nil {
				return err
			}
			continue
		}
		objects, err := a.objects(c.layout)
		if err != nil {
			return err
		}
		if err := applyObjects(ctx, client, objects); err != nil {
			return err
		}
	}
	return nil
}

// addonsTimeout bounds the wait of `up` for add-ons that run as pods (chosen; with images that are loaded already it
// takes two to three seconds on two cores). An add-on that is late or cannot start is no reason to fail: the cluster
// can be used without it.
const addonsTimeout = 30 * time.Second

// startAddons installs the add-ons that run as pods and waits for them.
func (c *cluster) startAddons(ctx context.Context, client *kube.Client) error {
	ctx, cancel := context.WithTimeoutCause(ctx, addonsTimeout, fmt.Errorf("not within %s", addonsTimeout))
	defer cancel()
	c.addonsLack = true
	ready := func(ctx context.Context) error {
		if c.addonsLack {
			if err := c.installAddons(ctx, client); err != nil {
				return err
			}
			c.addonsLack = false
		}
		if c.o.NoControllerManager || c.o.NoScheduler {
			return nil // without kube-controller-manager nothing creates its pods
		}
		for _, a := range c.o.podAddons() {
			if !a.awaited {
				continue
			}
			if err := deploymentReady(ctx, client, a.name); err != nil {
				return fmt.Errorf("add-on %s: %w", a.name, err)
			}
		}
		return c.dnsAnswers(ctx)
	}
	var names []string
	for _, a := range c.o.podAddons() {
		if a.awaited {
			names = append(names, a.name)
		}
	}
	wait := func() (string, error) {
		err := c.await(ctx, "add-ons", ready, childAPIServer)
		if err == nil || errors.Is(context.Cause(ctx), context.Canceled) {
			return strings.Join(names, " "), err
		}
		c.logger.Warn("add-ons are late", "err", err)
		return "late: " + err.Error(), nil
	}
	if len(names) == 0 {
		_, err := wait()
		return err
	}
	return progress.Step(c.sink, "add-ons", wait)
}

// retryAddons installs add-ons whose installation has failed so far.
func (c *cluster) retryAddons(ctx context.Context) {
	if !c.addonsLack {
		return
	}
	client, err := c.client(whoLauncher)
	if err == nil {
		err = c.installAddons(ctx, client)
	}
	if err != nil {
		c.logger.Warn("install add-ons", "err", err)
		return
	}
	c.addonsLack = false
}

// deploymentReady returns nil if the Deployment of an add-on has a ready pod of its newest version; otherwise the
// reason why not.
func deploymentReady(ctx context.Context, client *kube.Client, name string) error {
	path := "/apis/apps/v1/namespaces/" + metav1.NamespaceSystem + "/deployments/" + name
	text, err := client.REST(corev1.SchemeGroupVersion).Get().AbsPath(path).SetHeader("Accept",
		runtime.ContentTypeJSON).DoRaw(ctx)
	if err != nil {
		return err
	}
	d := appsv1.Deployment{}
	if err := json.Unmarshal(text, &d); err != nil {
		return fmt.Errorf("read Deployment %s: %w", name, err)
	}
	if d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
		return nil // a user has scaled it to zero
	}
	switch {
	case d.Status.ObservedGeneration < d.Generation, d.Status.UpdatedReplicas == 0:
		return errors.New("its pods are not created yet")
	case d.Status.AvailableReplicas == 0:
		return errors.New("no pod of it is ready")
	}
	return nil
}
