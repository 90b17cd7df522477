package containerruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// podFacts are the properties of a pod sandbox that a teardown needs.
type podFacts struct {
	id, name   string
	containers []runningContainer
}

type runningContainer struct {
	id    string
	grace time.Duration
}

// removePods stops and removes the selected pods in parallel, because most of the time passes in termination grace
// periods.
func removePods(ctx context.Context, client *cri.Client, want func(podFacts) bool) error {
	ctx, cancel := context.WithTimeout(ctx, stopGraceMax+removeMax)
	defer cancel()
	pods, err := listPods(ctx, client)
	if err != nil {
		return err
	}
	failures := make([]error, len(pods))
	var wait sync.WaitGroup
	for n, pod := range pods {
		if !want(pod) {
			continue
		}
		wait.Go(func() {
			if err := removePod(ctx, client, pod); err != nil {
				failures[n] = fmt.Errorf("remove pod %s (sandbox %s): %w", pod.name, pod.id, err)
			}
		})
	}
	wait.Wait()
	return errors.Join(failures...)
}

func listPods(ctx context.Context, client *cri.Client) ([]podFacts, error) {
	sandboxes, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	running := map[string][]runningContainer{}
	for _, c := range containers.Containers {
		running[c.PodSandboxId] = append(running[c.PodSandboxId], runningContainer{c.Id, graceOf(c.Annotations)})
	}
	var pods []podFacts
	for _, s := range sandboxes.Items {
		pods = append(pods, podFacts{
			id:         s.Id,
			name:       s.GetMetadata().GetNamespace() + "/" + s.GetMetadata().GetName(),
			containers: running[s.Id],
		})
	}
	return pods, nil
}

// graceOf returns how long a container may take to stop: its pod's termination grace period, but at most stopGraceMax,
// which is also the default.
func graceOf(annotations map[string]string) time.Duration {
	seconds, err := strconv.ParseInt(annotations[cri.AnnotationPodGracePeriod], 10, 64)
	if err != nil || seconds < 0 || seconds > int64(stopGraceMax/time.Second) {
		return stopGraceMax
	}
	return time.Duration(seconds) * time.Second
}

func removePod(ctx context.Context, client *cri.Client, pod podFacts) error {
	var wait sync.WaitGroup
	failures := make([]error, len(pod.containers))
	for n, c := range pod.containers {
		wait.Go(func() {
			_, failures[n] = client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.id,
				Timeout: int64(c.grace / time.Second)})
		})
	}
	wait.Wait()
	// A container that did not stop is killed with its sandbox; only the sandbox's result counts.
	if err := removeSandbox(ctx, client, pod.id); err != nil {
		return errors.Join(append(failures, err)...)
	}
	return nil
}

// removeSandbox retries for startMax. A start that is in progress continues in the runtime even if its client is gone.
// Until it has ended, containerd refuses to remove a container in "starting state".
func removeSandbox(ctx context.Context, client *cri.Client, id string) error {
	started, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	for {
		_, err := client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		if err == nil {
			_, err = client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		}
		if err == nil || !sleep(started, pollPeriod) {
			return err
		}
	}
}

// removeForeignPods removes the pods below the instance's cgroup from a runtime that other programs use too.
func (i *Instance) removeForeignPods(ctx context.Context) error {
	client, err := cri.Dial(i.Endpoint())
	if err != nil {
		return err
	}
	defer client.Close()
	return removePods(ctx, client, func(pod podFacts) bool {
		parent, err := cgroupParent(ctx, client, pod.id)
		return err == nil && mount.Within(parent, i.options.CgroupRoot)
	})
}

// cgroupParent returns the cgroup in a sandbox's configuration. Both containerd and CRI-O have that configuration in
// the verbose status, as JSON under "info".
func cgroupParent(ctx context.Context, client *cri.Client, sandbox string) (string, error) {
	answer, err := client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true})
	if err != nil {
		return "", fmt.Errorf("ask for pod sandbox %s: %w", sandbox, err)
	}
	var info struct {
		Config struct {
			Linux struct {
				CgroupParent string `json:"cgroup_parent"`
			} `json:"linux"`
		} `json:"config"`
	}
	if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil {
		return "", fmt.Errorf("read verbose status of pod sandbox %s: %w", sandbox, err)
	}
	return info.Config.Linux.CgroupParent, nil
}
