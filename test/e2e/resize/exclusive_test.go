//go:build e2e

package resize

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/test/apart"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// A pod gets an exclusive CPU on cgroup v1. No other container runs on it from the container's first instruction on,
// whichever pods come, go or are resized. An agent that is killed and finds a broken checkpoint changes nothing.
func TestExclusiveCPU(t *testing.T) {
	b := at(t)
	all := b.allowed("")
	if all.Len() < 2 {
		t.Skip("needs two CPUs")
	}
	end := b.watch()
	shared := b.create("shared", container("c", "50m,16Mi", "100m,64Mi", "sleep", "infinity"))
	b.runsOn(shared, "c", all)

	own := b.create("own", container("own", "1,32Mi", "1,32Mi", "sleep", ownSleep), container("beside", "100m,16Mi",
		"100m,16Mi", "sleep", "infinity"))
	mine := b.allowedTo(own, "own")
	rest := all.Minus(mine)
	if mine.Len() != 1 {
		t.Fatalf("a container that asks for one CPU runs on %v", mine)
	}
	b.runsOn(own, "beside", rest)
	b.runsOn(shared, "c", rest)
	b.kernel(own, "own", map[string]int64{"cpu.cfs_quota_us": -1})
	b.kernel(own, "beside", map[string]int64{"cpu.cfs_quota_us": 10000})
	b.kernel(own, "", map[string]int64{"cpu.cfs_quota_us": -1})
	b.published(own, mine, rest)

	// Another pod requests more than is left: its message says how much is free.
	b.rejected("more", fmt.Sprintf("%d", all.Len()), "requested: ", "available: ")

	// When the runtime writes other resources, it does not write an old cpuset, neither to this container nor to the
	// other.
	b.resize("own", "beside", "100m,32Mi", "100m,32Mi")
	b.resized("own", "beside", "100m,32Mi", "100m,32Mi")
	b.resize("shared", "c", "60m,16Mi", "100m,64Mi")
	b.resized("shared", "c", "60m,16Mi", "100m,64Mi")
	b.runsOn(own, "beside", rest)
	b.runsOn(shared, "c", rest)

	was := b.first(own, "own")
	b.killAgent()
	rig.Eventually(t, soon, "the new agent serves", func(ctx context.Context) error { return b.serves(ctx) })
	late := b.create("late", container("c", "50m,16Mi", "100m,64Mi", "sleep", "infinity"))
	b.runsOn(late, "c", rest)
	b.runsOn(shared, "c", rest)
	b.runsOn(own, "own", mine)
	if now := b.first(own, "own"); now != was {
		t.Errorf("restarted: %s, was %s", now, was)
	}
	b.published(own, mine, rest)

	b.delete("own")
	for _, p := range []*corev1.Pod{shared, late} {
		rig.Eventually(t, soon, p.Name+" runs on all CPUs again", func(context.Context) error {
			if has := b.allowedTo(p, "c"); !has.Equal(all) {
				return fmt.Errorf("it runs on %v of %v", has, all)
			}
			return nil
		})
	}
	end()
}

// A node may write its own NodeResourceTopology object and no other: what the scheduler knows about a node must come
// from that node.
func TestTopologyOfOwnNodeOnly(t *testing.T) {
	b := amid(t)
	config := rest.CopyConfig(b.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:other", Groups: []string{"system:nodes",
		"system:authenticated"}}
	other, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects := "/apis/" + topology.GroupVersion.String() + "/" + topology.Resource
	makes := func(ctx context.Context, name string) error {
		body := fmt.Sprintf(`{"apiVersion":%q,"kind":"NodeResourceTopology","metadata":{"name":%q},"zones":[]}`,
			topology.GroupVersion, name)
		return other.CoreV1().RESTClient().Post().AbsPath(objects).Param("dryRun", "All").SetHeader("Content-Type",
			"application/json").Body([]byte(body)).Do(ctx).Error()
	}
	forbidden := func(err error) error {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(),
			"system:node:other may write the NodeResourceTopology of its own node only") {
			return fmt.Errorf("not forbidden: %w", err)
		}
		return nil
	}
	rig.Eventually(t, soon, "a node may not make another's", func(ctx context.Context) error {
		return forbidden(makes(ctx,
			"somebody"))
	})
	if err := makes(t.Context(), "other"); err != nil {
		t.Errorf("a node may not make its own: %v", err)
	}
	// The agent may write its object between the read and the write: then the answer is a conflict, and it is asked again.
	rig.Eventually(t, soon, "a node may not change another's", func(ctx context.Context) error {
		theirs, err := other.CoreV1().RESTClient().Get().AbsPath(objects, b.NodeName).DoRaw(ctx)
		if err != nil {
			return err
		}
		return forbidden(other.CoreV1().RESTClient().Put().AbsPath(objects, b.NodeName).Param("dryRun",
			"All").SetHeader("Content-Type", "application/json").Body(theirs).Do(ctx).Error())
	})
}

// allowed returns the CPUs of a process, this one without a pid.
func (b bench) allowed(pid string) idset.Set {
	b.t.Helper()
	if pid == "" {
		pid = "self"
	}
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		b.t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			cpus, err := idset.Parse(list)
			if err != nil {
				b.t.Fatal(err)
			}
			return cpus
		}
	}
	b.t.Fatalf("/proc/%s/status names no CPUs", pid)
	return idset.Set{}
}

func (b bench) allowedTo(p *corev1.Pod, container string) idset.Set {
	b.t.Helper()
	_, pid, _ := strings.Cut(b.first(p, container), " ")
	return b.allowed(pid)
}

func (b bench) runsOn(p *corev1.Pod, container string, want idset.Set) {
	b.t.Helper()
	if has := b.allowedTo(p, container); !has.Equal(want) {
		b.t.Errorf("%s/%s runs on CPUs %v, want %v", p.Name, container, has, want)
	}
}

// rejected binds a Guaranteed pod to the node without the scheduler, and checks the rejection.
func (b bench) rejected(name, cpu string, texts ...string) {
	b.t.Helper()
	spec := corev1.PodSpec{NodeName: b.NodeName, Containers: []corev1.Container{container("c", cpu+",16Mi", cpu+",16Mi",
		"sleep", "infinity")}}
	if _, err := b.API.CoreV1().Pods(b.ns).Create(b.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: spec}, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	p := b.until(name, "rejected", func(p *corev1.Pod) error {
		if p.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("phase %s", p.Status.Phase)
		}
		return nil
	})
	if p.Status.Reason != "UnexpectedAdmissionError" ||
		!strings.HasPrefix(p.Status.Message,
			"Pod was rejected: Allocate failed due to not enough cpus available to satisfy request") {
		b.t.Errorf("refused as %s: %s", p.Status.Reason, p.Status.Message)
	}
	b.t.Logf("refused: %s", p.Status.Message)
}

// published waits until the node's NodeResourceTopology object says that the pod has those CPUs, and checks what a
// scheduler would find free.
func (b bench) published(p *corev1.Pod, own, shared idset.Set) {
	b.t.Helper()
	rig.Eventually(b.t, soon, "the node's topology is published", func(ctx context.Context) error {
		body, err := b.API.CoreV1().RESTClient().Get().AbsPath("/apis", topology.GroupVersion.String(), topology.Resource,
			b.NodeName).DoRaw(ctx)
		if err != nil {
			return err
		}
		object := &topology.Object{}
		if err := json.Unmarshal(body, object); err != nil {
			return err
		}
		node, err := topology.Decode(object, nil)
		if err != nil {
			return err
		}
		a, known := node.State.Assignment(string(p.UID))
		if !known || !node.State.SharedCPUs().Equal(shared) {
			return fmt.Errorf("it has %+v, shared %v", a, node.State.SharedCPUs())
		}
		for _, h := range a.Containers {
			if h.Container == "own" && h.CPUs.Equal(own) {
				return nil
			}
		}
		return fmt.Errorf("it has %+v", a)
	})
}

// watch checks all the time that no other container may run on the CPUs of a container with exclusive ones, until the
// returned function is called.
func (b bench) watch() (end func()) {
	w := apart.Watch{Root: filepath.Join("/sys/fs/cgroup/cpuset", b.CgroupRoot(), "kubepods"), Mark: ownSleep}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	var watching sync.WaitGroup
	watching.Go(func() {
		looks, overlaps := w.Run(ctx, time.Millisecond, func(text string) { b.t.Error(text) })
		b.t.Logf("looked %d times, %d overlaps", looks, overlaps)
	})
	end = func() {
		cancel()
		watching.Wait()
	}
	b.t.Cleanup(end)
	return end
}

// ownSleep is the argument of the first process of containers with assigned CPUs. No other process has it.
const ownSleep = "86400s"
