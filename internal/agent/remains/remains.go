// Package remains reads what the runtime has of pods that earlier agents or a kubelet started: the annotations of
// sandboxes and containers about assignments, and the running containers. From this a new agent recovers the
// assignments of CPUs, memory and devices, before it knows any pod. The package changes nothing.
package remains

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// askMax bounds each call. Chosen: a runtime that takes longer is assumed to hang.
const askMax = 15 * time.Second

// Pod is what the runtime has of one pod.
type Pod struct {
	UID     types.UID
	Note    string            // annotation of the newest sandbox or container about assignments (agent/numa)
	Ready   bool              // the newest sandbox is ready
	Created int64             // when the newest sandbox was created, in Unix nanoseconds
	Running map[string]string // IDs of running containers, by name
	Devices map[string]string // devicemanager.Annotation of the newest container, by name
	// FromKubelet is the name of a running container that a kubelet created; empty: there is none.
	FromKubelet string
}

// Read lists what the runtime has of each pod.
func Read(ctx context.Context, runtime *cri.Client) ([]Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, askMax)
	defer cancel()
	sandboxes, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	return collect(sandboxes.Items, containers.Containers), nil
}

// collect returns what the runtime has of each pod.
func collect(sandboxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container) []Pod {
	created := map[string]int64{} // when the newest container was created, by pod and name
	byUID := map[types.UID]*Pod{}
	var out []*Pod
	of := func(labels map[string]string) *Pod {
		uid := cri.PodUID(labels)
		if uid == "" {
			return &Pod{Running: map[string]string{}} // not of a pod
		}
		if byUID[uid] == nil {
			byUID[uid] = &Pod{UID: uid, Running: map[string]string{}, Devices: map[string]string{}}
			out = append(out, byUID[uid])
		}
		return byUID[uid]
	}
	for _, s := range sandboxes {
		r := of(s.Labels)
		if s.CreatedAt >= r.Created {
			r.Note = s.Annotations[criconfig.AnnotationAssignment]
			r.Created = s.CreatedAt
			r.Ready = s.State == runtimeapi.PodSandboxState_SANDBOX_READY
		}
	}
	noted := map[types.UID]int64{}
	for _, c := range containers {
		// If an agent died while it started the pod, the next one may have assigned something else to it. The newest
		// container's annotation has what the pod has now.
		if r := of(c.Labels); c.CreatedAt > max(noted[r.UID], r.Created) {
			r.Note = c.Annotations[criconfig.AnnotationAssignment]
			noted[r.UID] = c.CreatedAt
		}
		name := c.Labels[cri.LabelContainerName]
		if key := string(cri.PodUID(c.Labels)) + "/" + name; cri.PodUID(c.Labels) != "" && c.CreatedAt >= created[key] {
			created[key] = c.CreatedAt
			of(c.Labels).Devices[name] = c.Annotations[devicemanager.Annotation]
		}
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			r := of(c.Labels)
			r.Running[name] = c.Id
			if _, ours := c.Annotations[criconfig.AnnotationFixed]; !ours { // each container of an agent has it
				r.FromKubelet = name
			}
		}
	}
	found := make([]Pod, len(out))
	for i, r := range out {
		found[i] = *r
	}
	return found
}
