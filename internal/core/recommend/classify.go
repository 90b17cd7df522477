package recommend

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// Names of programs, as the kernel shortens them, to 15 characters.
var (
	runtimePrograms = []string{"containerd", "dockerd", "cri-dockerd", "crio", "runc", "crun"}
	// The shim of containerd is shortened to this name.
	perPodPrograms = []string{"containerd-shim", "conmon", "conmonrs"}
	agentPrograms  = []string{"kubelet", "kube-proxy"}
)

// Classify returns which Part a process outside the pods belongs to, from its name and its command line, and whether
// there is one such process for each pod.
func Classify(name string, args []string) (part Part, perPod bool) {
	program := ""
	if len(args) > 0 {
		program = path.Base(args[0])
	}
	switch {
	case slices.Contains(perPodPrograms, name):
		return Runtime, true
	case slices.Contains(runtimePrograms, name):
		return Runtime, false
	case slices.Contains(agentPrograms, name), strings.HasSuffix(program, "kubelet"):
		return Agent, false
	case program == "plimsoll" && len(args) > 1 && args[1] == "agent":
		return Agent, false
	}
	return System, false
}

// podElement matches the name of a pod's group: pod<uid>, or with the systemd driver kubepods-burstable-pod<uid>.slice.
var podElement = regexp.MustCompile(`^(?:kubepods(?:-[a-z]+)?-)?pod([0-9a-fA-F_-]{8,})(?:\.slice)?$`)

// PodsGroup returns the group of all pods in the path of a process's cgroup, and the UID of the pod. pods is "" when
// the process is not below the group of all pods, and pod is "" when it is in no pod's group.
func PodsGroup(group string) (pods, pod string) {
	elements := strings.Split(group, "/")
	at := slices.IndexFunc(elements, func(e string) bool { return e == "kubepods" || e == "kubepods.slice" })
	if at < 0 {
		return "", ""
	}
	for _, e := range elements[at+1:] {
		if found := podElement.FindStringSubmatch(e); found != nil {
			pod = strings.ReplaceAll(found[1], "_", "-")
			break
		}
	}
	return strings.Join(elements[:at+1], "/"), pod
}
