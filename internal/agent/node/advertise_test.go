package node

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// TestAdvertisesWhatTheAgentHas: user namespaces are advertised where the runtime, the kernel and the agent have them,
// and what is lacking is in the annotation. Features of the runtime alone are advertised as reported.
func TestAdvertisesWhatTheAgentHas(t *testing.T) {
	for _, can := range []bool{true, false} {
		for _, node := range []bool{true, false} {
			features := &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: can, UserNamespaces: can}
			f := handlersOf([]*runtimeapi.RuntimeHandler{{Features: features}}, node)[0].Features
			if *f.UserNamespaces != (can && node) || *f.RecursiveReadOnlyMounts != can {
				t.Errorf("the runtime can: %t, the node can: %t: advertised user namespaces %t, recursively read-only %t",
					can, node, *f.UserNamespaces, *f.RecursiveReadOnlyMounts)
			}
		}
	}
}

// TestLacksFollowTheRuntime: the annotation says what the runtime of this moment lacks.
func TestLacksFollowTheRuntime(t *testing.T) {
	yes, no := func() bool { return true }, func() bool { return false }
	images := podfields.Abilities{ImageVolumes: true}
	for name, c := range map[string]struct {
		version string
		runtime bool
		kernel  func() bool
		want    podfields.Abilities
	}{
		"an old runtime":      {"1.6.20~ds1", false, yes, podfields.Abilities{}},
		"a new one":           {"2.2.0", true, yes, podfields.Abilities{UserNamespaces: true, ImageVolumes: true}},
		"with an old kernel":  {"2.2.0", true, no, images},
		"with another agent":  {"2.2.0", true, nil, images},
		"with an old program": {"2.2.0", false, yes, images},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, runtime := newServer(), newCRI()
				runtime.release = c.version
				runtime.status.RuntimeHandlers = []*runtimeapi.RuntimeHandler{
					{Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: c.runtime}},
				}
				o := options(t, s, runtime, &recorder{})
				o.UserNamespaces = c.kernel
				_, stop := start(t, o)
				defer stop()
				time.Sleep(time.Minute)
				synctest.Wait()
				node, _ := s.now()
				lacks := strings.Join(podfields.Codes(c.want), ",")
				if got := node.Annotations[translate.AnnotationLacks]; got != lacks {
					t.Errorf("lacks %s, want %s", got, lacks)
				}
				if f := node.Status.RuntimeHandlers[0].Features; *f.UserNamespaces != c.want.UserNamespaces {
					t.Errorf("advertised: %v", *f.UserNamespaces)
				}
			})
		})
	}
}

// TestLacksFollowTheGate: with the feature gates of trust bundles and of pods' certificates on, the annotation does not
// name them, from the first report on; with them off it does.
func TestLacksFollowTheGate(t *testing.T) {
	for _, on := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			o := options(t, s, newCRI(), &recorder{})
			o.TrustBundles, o.PodCertificates = on, on
			_, stop := start(t, o)
			defer stop()
			time.Sleep(time.Minute)
			synctest.Wait()
			node, _ := s.now()
			lacks := strings.Split(node.Annotations[translate.AnnotationLacks], ",")
			for _, code := range []string{"volumes.projected.clusterTrustBundle", "volumes.projected.podCertificate"} {
				if got := slices.Contains(lacks, code); got == on {
					t.Errorf("the gate is on: %t, and the node lacks %v", on, lacks)
				}
			}
		})
	}
}

// TestOthersResourcesAreAllocatable: an extended resource that another component puts into the Node's capacity becomes
// allocatable, with and without device plugins, and disappears from allocatable when its owner removes it.
func TestOthersResourcesAreAllocatable(t *testing.T) {
	for name, plugins := range map[string]Plugins{"no plugins": nil, "plugins": deviceState{devicemanager.NewState()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				c := newCRI()
				r := &recorder{}
				s.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", ResourceVersion: "1"}}
				o := options(t, s, c, r)
				o.Plugins = plugins
				_, stop := start(t, o)
				defer stop()
				time.Sleep(15 * time.Second)
				allocatable := func() string {
					time.Sleep(15 * time.Second)
					synctest.Wait()
					node, _ := s.now()
					q, has := node.Status.Allocatable["example.com/license"]
					if !has {
						return "none"
					}
					return q.String()
				}
				s.edit(func(n *corev1.Node) { n.Status.Capacity["example.com/license"] = *quantity(5) })
				if got := allocatable(); got != "5" {
					t.Errorf("allocatable %s, want 5", got)
				}
				s.edit(func(n *corev1.Node) { n.Status.Capacity["example.com/license"] = *quantity(3) })
				if got := allocatable(); got != "3" {
					t.Errorf("allocatable %s, want 3", got)
				}
				s.edit(func(n *corev1.Node) { delete(n.Status.Capacity, "example.com/license") })
				if got := allocatable(); got != "none" {
					t.Errorf("allocatable %s, want none", got)
				}
				lacks := strings.Join(podfields.Codes(podfields.Abilities{}), ",")
				if node, _ := s.now(); node.Annotations[translate.AnnotationLacks] != lacks {
					t.Errorf("annotations %v", node.Annotations)
				}
			})
		})
	}
}
