package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/dns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// requests is what translates pods for the runtime.
func (r *Runner) requests() criconfig.Node {
	return criconfig.Node{
		SeccompDir:     filepath.Join(r.RootDir, "seccomp"),
		SeccompDefault: r.SeccompAll,
		MaskedPaths:    r.MaskedPaths,
		LogDir:         r.LogDir,
	}
}

// sandboxConfig describes the pod to the runtime. It must come out the same for every container of the sandbox.
func (r *Runner) sandboxConfig(pod *corev1.Pod, attempt uint32, parent string) (*runtimeapi.PodSandboxConfig, error) {
	resolver, _, err := r.DNS.DNSConfig(pod) // its warnings are told once, when the sandbox is made
	if err != nil {
		return nil, err
	}
	facts := criconfig.SandboxFacts{
		Attempt: attempt, DNS: resolver, CgroupParent: parent, Holdings: r.Holdings.Note(string(pod.UID)), Allocation: noteOf(pod),
	}
	if !pod.Spec.HostNetwork {
		if facts.Hostname, err = dns.Kernel(pod, r.DNS.ClusterDomain); err != nil {
			return nil, err
		}
	}
	facts.Overhead, facts.Resources = r.Groups.SandboxResources(pod)
	return r.requests().Sandbox(pod, facts)
}

// containerConfig describes a container to the runtime. running are the pod's containers by id.
func (r *Runner) containerConfig(ctx context.Context, pod *corev1.Pod, c *corev1.Container, a podlife.Action, image criconfig.Image,
	running map[string]podlife.Container, facts volume.ContainerFacts) (*runtimeapi.ContainerConfig, error) {
	bad := func(err error) error {
		return &failure{"CreateContainerConfigError", "Failed", "Error: ", err}
	}
	vars, err := r.Env.Build(ctx, pod, c, env.Facts{
		PodIPs: facts.PodIPs, HostIPs: r.HostIPs, Allocatable: r.Allocatable(),
		VolumePath: func(name string) (string, error) { return r.Volumes.VolumePath(pod, name) },
	})
	if err != nil {
		return nil, bad(err)
	}
	facts.Env = vars
	mounts, err := r.Volumes.Mounts(pod, c, facts)
	if err != nil {
		return nil, bad(err)
	}
	known := criconfig.ContainerFacts{
		Attempt: a.Attempt, Image: image, Env: vars, Mounts: mounts, Resources: r.Groups.Resources(pod, c),
		Hash: translate.ContainerHash(c), Fixed: translate.FixedResources(pod, c), GraceSeconds: int64(translate.SpecGrace(pod).Seconds()),
		Holdings: r.Holdings.Note(string(pod.UID)), Running: runningByName(running),
	}
	if known.Command, known.Args, err = env.CommandLine(c, vars); err != nil {
		return nil, bad(err)
	}
	if n := len(mounts); c.TerminationMessagePath != "" && n > 0 {
		known.MessageHostPath = mounts[n-1].HostPath // the keeper puts it last
	}
	config, err := r.requests().Container(pod, c, known)
	if err != nil {
		return nil, bad(err)
	}
	if err := r.Devices.Configure(ctx, string(pod.UID), c.Name, config); err != nil {
		return nil, bad(err)
	}
	return config, nil
}

func runningByName(containers map[string]podlife.Container) map[string]string {
	running := map[string]string{}
	for id, c := range containers {
		if c.State == podlife.Running {
			running[c.Name] = id
		}
	}
	return running
}

// runtimeHandler looks up the handler of the pod's RuntimeClass; empty means the runtime's default.
func (r *Runner) runtimeHandler(ctx context.Context, pod *corev1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	name := *pod.Spec.RuntimeClassName
	body, err := r.Client.REST(corev1.SchemeGroupVersion).Get().AbsPath("/apis/node.k8s.io/v1/runtimeclasses", name).
		SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read RuntimeClass %q: %w", name, err)
	}
	var class struct {
		Handler string `json:"handler"`
	}
	if err := json.Unmarshal(body, &class); err != nil {
		return "", fmt.Errorf("read RuntimeClass %q: %w", name, err)
	}
	return class.Handler, nil
}

// Bounds of what a container may leave as its last words (upstream: 4096 bytes from the file, 2048 bytes or 80 lines
// from the log).
const (
	terminationMessageMax = 4096
	terminationLogBytes   = 2048
	terminationLogLines   = 80
)

func containerNamed(pod *corev1.Pod, name string) *corev1.Container {
	return translate.ContainerNamed(pod, name)
}
