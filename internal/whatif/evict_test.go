package whatif

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// FuzzEvict: for each Summary that can be read there is a result, and the critical pod is not evicted.
func FuzzEvict(f *testing.F) {
	const pods = `apiVersion: v1
kind: Pod
metadata: {name: a, uid: u}
spec: {containers: [{name: c, image: x, resources: {limits: {ephemeral-storage: 1Gi}}}], volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: kube-system}
spec: {priority: 2000000000, containers: [{name: c, image: x}]}
`
	cost.Attack(f,
		[]byte(`{"node":{"memory":{"availableBytes":1,"workingSetBytes":18446744073709551615}},"pods":[{"podRef":{"uid":"u"},"memory":{"workingSetBytes":5},"volume":[{"name":"v","usedBytes":9999999}]}]}`))
	cost.Attack(f,
		[]byte(`{"node":{"fs":{"availableBytes":0,"capacityBytes":100,"inodes":0,"inodesFree":0},"runtime":{"imageFs":{}}},"pods":[{"podRef":{"name":"b","namespace":"kube-system"},"containers":[{"name":"c","rootfs":{"usedBytes":7}}]}]}`))
	cost.Attack(f, []byte(`{"node":{"rlimit":{"maxpid":-1,"curproc":9223372036854775807}},"pods":[{}]}`))
	objects, err := manifests.Parse([]byte(pods))
	if err != nil {
		f.Fatal(err)
	}
	c, _, err := kubeletconfig.Parse(nil, "")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		defer cost.Spend(t, len(data))()
		s, err := ParseSummary(data)
		if err != nil {
			return
		}
		out, err := Evict(c, Usage{Summary: s, For: -1}, append([]runtime.Object{}, objects...))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range out.Victims {
			if v != "default/a" {
				t.Fatalf("evicts %s", v)
			}
		}
		if len(out.Table()) == 0 {
			t.Fatal("no table")
		}
	})
}
