package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// writeVolumes writes a placed pod's volume plan, in its own goroutine. After that, the watches show what becomes of
// the volumes. A provisioner may take minutes; the pod uses no slot of BindsInFlight during that time.
func (m *loop) writeVolumes(ctx context.Context, p placed) {
	ctx = kube.Withdrawable(ctx, p.withdrawn)
	if !p.awaitPatch(ctx) {
		return
	}
	err := kube.ErrNotLeading
	if !kube.IsWithdrawn(ctx) && m.o.Leads() {
		began := time.Now()
		err = m.writePlan(ctx, p.Volumes)
		m.o.Metrics.point("PreBind", p.Pod.Profile, began, err)
	}
	m.submit(ctx, func(now unit.Instant) {
		if kube.IsWithdrawn(ctx) { // nothing was bound, whatever was written
			m.bindEnded(now, p, corescheduler.BindWithdrawn)
			return
		}
		if err != nil {
			m.bindEnded(now, p, corescheduler.BindRefused)
			m.reportBind(p.Decision, corescheduler.BindRefused, fmt.Errorf("binding volumes: %w", err))
			return
		}
		m.binding--
		m.endFlight(p)
		m.placer.VolumesWritten(now, p.Pod.ID)
	})
}

func volumesError(why string) error { return fmt.Errorf("binding volumes: %s", why) }

func (m *loop) writePlan(ctx context.Context, p *corescheduler.VolumePlan) error {
	ctx = kube.As(ctx, throttle.Bind)
	for i := range p.Bind {
		if b := &p.Bind[i]; !b.Done {
			if err := m.api.reserveVolume(ctx, b); err != nil {
				return fmt.Errorf("reserve persistent volume %s for claim %s/%s: %w",
					b.Volume, b.ClaimNamespace, b.ClaimName, err)
			}
		}
	}
	for i := range p.Provision {
		if q := &p.Provision[i]; !q.Done {
			if err := m.api.selectNode(ctx, q); err != nil {
				return fmt.Errorf("select node %s for claim %s/%s: %w", q.Node, q.Namespace, q.Name, err)
			}
		}
	}
	return nil
}

// bindWithVolumes binds the pods whose volumes are bound. Pods whose volumes will not be bound are tried again. The
// pods enter the line of their node only now: a pod that waits minutes for a provisioner must not delay others.
func (m *loop) bindWithVolumes(ctx context.Context) {
	now := m.clock.Now()
	for _, s := range m.placer.VolumeOutcomes(now) {
		m.binding++
		p := placed{Decision: s.Decision, began: s.Since, flight: m.startFlight(s.Decision.Pod.ID)}
		if s.Why != "" {
			m.o.Metrics.volumeErrors.WithLabelValues("bind").Inc()
			m.bindEnded(now, p, corescheduler.BindRefused)
			m.reportBind(s.Decision, corescheduler.BindRefused, volumesError(s.Why))
		} else if m.lines.enter(p) {
			go m.bind(ctx, p)
		}
	}
}

// reserveVolume writes the claim into the volume, if the volume has not changed since the decision. The persistent
// volume controller completes the binding.
func (r remote) reserveVolume(ctx context.Context, b *corescheduler.VolumeBind) error {
	meta := map[string]any{"resourceVersion": b.Version}
	if b.ByController {
		meta["annotations"] = map[string]string{translate.AnnotationBoundByController: "yes"}
	}
	claim := corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim",
		Namespace: b.ClaimNamespace, Name: b.ClaimName, UID: types.UID(b.ClaimUID),
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta, "spec": map[string]any{"claimRef": claim}})
	if err != nil {
		return err
	}
	return r.client.Patch(ctx, kube.Volumes, "", b.Volume, types.MergePatchType, patch, nil)
}

// selectNode writes the selected node into the claim, if the claim has not changed since the decision.
func (r remote) selectNode(ctx context.Context, q *corescheduler.VolumeProvision) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": q.Version, "annotations": map[string]string{translate.AnnotationSelectedNode: q.Node},
	}})
	if err != nil {
		return err
	}
	return r.client.Patch(ctx, kube.VolumeClaims, q.Namespace, q.Name, types.MergePatchType, patch, nil)
}

// storageWatches returns the watches of objects that decide about volumes.
func (m *loop) storageWatches(client *kube.Client) []cache.Controller {
	p := m.placer
	return []cache.Controller{
		follow(m, client, kube.StorageClasses, translate.SchedulerStorageClass, p.StorageClassSeen,
			byName(p.StorageClassGone)),
		follow(m, client, kube.Volumes, translate.SchedulerVolume, p.VolumeSeen, byName(p.VolumeGone)),
		follow(m, client, kube.VolumeClaims, translate.SchedulerClaim, p.ClaimSeen, p.ClaimGone),
		follow(m, client, kube.CSINodes, translate.SchedulerNodeStorage, p.NodeStorageSeen, byName(p.NodeStorageGone)),
		follow(m, client, kube.CSIDrivers, as[*storagev1.CSIDriver], func(now unit.Instant, d *storagev1.CSIDriver) {
			p.DriverSeen(now, d.Name, translate.PublishesCapacities(d))
		}, byName(p.DriverGone)),
		follow(m, client, kube.CSIStorageCapacities, translate.SchedulerCapacity, p.CapacitySeen, p.CapacityGone),
		follow(m, client, kube.VolumeAttachments, translate.SchedulerAttachment,
			p.AttachmentSeen, byName(p.AttachmentGone)),
	}
}
