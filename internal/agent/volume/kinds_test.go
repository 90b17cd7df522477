package volume

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
)

// claimKinds are the kinds whose volume is another object: claims.go mounts it.
var claimKinds = []string{"persistentVolumeClaim", "ephemeral"}

// eachKind calls check with a volume of every kind of the API, its source being empty.
func eachKind(check func(name string, v *corev1.Volume)) {
	sources := reflect.TypeFor[corev1.VolumeSource]()
	for i := range sources.NumField() {
		v := volumeOf("v", corev1.VolumeSource{})
		field := reflect.ValueOf(&v.VolumeSource).Elem().Field(i)
		field.Set(reflect.New(field.Type().Elem()))
		name, _, _ := strings.Cut(sources.Field(i).Tag.Get("json"), ",")
		check(name, &v)
	}
}

// TestEveryKindIsMountedOrHeld: a kind that is neither would be mounted as something else, or fail only when its pod
// starts. One that is both would never be mounted.
func TestEveryKindIsMountedOrHeld(t *testing.T) {
	eachKind(func(name string, v *corev1.Volume) {
		if got := nameOfKind(v); got != name {
			t.Errorf("%s is called %s", name, got)
		}
		pod := podWith("u1", *v)
		held := podfields.Holds(pod, podfields.Abilities{ImageVolumes: true, CSIVolumes: true, NFS: true}) != nil
		_, mounted := kindOf(v)
		switch isClaim := slices.Contains(claimKinds, name); {
		case isClaim && (mounted || held):
			t.Errorf("%s: a claim, and yet mounted %v, held %v", name, mounted, held)
		case !isClaim && mounted == held:
			t.Errorf("%s: mounted %v, held %v, want one of them: see kindNamed, and holds of podfields", name, mounted, held)
		}
	})
}

// TestEveryKindIsWhole: a mounted kind is written by the agent or by containers, in a place of its own, and is in the
// pod on which the tests of crashes and of hostile names work.
func TestEveryKindIsWhole(t *testing.T) {
	k := &Manager{pods: "/state/pods", memory: "/state/memory"}
	used := map[string]string{}
	sampled := map[string]bool{}
	for _, v := range everyKind("u1").Spec.Volumes {
		sampled[nameOfKind(&v)] = true
	}
	eachKind(func(name string, v *corev1.Volume) {
		kind, mounted := kindOf(v)
		if !mounted {
			return
		}
		if (kind.render == nil) == (kind.prepare == nil) {
			t.Errorf("%s: want render or prepare", name)
		}
		if csiTranslator.IsInlineMigratable(v) {
			return // as csi
		}
		switch name {
		case "hostPath", "image", "csi", "nfs":
			return // it is where its author says, where the runtime puts it, or in agent/csivolume, with such tests there
		}
		if !sampled[name] {
			t.Errorf("%s: everyKind has no volume of this kind", name)
		}
		at := k.pathOf(&podState{}, "u1", v)
		dir := filepath.Base(filepath.Dir(at))
		if other, taken := used[dir]; taken || !strings.HasPrefix(dir, "kubernetes.io~") || filepath.Base(at) != "v" {
			t.Errorf("%s is at %s (directory of: %q)", name, at, other)
		}
		used[dir] = name
	})
	if len(used) < 5 {
		t.Errorf("only %d kinds have directories", len(used))
	}
}
