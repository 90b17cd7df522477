package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/volumestats"
)

// bind adds a claim that is bound to a volume.
func (r *rig) bind(claim string, source corev1.PersistentVolumeSource) (*corev1.PersistentVolumeClaim,
	*corev1.PersistentVolume) {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: claim, UID: types.UID("uid-" + claim)},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" +
			claim}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + claim},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source,
			ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: claim, UID: c.UID}},
	}
	r.put("claim/"+claim, c)
	r.put("volume/"+v.Name, v)
	return c, v
}

func claimVolume(name, claim string) corev1.Volume {
	return volumeOf(name,
		corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}})
}

// series are what a registry has, by name and labels' values.
func series(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			key := f.GetName()
			for _, l := range m.Label {
				key += " " + l.GetValue()
			}
			out[key] = m.GetGauge().GetValue()
		}
	}
	return out
}

// onNode is the affinity of a volume that is on one node.
func onNode(name string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key:      "kubernetes.io/hostname",
			Operator: "In",
			Values:   []string{name},
		}}}},
	}}
}

// TestClaims mounts volumes of kind hostPath and local behind claims, gives local ones to the pod's group, and leaves
// them in place when the pod is removed.
func TestClaims(t *testing.T) {
	r := newRig(t)
	host := t.TempDir()
	local := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, nil, 0o600))
	must(t, os.WriteFile(filepath.Join(local, "data"), nil, 0o600))
	must(t, os.Mkdir(filepath.Join(local, "sub"), 0o700))
	must(t, os.Symlink(outside, filepath.Join(local, "link")))
	r.bind("host", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}})
	_, v := r.bind("local", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: local}})
	v.Spec.NodeAffinity = onNode("here")
	pod := podWith("u1", claimVolume("h", "host"), claimVolume("l", "local"))
	pod.Namespace = "default"
	pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	group := int64(4711)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "h", MountPath: "/h"}, {Name: "l", MountPath: "/l"}}
	took := map[string]int{}
	r.Took = func(plugin, operation string, _ time.Duration, err error) {
		took[fmt.Sprint(plugin, " ", operation, " ", err)]++
	}
	r.Usage = volumestats.New(t.Context(), volumestats.Options{Period: time.Hour})
	r.mustSetUp(pod)
	r.mustSetUp(pod) // nothing is set up again
	if want := map[string]int{"kubernetes.io/host-path volume_mount <nil>": 1,
		"kubernetes.io/local-volume volume_mount <nil>": 1}; !maps.Equal(took, want) {
		t.Errorf("measured %v, want %v", took, want)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.Manager, r.Usage)
	r.Usage.Demand(t.Context())
	r.eventually("both claims have numbers", func() bool { return len(r.Usage.Of("u1")) == 2 })
	if series := series(t,
		registry); series["volume_manager_total_volumes kubernetes.io/local-volume actual_state_of_world"] != 1 ||
		series["kubelet_volume_stats_capacity_bytes default local"] < 1 ||
		series["kubelet_volume_stats_inodes default host"] < 1 {
		t.Errorf("series: %v", series)
	}
	mounts, err := r.Mounts(pod, &pod.Spec.Containers[0], ContainerFacts{})
	if err != nil {
		t.Fatal(err)
	}
	if mounts[0].HostPath != host || !mounts[0].Readonly || mounts[1].HostPath != local || mounts[1].Readonly {
		t.Errorf("mounts %v", mounts)
	}
	expectGroups(t, map[string]groupOfFile{
		local:                        {4711, os.ModeDir | os.ModeSetgid | 0o770},
		filepath.Join(local, "data"): {4711, 0o660},
		filepath.Join(local, "sub"):  {4711, os.ModeDir | os.ModeSetgid | 0o770},
		outside:                      {0, 0o600},
		host:                         {0, os.ModeDir},
	})
	r.tearDownClean("u1")
	if left := r.Usage.Of("u1"); left != nil {
		t.Errorf("the removed pod has numbers: %v", left)
	}
	if _, err := os.Stat(filepath.Join(local, "data")); err != nil {
		t.Errorf("the volume's content went with the pod: %v", err)
	}
}

// groupOfFile is a file's group, and bits that its mode must have.
type groupOfFile struct {
	gid  uint32
	mode os.FileMode
}

func expectGroups(t *testing.T, files map[string]groupOfFile) {
	t.Helper()
	for path, want := range files {
		st, err := os.Stat(path)
		must(t, err)
		if gid := st.Sys().(*syscall.Stat_t).Gid; gid != want.gid || st.Mode()&want.mode != want.mode {
			t.Errorf("%s: group %d, mode %v, want %d, %v", path, gid, st.Mode(), want.gid, want.mode)
		}
	}
}

// TestClaimsRefused: the error names why a claim cannot be used.
func TestClaimsRefused(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	local := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}}
	r.bind("csi", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com"}})
	r.bind("iscsi", corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{}})
	r.bind("moved", corev1.PersistentVolumeSource{Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "c"}})
	c, _ := r.bind("unbound", local)
	c.Status.Phase = corev1.ClaimPending
	_, v := r.bind("others", local)
	v.Spec.ClaimRef.UID = "another"
	_, v = r.bind("device", local)
	block := corev1.PersistentVolumeBlock
	v.Spec.VolumeMode = &block
	_, v = r.bind("away", local)
	v.Spec.NodeAffinity = onNode("there")
	r.bind("gone", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: filepath.Join(dir, "none")}})
	r.bind("up", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir + "/../x"}})
	r.bind("u1-own", local)
	for name, want := range map[string]string{
		"missing": "failed to fetch PVC from API server",
		"csi":     "persistent volume pv-csi is of kind csi (driver d.example.com)",
		"moved":   "persistent volume pv-moved is of kind csi (driver cinder.csi.openstack.org)",
		"iscsi":   "pv-iscsi is of kind iscsi: use a volume of the CSI driver",
		"unbound": "PVC is not bound", "others": "PV pv-others is not bound to PVC default/others",
		"device": "has volumeMode Block, but is",
		"away":   "cannot be reached from this node", "gone": "does not exist", "up": "must not contain '..'",
		"own": "was not created for pod default/u1",
	} {
		pod := podWith("u1", claimVolume("v", name))
		pod.Namespace, pod.Name = "default", "u1"
		if name == "own" {
			pod.Spec.Volumes[0] = volumeOf("own", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})
		}
		err := r.SetUp(context.Background(), pod)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if unsupported := errors.As(err, new(*UnsupportedError)); unsupported != slices.Contains([]string{"csi", "iscsi",
			"moved"}, name) {
			t.Errorf("%s: for good: %v", name, unsupported)
		}
	}
}
