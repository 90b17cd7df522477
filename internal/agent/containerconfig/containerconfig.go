// Package containerconfig builds the requests with which the container runtime creates a pod's sandbox and its
// containers.
//
// # Model
//
// A request needs more than the specification: variables, mounts, the pod's DNS, the limits of its cgroup, the CPUs and
// devices that are assigned to it. A Builder asks other parts of the agent for these facts, and has criconfig translate
// them together with the specification.
//
// # Invariants
//
// A sandbox's configuration is the same for every container of the sandbox, because in CRI each request for a container
// repeats it. An error says in upstream's words why the request cannot be built now; a later try may succeed.
//
// # What it does not do
//
// It sends no request, and it changes nothing: the caller has set up volumes, created cgroups and allocated devices.
package containerconfig

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/dns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubelethash"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Groups knows the desired values of the cgroups of pods and containers.
type Groups interface {
	// Resources returns the container's resources.
	Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources
	// SandboxResources returns the pod's resources, for runtimes that start a virtual machine for each pod.
	SandboxResources(pod *corev1.Pod) (overhead, resources *runtimeapi.LinuxContainerResources)
}

// Volumes knows the files that containers see.
type Volumes interface {
	VolumePath(pod *corev1.Pod, name string) (string, error)
	// Mounts returns the container's mounts. If it has a termination log, that is the last one.
	Mounts(pod *corev1.Pod, c *corev1.Container, facts volume.ContainerFacts) ([]*runtimeapi.Mount, error)
	// BlockDevices returns the container's block volumes.
	BlockDevices(pod *corev1.Pod, c *corev1.Container) ([]*runtimeapi.Device, error)
}

// Assignments knows what is assigned to pods.
type Assignments interface {
	// Note returns what the sandbox's annotation records of the pod's assignment for the next agent; empty: nothing.
	Note(uid string) string
}

// Users knows the user namespaces of pods.
type Users interface {
	// Of returns a pod's user namespace; nil: the host's. It is the same for everything of the pod.
	Of(pod *corev1.Pod) (*runtimeapi.UserNamespace, error)
}

// Devices knows what containers need for their devices.
type Devices interface {
	// Configure adds that to the configuration with which a container is created.
	Configure(ctx context.Context, uid, container string, config *runtimeapi.ContainerConfig) error
}

// Builder builds the requests of one node. All fields must be set.
type Builder struct {
	Node        criconfig.Node
	HostIPs     []string                   // addresses of the node
	Allocatable func() corev1.ResourceList // of the node
	DNS         dns.Resolver
	Env         *env.Builder
	Volumes     Volumes
	Groups      Groups
	Assignments Assignments
	Users       Users
	Devices     Devices
}

// Sandbox has the inputs of a sandbox's configuration other than its pod.
type Sandbox struct {
	Attempt      uint32 // how many sandboxes the pod had before
	CgroupParent string // the pod's cgroup, in the runtime's spelling
	Allocation   string // the pod's allocated resources, recorded for the next agent; empty: none that can change
}

// Sandbox returns the configuration of a pod's sandbox.
func (b Builder) Sandbox(pod *corev1.Pod, s Sandbox) (*runtimeapi.PodSandboxConfig, error) {
	resolver, _, err := b.DNS.DNSConfig(pod) // the caller records its warnings once, when the sandbox is created
	if err != nil {
		return nil, err
	}
	facts := criconfig.SandboxFacts{
		Attempt:      s.Attempt,
		DNS:          resolver,
		CgroupParent: s.CgroupParent,
		Assignment:   b.Assignments.Note(string(pod.UID)),
		Allocation:   s.Allocation,
	}
	if facts.Users, err = b.Users.Of(pod); err != nil {
		return nil, err
	}
	if !pod.Spec.HostNetwork {
		if facts.Hostname, err = dns.Kernel(pod, b.DNS.ClusterDomain); err != nil {
			return nil, err
		}
	}
	facts.Overhead, facts.Resources = b.Groups.SandboxResources(pod)
	return b.Node.Sandbox(pod, facts)
}

// Run has the inputs of the configuration of one run of a container other than the pod.
type Run struct {
	Attempt           uint32 // how many times the container was started before
	Image             criconfig.Image
	PodIPs            []string
	RecursiveReadOnly bool              // the pod's runtime handler supports recursive read-only mounts
	Running           map[string]string // IDs of the pod's running containers, by name
	// Images are the images of the container's image volumes, by volume, as the runtime names them.
	Images map[string]*runtimeapi.ImageSpec
	// ImageDirectories means that the runtime can mount single directories of images.
	ImageDirectories bool
}

// Container returns the configuration of a run of a container.
func (b Builder) Container(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container, run Run,
) (*runtimeapi.ContainerConfig, error) {
	vars, err := b.Env.Build(ctx, pod, c, env.Facts{
		PodIPs:      run.PodIPs,
		HostIPs:     b.HostIPs,
		Allocatable: b.Allocatable(),
		VolumePath:  func(name string) (string, error) { return b.Volumes.VolumePath(pod, name) },
	})
	if err != nil {
		return nil, err
	}
	mounts, err := b.Volumes.Mounts(pod, c, volume.ContainerFacts{
		Attempt:           run.Attempt,
		PodIPs:            run.PodIPs,
		RecursiveReadOnly: run.RecursiveReadOnly,
		Images:            run.Images,
		ImageDirectories:  run.ImageDirectories,
		Env:               vars,
	})
	if err != nil {
		return nil, err
	}
	facts := criconfig.ContainerFacts{
		Attempt:      run.Attempt,
		Image:        run.Image,
		Env:          vars,
		Mounts:       mounts,
		Resources:    b.Groups.Resources(pod, c),
		Hash:         kubelethash.Container(c),
		Fixed:        translate.FixedResources(pod, c),
		GraceSeconds: int64(translate.SpecGrace(pod).Seconds()),
		Assignment:   b.Assignments.Note(string(pod.UID)),
		Running:      run.Running,
	}
	if facts.Users, err = b.Users.Of(pod); err != nil {
		return nil, err
	}
	if facts.Command, facts.Args, err = env.CommandLine(c, vars); err != nil {
		return nil, err
	}
	if n := len(mounts); c.TerminationMessagePath != "" && n > 0 {
		facts.MessageHostPath = mounts[n-1].HostPath
	}
	config, err := b.Node.Container(pod, c, facts)
	if err != nil {
		return nil, err
	}
	volumes, err := b.Volumes.BlockDevices(pod, c)
	if err != nil {
		return nil, err
	}
	config.Devices = append(config.Devices, volumes...)
	if err := b.Devices.Configure(ctx, string(pod.UID), c.Name, config); err != nil {
		return nil, err
	}
	return config, nil
}
