package node

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// deviceState implements Plugins with a devicemanager.State.
type deviceState struct{ *devicemanager.State }

func (s deviceState) Amounts() ([]devicemanager.Amount, bool) { return s.State.Amounts(), s.Recalled() }
func (s deviceState) Recall(published []devicemanager.Amount) {
	s.State.Recall(unit.Instant(1), published)
}

// TestDevicesArePublished takes over Nodes with resources of a plugin, of another component, and of a kubelet, and
// follows a plugin.
func TestDevicesArePublished(t *testing.T) {
	for _, c := range []struct {
		name        string
		version     string
		annotations map[string]string
		before      string // gpu, nic and license after the start, allocatable/capacity
	}{
		{"ours", "v1.36.3+plimsoll.1", map[string]string{annotationPlugins: "example.com/gpu,example.com/nic"},
			"0/2 0/3 5/5"},
		{"ours without plugins", "v1.36.3+plimsoll.1", nil, "2/2 3/3 5/5"},
		{"a kubelet's", "v1.36.3", nil, "0/2 0/3 0/5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				runtime := newCRI()
				r := &recorder{}
				had := corev1.ResourceList{"example.com/gpu": *quantity(2), "example.com/nic": *quantity(3),
					"example.com/license": *quantity(5)}
				s.node = &corev1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", ResourceVersion: "1", Annotations: c.annotations},
					Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: c.version}, Capacity: had,
						Allocatable: had.DeepCopy()},
				}
				b := deviceState{devicemanager.NewState()}
				o := options(t, s, runtime, r)
				o.Plugins = b
				k, stop := start(t, o)
				defer stop()
				published := func() string {
					time.Sleep(20 * time.Second)
					synctest.Wait()
					node, _ := s.now()
					out := ""
					for _, name := range []corev1.ResourceName{"example.com/gpu", "example.com/nic", "example.com/license"} {
						capacity, allocatable := node.Status.Capacity[name], node.Status.Allocatable[name]
						out += fmt.Sprintf("%s/%s ", allocatable.String(), capacity.String())
					}
					return out[:len(out)-1]
				}
				if got := published(); got != c.before {
					t.Errorf("after the start %s, want %s", got, c.before)
				}
				b.Connected("example.com/gpu", devicemanager.Options{})
				b.Listed("example.com/gpu", []numa.Device{{ID: "a", Healthy: true}, {ID: "b"}})
				k.Changed()
				want := "1/2" + c.before[len("0/2"):]
				if got := published(); got != want {
					t.Errorf("with a plugin %s, want %s", got, want)
				}
				node, _ := s.now()
				if c.name == "ours without plugins" && node.Annotations[annotationPlugins] != "example.com/gpu" {
					t.Errorf("annotations %v", node.Annotations)
				}
			})
		})
	}
}
