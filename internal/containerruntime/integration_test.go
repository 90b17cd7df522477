package containerruntime

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"strings"
	"testing"
)

// TestPodOnOwnInstance takes one instance through its whole life with a real containerd: prepare, start, images, a pod
// with network on runc and on crun, exec, teardown; and compares the machine before and after.
func TestPodOnOwnInstance(t *testing.T) {
	for _, oci := range []string{"runc", "crun"} {
		t.Run(oci, func(t *testing.T) {
			if why := crunRefusal("/sys/fs/cgroup"); oci == "crun" && why != "" {
				t.Skip(why)
			}
			r := startTestInstance(t, newTestInstance(t, Options{OCIRuntime: oci}))
			pod := r.pod(t, "one")
			id := r.container(t, pod, "web", "http", "--port", "8080")
			if got := r.exec(t, id, "cat", "/etc/passwd"); !strings.HasPrefix(got, "root:x:0:0") {
				t.Errorf("cat in the container answered %q", got)
			}
			t.Log(r.podIP(t, pod), r.exec(t, id, "/workload", "get", "http://"+r.podIP(t, pod)+":8080/"))
			t.Log(r.notes)
			r.client.StopPodSandbox(testContext(t), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
			r.client.RemovePodSandbox(testContext(t), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
		})
	}
}
