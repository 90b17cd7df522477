package node

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestVolumesInUse: volumes that pods use are reported when they change, what the status says is passed on, and the
// Node asks the controller manager to attach volumes.
func TestVolumesInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCRI()
		r := &recorder{}
		o := options(t, s, c, r)
		var mu sync.Mutex
		inUse := []corev1.UniqueVolumeName{"kubernetes.io/csi/d^1"}
		var attached []corev1.AttachedVolume
		o.VolumesInUse = func([]corev1.UniqueVolumeName) []corev1.UniqueVolumeName {
			mu.Lock()
			defer mu.Unlock()
			return inUse
		}
		o.Received = func(node *corev1.Node) {
			status := &node.Status
			mu.Lock()
			defer mu.Unlock()
			attached = status.VolumesAttached
		}
		k, stop := start(t, o)
		defer stop()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		node, _ := s.now()
		if got := node.Status.VolumesInUse; !slices.Equal(got, inUse) || node.Annotations[annotationAttach] != "true" {
			t.Errorf("in use %v, annotations %v", got, node.Annotations)
		}
		mu.Lock()
		inUse = append(inUse, "kubernetes.io/csi/d^2")
		mu.Unlock()
		k.Changed()
		s.edit(func(n *corev1.Node) { n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: inUse[1]}} })
		time.Sleep(time.Second)
		synctest.Wait()
		if node, _ := s.now(); !slices.Equal(node.Status.VolumesInUse, inUse) {
			t.Errorf("in use %v, want %v", node.Status.VolumesInUse, inUse)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(attached) != 1 || attached[0].Name != "kubernetes.io/csi/d^2" {
			t.Errorf("told of attached volumes %v", attached)
		}
	})
}
