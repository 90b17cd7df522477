package remains

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// TestFromKubelet: a container without this agent's annotations was created by a kubelet. Only containers that run
// count.
func TestFromKubelet(t *testing.T) {
	const running, exited = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	byAgent := map[string]string{criconfig.AnnotationFixed: "", cri.AnnotationHash: "1f"}
	byKubelet := map[string]string{cri.AnnotationHash: "1f"}
	for _, c := range []struct {
		what        string
		annotations map[string]string
		state       runtimeapi.ContainerState
		uid, want   string
	}{
		{"an agent's", byAgent, running, "u", ""},
		{"a kubelet's", byKubelet, running, "u", "app"},
		{"a kubelet's that has ended", byKubelet, exited, "u", ""},
		{"one of no pod", nil, running, "", ""},
	} {
		labels := map[string]string{cri.LabelPodUID: c.uid, cri.LabelContainerName: "app"}
		sandbox := &runtimeapi.PodSandbox{
			Labels: map[string]string{cri.LabelPodUID: "u"}, State: runtimeapi.PodSandboxState_SANDBOX_READY,
		}
		container := &runtimeapi.Container{Id: "c", Labels: labels, Annotations: c.annotations, State: c.state, CreatedAt: 1}
		got := collect([]*runtimeapi.PodSandbox{sandbox}, []*runtimeapi.Container{container})
		if len(got) != 1 || got[0].UID != "u" || got[0].FromKubelet != c.want {
			t.Errorf("%s: %+v, want FromKubelet %q of pod u", c.what, got, c.want)
		}
	}
}
