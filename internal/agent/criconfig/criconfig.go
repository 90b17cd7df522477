// Package criconfig translates a pod into CRI requests: the configuration of its sandbox (RunPodSandbox) and of each of
// its containers (CreateContainer).
//
// It only translates: the same pod and the same facts give the same request. It reads no file and makes no call. What
// has to be looked up first (variables, mounts, DNS, the image's user, the cgroup, resources) is passed in as facts.
// The module oracle compares the results with the kubelet's own.
package criconfig

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// Node is what is the same for every pod of a node.
type Node struct {
	SeccompDir     string // directory of Localhost seccomp profiles, an absolute path
	SeccompDefault bool   // seccompDefault: RuntimeDefault for containers without a profile
	// MaskedPaths are hidden from containers in addition to those that every machine has: the directories of CPUs'
	// thermal throttling, whose counters reveal what other programs do.
	MaskedPaths []string
	LogDir      string // <LogDir>/<namespace>_<name>_<uid>/<container>/<attempt>.log
}

// SandboxFacts are the inputs of a sandbox's configuration other than the pod's specification.
type SandboxFacts struct {
	Attempt      uint32                // how many sandboxes the pod had before
	Hostname     string                // not used for a pod on the host's network
	DNS          *runtimeapi.DNSConfig // contents of the pod's resolv.conf
	CgroupParent string                // the pod's cgroup, in the notation of the cgroup driver
	Overhead     *runtimeapi.LinuxContainerResources
	Resources    *runtimeapi.LinuxContainerResources
	Assignment   string // what is assigned to the pod, recorded for the next agent; empty: nothing
	Allocation   string // the pod's allocated resources, recorded for the next agent; empty: none that can change

	Users *runtimeapi.UserNamespace // nil: the host's
}

// Image is what the runtime reports about an image.
type Image struct {
	ID       string // the runtime's ID of it
	UID      *int64 // the image's numeric user, if it has one
	Username string // otherwise the user's name, if it has one
}

// ImageOf converts the runtime's description of an image.
func ImageOf(image *runtimeapi.Image) Image {
	out := Image{ID: image.GetId()}
	if uid := image.GetUid(); uid != nil {
		out.UID = &uid.Value
	} else {
		out.Username = image.GetUsername()
	}
	return out
}

// ContainerFacts are the inputs of a container's configuration other than the pod's specification.
type ContainerFacts struct {
	Attempt         uint32 // how many times the container was started before
	Image           Image
	Command         []string // with variables expanded
	Args            []string
	Env             []*runtimeapi.KeyValue
	Mounts          []*runtimeapi.Mount
	MessageHostPath string // host path of the termination message; empty: none
	Resources       *runtimeapi.LinuxContainerResources
	Hash            string            // kubelethash.Container: distinguishes versions of the container
	Fixed           string            // distinguishes versions of the fields that cannot change without a restart
	GraceSeconds    int64             // of the pod
	Assignment      string            // as in SandboxFacts
	Running         map[string]string // IDs of the pod's running containers by name

	Users *runtimeapi.UserNamespace // that of the sandbox
}

// Sandbox returns the configuration of the pod's sandbox. With the same facts it is the same for every container of the
// sandbox. The error names what cannot be done for the pod, in the kubelet's words.
func (n Node) Sandbox(pod *corev1.Pod, f SandboxFacts) (*runtimeapi.PodSandboxConfig, error) {
	security, err := n.sandboxSecurity(pod, f.Users)
	if err != nil {
		return nil, err
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name:      pod.Name,
			Namespace: pod.Namespace,
			Uid:       string(pod.UID),
			Attempt:   f.Attempt,
		},
		LogDirectory: n.LogDirectory(pod),
		DnsConfig:    f.DNS,
		Labels:       sandboxLabels(pod),
		Annotations:  sandboxAnnotations(pod, f),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    f.CgroupParent,
			Sysctls:         sysctls(pod),
			Overhead:        f.Overhead,
			Resources:       f.Resources,
			SecurityContext: security,
		},
	}
	if !pod.Spec.HostNetwork { // otherwise the host's name stays, and the pod's ports are the host's
		config.Hostname = f.Hostname
		config.PortMappings = ports(pod)
	}
	return config, nil
}

// Container returns the configuration of a container of the pod. The error names what cannot be done for it, in the
// kubelet's words.
func (n Node) Container(pod *corev1.Pod, c *corev1.Container, f ContainerFacts) (*runtimeapi.ContainerConfig, error) {
	security, err := n.containerSecurity(pod, c, f)
	if err != nil {
		return nil, err
	}
	if err := joinTarget(security.NamespaceOptions, pod, c.Name, f.Running); err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: f.Attempt},
		Image:       &runtimeapi.ImageSpec{Image: f.Image.ID, UserSpecifiedImage: c.Image},
		Command:     f.Command,
		Args:        f.Args,
		WorkingDir:  c.WorkingDir,
		Envs:        f.Env,
		Mounts:      mapped(f.Mounts, f.Users),
		Labels:      containerLabels(pod, c),
		Annotations: containerAnnotations(c, f),
		LogPath:     LogPath(c.Name, f.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux:       &runtimeapi.LinuxContainerConfig{Resources: f.Resources, SecurityContext: security},
		StopSignal:  stopSignal(c),
	}, nil
}

// mapped returns the mounts for a pod with a user namespace. They are idmapped: the pod sees all files with the IDs of
// its namespace, so that a file of the host's root belongs to the pod's root.
func mapped(mounts []*runtimeapi.Mount, users *runtimeapi.UserNamespace) []*runtimeapi.Mount {
	for _, m := range mounts {
		m.UidMappings, m.GidMappings = users.GetUids(), users.GetGids()
	}
	return mounts
}

// LogDirectory returns the pod's directory of container logs. The names in it are API names, which contain no
// separators.
func (n Node) LogDirectory(pod *corev1.Pod) string {
	return filepath.Join(n.LogDir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// LogPath returns the path of a container's log below the pod's directory.
func LogPath(container string, attempt uint32) string {
	return filepath.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}

func sandboxLabels(pod *corev1.Pod) map[string]string {
	labels := make(map[string]string, len(pod.Labels)+3)
	maps.Copy(labels, pod.Labels)
	labels[cri.LabelPodName] = pod.Name
	labels[cri.LabelPodNamespace] = pod.Namespace
	labels[cri.LabelPodUID] = string(pod.UID)
	return labels
}

// sandboxAnnotations returns the pod's annotations, and those that record for the next agent what is assigned and
// allocated to the pod. The pod's own values of these two are discarded.
func sandboxAnnotations(pod *corev1.Pod, f SandboxFacts) map[string]string {
	annotations := make(map[string]string, len(pod.Annotations)+2)
	maps.Copy(annotations, pod.Annotations)
	for name, text := range map[string]string{AnnotationAssignment: f.Assignment, AnnotationAllocation: f.Allocation} {
		delete(annotations, name)
		if text != "" {
			annotations[name] = text
		}
	}
	return annotations
}

func containerLabels(pod *corev1.Pod, c *corev1.Container) map[string]string {
	return map[string]string{
		cri.LabelPodName:       pod.Name,
		cri.LabelPodNamespace:  pod.Namespace,
		cri.LabelPodUID:        string(pod.UID),
		cri.LabelContainerName: c.Name,
	}
}

func containerAnnotations(c *corev1.Container, f ContainerFacts) map[string]string {
	annotations := map[string]string{
		cri.AnnotationHash:           f.Hash,
		AnnotationFixed:              f.Fixed,
		cri.AnnotationRestartCount:   strconv.FormatUint(uint64(f.Attempt), 10),
		cri.AnnotationMessagePath:    c.TerminationMessagePath,
		cri.AnnotationMessagePolicy:  string(c.TerminationMessagePolicy),
		AnnotationMessageHost:        f.MessageHostPath,
		cri.AnnotationPodGracePeriod: strconv.FormatInt(f.GraceSeconds, 10),
	}
	if f.Assignment != "" {
		annotations[AnnotationAssignment] = f.Assignment
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		annotations[cri.AnnotationPreStop] = jsonOf(c.Lifecycle.PreStop)
	}
	if len(c.Ports) > 0 {
		annotations[cri.AnnotationPorts] = jsonOf(c.Ports)
	}
	var images []string
	for _, m := range f.Mounts {
		if m.Image != nil {
			images = append(images, m.Image.Image)
		}
	}
	if images != nil {
		annotations[AnnotationMountedImages] = strings.Join(images, ",")
	}
	return annotations
}

// jsonOf encodes a part of a pod. It cannot fail, since the pod was decoded from JSON.
func jsonOf(part any) string {
	text, _ := json.Marshal(part)
	return string(text)
}

func ports(pod *corev1.Pod) []*runtimeapi.PortMapping {
	var mappings []*runtimeapi.PortMapping
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			mappings = append(mappings, &runtimeapi.PortMapping{
				Protocol:      protocol(p.Protocol),
				ContainerPort: p.ContainerPort,
				HostPort:      p.HostPort,
				HostIp:        p.HostIP,
			})
		}
	}
	return mappings
}

func protocol(p corev1.Protocol) runtimeapi.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case corev1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	}
	return runtimeapi.Protocol_TCP
}

func sysctls(pod *corev1.Pod) map[string]string {
	if pod.Spec.SecurityContext == nil || len(pod.Spec.SecurityContext.Sysctls) == 0 {
		return nil
	}
	all := map[string]string{}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		all[admission.NormalSysctl(s.Name)] = s.Value
	}
	return all
}

// stopSignal returns the signal in the CRI's spelling: SIGRTMINPLUS1 for SIGRTMIN+1.
func stopSignal(c *corev1.Container) runtimeapi.Signal {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return runtimeapi.Signal_RUNTIME_DEFAULT
	}
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(*c.Lifecycle.StopSignal))
	return runtimeapi.Signal(runtimeapi.Signal_value[name])
}
