package csidrivers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	csiplugins "k8s.io/csi-translation-lib/plugins"

	"github.com/plimsoll-dev/plimsoll/internal/core/csinode"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// writeMax bounds one attempt to publish (chosen: five requests).
const writeMax = 20 * time.Second

// annotationNodeIDs is the Node's annotation with the drivers' node IDs, as JSON by driver. Kubernetes' word for it.
const annotationNodeIDs = "csi.volume.kubernetes.io/nodeid"

// migrated are the in-tree volume plugins whose volumes CSI drivers mount on this node: all that the kubelet 1.36
// lists, for schedulers that ask.
var migrated = []string{
	csiplugins.AWSEBSInTreePluginName, csiplugins.AzureDiskInTreePluginName, csiplugins.AzureFileInTreePluginName,
	csiplugins.CinderInTreePluginName, csiplugins.GCEPDInTreePluginName, csiplugins.PortworxVolumePluginName,
	csiplugins.VSphereInTreePluginName,
}

// Run publishes and asks drivers again until ctx ends.
func (r *Registry) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { r.watch.RunWithContext(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		r.mu.Lock()
		now := r.clock.Now()
		d := r.state.Step(now)
		drivers, removed := r.state.Drivers(), r.state.Removed()
		r.mu.Unlock()
		for _, name := range d.Ask {
			running.Go(func() { r.askAgain(ctx, name) })
		}
		if d.Write {
			running.Go(func() { r.write(ctx, drivers, removed) })
		}
		timer.Stop()
		if !d.Wake.IsZero() {
			timer.Reset(max(d.Wake.Sub(now), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-r.news:
		}
	}
}

// askAgain asks a driver about this node once more.
func (r *Registry) askAgain(ctx context.Context, name string) {
	d, ok := r.Driver(name)
	if !ok {
		return // it left, and its questions with it
	}
	info, err := askNode(ctx, d.Client)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.failures.Failed("ask CSI driver about this node", err, "driver", name)
	} else {
		r.failures.Succeeded("ask CSI driver about this node")
	}
	r.mu.Lock()
	if now, ok := r.drivers[name]; ok && err == nil && now.Client == d.Client {
		now.Info = info
		r.drivers[name] = now
	}
	r.state.Asked(r.clock.Now(), name, info, err)
	r.mu.Unlock()
	r.look()
}

// write publishes the drivers once, and reports the outcome.
func (r *Registry) write(ctx context.Context, drivers map[string]csinode.Info, removed []string) {
	bounded, cancel := context.WithTimeout(ctx, writeMax)
	defer cancel()
	err := r.publish(bounded, drivers, removed)
	if ctx.Err() != nil {
		return
	}
	conflict := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, errOther)
	if err != nil && !conflict {
		r.failures.Failed("publish CSI drivers", err, "node", r.o.NodeName)
	} else if err == nil {
		r.failures.Succeeded("publish CSI drivers")
	}
	r.mu.Lock()
	r.state.Written(r.clock.Now(), conflict, err)
	r.mu.Unlock()
	r.look()
}

// errOther means that the CSINode object was another Node's.
var errOther = errors.New("the CSINode object belonged to another Node of this name; it was deleted")

// publish writes what the Node and the CSINode object lack. Drivers whose topology contradicts the Node's labels are
// left out.
func (r *Registry) publish(ctx context.Context, drivers map[string]csinode.Info, removed []string) error {
	node := &corev1.Node{}
	if err := r.o.API.Get(ctx, kube.Nodes, "", r.o.NodeName, node); err != nil {
		return fmt.Errorf("read Node: %w", err)
	}
	drivers = maps.Clone(drivers)
	for name, info := range drivers {
		if why := csinode.Collision(node.Labels, info); why != "" {
			slog.Warn("CSI driver not published", "driver", name, "why", why)
			delete(drivers, name)
		}
	}
	patch, err := patchOf(node, drivers, removed)
	if err != nil {
		return err
	}
	if patch != nil {
		if err := r.o.API.Patch(ctx, kube.Nodes, "", r.o.NodeName, types.StrategicMergePatchType, patch, nil,
			"status"); err != nil {
			return fmt.Errorf("write labels and %s of Node: %w", annotationNodeIDs, err)
		}
	}
	return r.publishCSINode(ctx, node, drivers, removed)
}

// patchOf returns the patch of the Node; nil if it needs no change.
func patchOf(node *corev1.Node, drivers map[string]csinode.Info, removed []string) ([]byte, error) {
	there := map[string]string{}
	text := node.Annotations[annotationNodeIDs]
	if text != "" {
		if err := json.Unmarshal([]byte(text), &there); err != nil {
			return nil, fmt.Errorf("read annotation %s of Node: %.200q: %w: remove the annotation", annotationNodeIDs, text, err)
		}
	}
	type metadata struct {
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]any    `json:"annotations,omitempty"`
	}
	change := metadata{Labels: csinode.MergeLabels(node.Labels, drivers)}
	if ids, changed := csinode.MergeIDs(there, drivers, removed); changed && len(ids) == 0 {
		change.Annotations = map[string]any{annotationNodeIDs: nil} // removes it
	} else if changed {
		ids, err := json.Marshal(ids)
		if err != nil {
			return nil, err
		}
		change.Annotations = map[string]any{annotationNodeIDs: string(ids)}
	}
	if len(change.Labels) == 0 && change.Annotations == nil {
		return nil, nil
	}
	return json.Marshal(map[string]metadata{"metadata": change})
}

// publishCSINode creates or updates the CSINode object.
func (r *Registry) publishCSINode(ctx context.Context, node *corev1.Node, drivers map[string]csinode.Info,
	removed []string) error {
	object := &storagev1.CSINode{}
	err := r.o.API.Get(ctx, kube.CSINodes, "", r.o.NodeName, object)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("read CSINode: %w", err)
	}
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
	if missing {
		object = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: r.o.NodeName,
			OwnerReferences: []metav1.OwnerReference{owner}}}
	} else if !slices.ContainsFunc(object.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == "Node" &&
			o.UID == node.UID
	}) {
		options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(object.UID))}
		if err := r.o.API.Delete(ctx, kube.CSINodes, "", r.o.NodeName, options); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete CSINode of an earlier Node: %w", err)
		}
		return errOther
	}
	annotated := setMigrated(object)
	if missing {
		entries, _ := csinode.Merge(nil, drivers, removed)
		object.Spec.Drivers = driversOf(entries)
		if err := r.o.API.Create(ctx, kube.CSINodes, "", "", object, &storagev1.CSINode{}); err != nil {
			return fmt.Errorf("create CSINode: %w", err)
		}
		return nil
	}
	for range 2 { // the second write adds the entries that the first had to leave out
		entries, changed := csinode.Merge(entriesOf(object), drivers, removed)
		if !changed && !annotated {
			return nil
		}
		object.Spec.Drivers = driversOf(entries)
		written := &storagev1.CSINode{}
		if err := r.o.API.Update(ctx, kube.CSINodes, "", r.o.NodeName, object, written); err != nil {
			return fmt.Errorf("write CSINode: %w", err)
		}
		object, annotated = written, false
	}
	return nil
}

// setMigrated sets the annotation of migrated plugins, and reports whether it was different.
func setMigrated(object *storagev1.CSINode) bool {
	there := strings.Split(object.Annotations[corev1.MigratedPluginsAnnotationKey], ",")
	slices.Sort(there)
	if slices.Equal(there, migrated) {
		return false
	}
	if object.Annotations == nil {
		object.Annotations = map[string]string{}
	}
	object.Annotations[corev1.MigratedPluginsAnnotationKey] = strings.Join(migrated, ",")
	return true
}

func entriesOf(object *storagev1.CSINode) []csinode.Entry {
	var out []csinode.Entry
	for _, d := range object.Spec.Drivers {
		e := csinode.Entry{Name: d.Name, NodeID: d.NodeID, TopologyKeys: slices.Sorted(slices.Values(d.TopologyKeys))}
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			e.Count = *d.Allocatable.Count
		}
		out = append(out, e)
	}
	return out
}

func driversOf(entries []csinode.Entry) []storagev1.CSINodeDriver {
	out := []storagev1.CSINodeDriver{} // the API refuses null
	for _, e := range entries {
		d := storagev1.CSINodeDriver{Name: e.Name, NodeID: e.NodeID, TopologyKeys: e.TopologyKeys}
		if e.Count > 0 {
			d.Allocatable = &storagev1.VolumeNodeResources{Count: &e.Count}
		}
		out = append(out, d)
	}
	return out
}
