// Package containerconfig puts together the requests that have the container runtime make a pod's sandbox and its
// containers.
//
// # Model
//
// A request needs what the specification does not have: variables, mounts, the pod's DNS, the limits of its cgroup,
// the CPUs and devices that are assigned to it. A Builder asks the parts of the agent that know, and has criconfig
// translate the specification and these facts.
//
// # Invariants
//
// A sandbox's configuration comes out the same for every container of the sandbox, because in CRI each request for a
// container repeats it. An error says in upstream's words why there can be no request now; later there may be one.
//
// # What it does not do
//
// It makes no request, and it changes nothing: volumes are set up, groups made and devices allocated before.
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

// Groups knows what the cgroups of pods and containers are to be set to.
type Groups interface {
	// Resources are the container's, in the runtime's form.
	Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources
	// SandboxResources are the pod's, for runtimes that run a machine for each pod.
	SandboxResources(pod *corev1.Pod) (overhead, resources *runtimeapi.LinuxContainerResources)
}

// Volumes knows the files that containers see.
type Volumes interface {
	VolumePath(pod *corev1.Pod, name string) (string, error)
	// Mounts are the container's mounts. The one of its termination message is the last, if it has one.
	Mounts(pod *corev1.Pod, c *corev1.Container, facts volume.ContainerFacts) ([]*runtimeapi.Mount, error)
	// BlockDevices are the container's block volumes.
	BlockDevices(pod *corev1.Pod, c *corev1.Container) ([]*runtimeapi.Device, error)
}

// Assignments knows what is assigned to pods.
type Assignments interface {
	// Note is what the pod's sandbox has to carry of it for the next agent; empty: nothing.
	Note(uid string) string
}

// Users knows which users of the host the users of pods are.
type Users interface {
	// Of returns a pod's user namespace; nil: the host's. It is the same for everything of the pod.
	Of(pod *corev1.Pod) (*runtimeapi.UserNamespace, error)
}

// Devices knows what containers need for their devices.
type Devices interface {
	// Configure adds it to the configuration of a container that is about to be made.
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

// Sandbox is what has to be known of a sandbox next to its pod.
type Sandbox struct {
	Attempt      uint32 // how many sandboxes the pod had before
	CgroupParent string // the pod's cgroup, in the runtime's spelling
	Allocation   string // the pod's allocated resources, noted for the next agent; empty: none that can change
}

// Sandbox describes a pod to the runtime.
func (b Builder) Sandbox(pod *corev1.Pod, s Sandbox) (*runtimeapi.PodSandboxConfig, error) {
	resolver, _, err := b.DNS.DNSConfig(pod) // its warnings become Events once, when the sandbox is made
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

// Run is what has to be known of one run of a container next to the pod.
type Run struct {
	Attempt           uint32 // how many times the container was started before
	Image             criconfig.Image
	PodIPs            []string
	RecursiveReadOnly bool              // the pod's runtime handler can make mounts read-only with everything below them
	Running           map[string]string // ids of the pod's running containers, by name
	// Images are those of the image volumes that the container mounts, by volume, as the runtime names them.
	Images map[string]*runtimeapi.ImageSpec
	// ImageDirectories: the runtime mounts single directories of images.
	ImageDirectories bool
}

// Container describes a run of a container to the runtime.
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
