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

// TestAdvertisesWhatTheAgentHas: a runtime with user namespaces does not make the node advertise them, since the agent
// does not use them. Features of the runtime alone are advertised as reported.
func TestAdvertisesWhatTheAgentHas(t *testing.T) {
	for _, can := range []bool{true, false} {
		out := handlersOf([]*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: can, UserNamespaces: true}}})
		if f := out[0].Features; f.UserNamespaces == nil || *f.UserNamespaces || f.RecursiveReadOnlyMounts == nil || *f.RecursiveReadOnlyMounts != can {
			t.Errorf("advertised: %+v, recursively read-only %v", f, can)
		}
	}
	if !slices.Contains(podfields.Codes(), "user-namespaces") {
		t.Error("the agent does not say that it has no user namespaces")
	}
}

// TestOthersResourcesAreAllocatable: an extended resource that another component puts into the Node's capacity becomes
// allocatable, with and without device plugins, and disappears from allocatable when its owner removes it.
func TestOthersResourcesAreAllocatable(t *testing.T) {
	for name, plugins := range map[string]Plugins{"no plugins": nil, "plugins": book{devicemanager.NewBook()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c, r := newServer(), newCRI(), &recorder{}
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
				if node, _ := s.now(); node.Annotations[translate.AnnotationLacks] != strings.Join(podfields.Codes(), ",") {
					t.Errorf("annotations %v", node.Annotations)
				}
			})
		})
	}
}
