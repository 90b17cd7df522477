package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/csidrivers"
	"github.com/plimsoll-dev/plimsoll/internal/agent/csivolume"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volumestats"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/selinux"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// prepareCSIVolumes prepares the volumes of CSI drivers. It finds the volumes that an earlier agent left before the
// Node's status is reported for the first time: no volume that pods have may be missing in VolumesInUse.
func (a *Agent) prepareCSIVolumes(ctx context.Context) error {
	if err := os.MkdirAll(a.o.RootDir, 0o750); err != nil {
		return fmt.Errorf("prepare volumes: %w", err)
	}
	root, err := filepath.EvalSymlinks(a.o.RootDir)
	if err != nil {
		return fmt.Errorf("prepare volumes: %w", err)
	}
	a.csiVolumes, err = csivolume.New(ctx, csivolume.Options{
		RootDir:  root,
		Node:     a.o.NodeName,
		Drivers:  registered{a.drivers},
		API:      csiAPI{client: a.client, drivers: a.drivers},
		Label:    fileLabel(),
		Share:    volume.ShareWithGroup,
		Recorder: a.recorder,
		Changed:  func(uid types.UID) { a.pods.Retry(uid) },
		InUse:    func() { a.node.Changed() },
		Took:     a.metrics.ObserveStorage,
	})
	if err != nil {
		return err
	}
	a.volumeStats = volumestats.New(ctx, volumestats.Options{
		Period:   a.o.Config.VolumeStatsAggPeriod.Duration,
		Health:   kubeletconfig.ShowsVolumeHealth(a.o.Config),
		Recorder: a.recorder,
		Measured: a.volumeMeasured,
	})
	a.metrics.Registry.MustRegister(a.volumeStats)
	return nil
}

// fileLabel returns what translates SELinux options of containers to the label of their files; nil: the kernel has no
// SELinux.
func fileLabel() func(*corev1.SELinuxOptions) (string, error) {
	if !selinux.Enabled() {
		return nil
	}
	return func(o *corev1.SELinuxOptions) (string, error) {
		return selinux.FileLabel(o.User, o.Role, o.Type, o.Level)
	}
}

// registered are the registered drivers, for csivolume.
type registered struct{ *csidrivers.Registry }

func (r registered) Driver(name string) (csivolume.Driver, bool) {
	d, ok := r.Registry.Driver(name)
	if !ok {
		return csivolume.Driver{}, false
	}
	can := map[csipb.NodeServiceCapability_RPC_Type]bool{}
	for number := range csipb.NodeServiceCapability_RPC_Type_name {
		if c := csipb.NodeServiceCapability_RPC_Type(number); d.Can(c) {
			can[c] = true
		}
	}
	can[csivolume.CapabilityCondition] = d.Can(csivolume.CapabilityCondition)
	return csivolume.Driver{Node: d.Client, Can: can, Identity: d.Client.Identity, Said: d.Said}, true
}

// csiAPI implements csivolume.API with the API client and the watched CSIDriver objects.
type csiAPI struct {
	client  *kube.Client
	drivers *csidrivers.Registry
}

// CSIDriver returns the watched object. Before the objects were listed for the first time, it asks the API server.
func (d csiAPI) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	if object, ok := d.drivers.Object(name); ok {
		return object, nil
	}
	if d.drivers.ObjectsKnown() {
		return nil, apierrors.NewNotFound(storagev1.Resource("csidrivers"), name)
	}
	out := &storagev1.CSIDriver{}
	return out, d.client.Get(ctx, kube.CSIDrivers, "", name, out)
}

func (d csiAPI) Attachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	out := &storagev1.VolumeAttachment{}
	return out, d.client.Get(ctx, kube.VolumeAttachments, "", name, out)
}

func (d csiAPI) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	out := &corev1.Secret{}
	return out, d.client.Get(ctx, kube.Secrets, namespace, name, out)
}

func (d csiAPI) Token(
	ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	return volume.KubeTokens(d.client)(ctx, namespace, account, request)
}

// Sizes returns the size of a claim's volume, and the size that the claim's status reports. The volume is read only if
// the claim requests more than its status reports.
func (d csiAPI) Sizes(
	ctx context.Context, claim types.NamespacedName, name string, cached bool,
) (size, has unit.Bytes, err error) {
	get := d.client.Get
	if cached {
		get = d.client.GetCached
	}
	c := &corev1.PersistentVolumeClaim{}
	if err := get(ctx, kube.VolumeClaims, claim.Namespace, claim.Name, c); err != nil {
		return 0, 0, err
	}
	present := c.Status.Capacity[corev1.ResourceStorage]
	has = unit.Bytes(present.Value())
	if wanted := c.Spec.Resources.Requests[corev1.ResourceStorage]; wanted.Cmp(present) <= 0 {
		return has, has, nil
	}
	v := &corev1.PersistentVolume{}
	if err := get(ctx, kube.Volumes, "", name, v); err != nil {
		return 0, 0, err
	}
	of := v.Spec.Capacity[corev1.ResourceStorage]
	return unit.Bytes(of.Value()), has, nil
}

// Grown writes the new size of a volume into its claim's status, and removes what the status says of an expansion.
func (d csiAPI) Grown(ctx context.Context, namespace, claim string, size unit.Bytes) error {
	status := map[string]any{
		"capacity":                  map[string]string{"storage": size.String()},
		"allocatedResourceStatuses": map[string]any{"storage": nil},
		"conditions": []map[string]any{
			{"type": corev1.PersistentVolumeClaimFileSystemResizePending, "$patch": "delete"},
			{"type": corev1.PersistentVolumeClaimResizing, "$patch": "delete"},
		},
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	out := &corev1.PersistentVolumeClaim{}
	return d.client.Patch(ctx, kube.VolumeClaims, namespace, claim, types.StrategicMergePatchType, patch, out, "status")
}
