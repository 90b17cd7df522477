package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	"github.com/plimsoll-dev/plimsoll/internal/agent/names"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// sandboxConfig describes the pod to the runtime. It must come out the same for every container of the sandbox.
func (r *Runner) sandboxConfig(pod *corev1.Pod, attempt uint32, parent string) (*runtimeapi.PodSandboxConfig, error) {
	dns, _, err := r.DNS.DNSConfig(pod) // its warnings are told once, when the sandbox is made
	if err != nil {
		return nil, err
	}
	hostname := ""
	if !pod.Spec.HostNetwork { // else the host's name stays
		if hostname, _, err = names.Of(pod, r.DNS.ClusterDomain); err != nil {
			return nil, err
		}
	}
	overhead, resources := r.Groups.SandboxResources(pod)
	security := securityOf(pod)
	linux := &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent: parent,
		Sysctls:      sysctlsOf(pod),
		Overhead:     overhead,
		Resources:    resources,
		SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions:   namespacesOf(pod),
			Privileged:         anyPrivileged(pod),
			Seccomp:            r.seccompOf(security.SeccompProfile),
			SelinuxOptions:     selinuxOf(security.SELinuxOptions),
			SupplementalGroups: groupsOf(security),
		},
	}
	linux.SecurityContext.SupplementalGroupsPolicy = groupsPolicy(security)
	if security.RunAsUser != nil {
		linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: *security.RunAsUser}
	}
	if security.RunAsGroup != nil && security.RunAsUser != nil { // CRI refuses a group without a user
		linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: *security.RunAsGroup}
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Hostname:     hostname,
		LogDirectory: r.logDir(pod),
		DnsConfig:    dns,
		Labels:       podLabels(pod),
		Annotations:  r.podAnnotations(pod),
		Linux:        linux,
	}
	if !pod.Spec.HostNetwork {
		config.PortMappings = portsOf(pod)
	}
	return config, nil
}

// containerConfig describes a container to the runtime.
func (r *Runner) containerConfig(ctx context.Context, pod *corev1.Pod, c *corev1.Container, a podlife.Action, image imageRef, facts volume.ContainerFacts) (*runtimeapi.ContainerConfig, error) {
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
	command, args := env.CommandLine(c, vars)
	facts.Env = vars
	mounts, err := r.Volumes.Mounts(pod, c, facts)
	if err != nil {
		return nil, bad(err)
	}
	messagePath := ""
	if n := len(mounts); c.TerminationMessagePath != "" && n > 0 {
		messagePath = mounts[n-1].HostPath // the keeper puts it last
	}
	security, err := r.containerSecurity(pod, c, image)
	if err != nil {
		return nil, bad(err)
	}
	config := &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: a.Attempt},
		Image:      &runtimeapi.ImageSpec{Image: image.id, UserSpecifiedImage: c.Image},
		Command:    command,
		Args:       args,
		WorkingDir: c.WorkingDir,
		Envs:       vars,
		Mounts:     mounts,
		Labels: map[string]string{
			labelPodName: pod.Name, labelPodNamespace: pod.Namespace, labelPodUID: string(pod.UID), labelContainerName: c.Name,
		},
		Annotations: map[string]string{
			annotationHash:          hashOf(c),
			annotationFixed:         fixedOf(pod, c),
			annotationRestartCount:  strconv.FormatUint(uint64(a.Attempt), 10),
			annotationMessagePath:   c.TerminationMessagePath,
			annotationMessagePolicy: string(c.TerminationMessagePolicy),
			annotationMessageHost:   messagePath,
			annotationPodGrace:      strconv.FormatInt(int64(specGrace(pod).Seconds()), 10),
		},
		LogPath:    filepath.Join(c.Name, strconv.FormatUint(uint64(a.Attempt), 10)+".log"),
		Stdin:      c.Stdin,
		StdinOnce:  c.StdinOnce,
		Tty:        c.TTY,
		Linux:      &runtimeapi.LinuxContainerConfig{Resources: r.Groups.Resources(pod, c), SecurityContext: security},
		StopSignal: stopSignalOf(c),
	}
	if note := r.Holdings.Note(string(pod.UID)); note != "" {
		config.Annotations[annotationHoldings] = note
	}
	if err := r.Devices.Configure(ctx, string(pod.UID), c.Name, config); err != nil {
		return nil, bad(err)
	}
	return config, nil
}

func podLabels(pod *corev1.Pod) map[string]string {
	labels := make(map[string]string, len(pod.Labels)+3)
	for k, v := range pod.Labels {
		labels[k] = v
	}
	labels[labelPodName], labels[labelPodNamespace], labels[labelPodUID] = pod.Name, pod.Namespace, string(pod.UID)
	return labels
}

// podAnnotations are the pod's, and for the next agent what the pod has of its own. Nobody else can state that.
func (r *Runner) podAnnotations(pod *corev1.Pod) map[string]string {
	annotations := make(map[string]string, len(pod.Annotations)+1)
	for k, v := range pod.Annotations {
		annotations[k] = v
	}
	delete(annotations, annotationHoldings)
	if note := r.Holdings.Note(string(pod.UID)); note != "" {
		annotations[annotationHoldings] = note
	}
	return annotations
}

// hashOf covers what the API lets change in a container of a running pod and what means a new container: its image.
// (Resources change in place.) FNV is enough: it tells versions of one container apart, not adversaries.
func hashOf(c *corev1.Container) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%q %q", c.Name, c.Image)
	return strconv.FormatUint(h.Sum64(), 16)
}

// logDir is the pod's directory of container logs; names in it are API names, which hold no separators.
func (r *Runner) logDir(pod *corev1.Pod) string {
	return filepath.Join(r.LogDir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

func portsOf(pod *corev1.Pod) []*runtimeapi.PortMapping {
	var ports []*runtimeapi.PortMapping
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			protocol := runtimeapi.Protocol_TCP
			switch p.Protocol {
			case corev1.ProtocolUDP:
				protocol = runtimeapi.Protocol_UDP
			case corev1.ProtocolSCTP:
				protocol = runtimeapi.Protocol_SCTP
			}
			ports = append(ports, &runtimeapi.PortMapping{Protocol: protocol, ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP})
		}
	}
	return ports
}

func sysctlsOf(pod *corev1.Pod) map[string]string {
	if pod.Spec.SecurityContext == nil || len(pod.Spec.SecurityContext.Sysctls) == 0 {
		return nil
	}
	all := map[string]string{}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		all[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
	}
	return all
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

func stopSignalOf(c *corev1.Container) runtimeapi.Signal {
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		return runtimeapi.Signal(runtimeapi.Signal_value[string(*c.Lifecycle.StopSignal)])
	}
	return runtimeapi.Signal_RUNTIME_DEFAULT
}

// Bounds of what a container may leave as its last words (upstream: 4096 bytes from the file, 2048 bytes or 80 lines
// from the log).
const (
	terminationMessageMax = 4096
	terminationLogBytes   = 2048
	terminationLogLines   = 80
)

func containerNamed(pod *corev1.Pod, name string) *corev1.Container {
	if pod == nil {
		return nil
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return ephemeral(pod, i)
		}
	}
	return nil
}
