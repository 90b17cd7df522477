package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// suits returns the check whether a pod can run on this system at all. The kernel's capabilities are read once, as in
// the kubelet. The runtime's are asked for when a pod needs to know them, since the runtime may have been replaced by
// another release.
func (a *Agent) suits(ctx context.Context) (func(*corev1.Pod) *pods.Rejection, error) {
	sysctls, err := admission.AllowSysctls(a.o.Config.AllowedUnsafeSysctls, a.machine.Identity.KernelVersion)
	if err != nil {
		return nil, fmt.Errorf("read kubelet configuration: allowedUnsafeSysctls: %w", err)
	}
	system := admission.System{OS: runtime.GOOS, AppArmor: hasAppArmor(appArmorEnabled), Sysctls: sysctls}
	return func(pod *corev1.Pod) *pods.Rejection {
		return suited(pod, system, func() (bool, error) { return a.strictGroups(ctx) })
	}, nil
}

// suited checks one pod.
func suited(pod *corev1.Pod, system admission.System, strictGroups func() (bool, error)) *pods.Rejection {
	needs := translate.AdmissionNeeds(pod)
	if needs.StrictGroups {
		can, err := strictGroups()
		if err != nil {
			rejection := numa.Unexpected("the container runtime does not report its features: " + err.Error())
			rejection.Waiting = true
			return pods.RejectionOf(rejection)
		}
		system.StrictGroups = can
	}
	if r := admission.Suits(needs, system); r != nil {
		return &pods.Rejection{Reason: r.Reason, Message: r.Message}
	}
	return nil
}

// appArmorEnabled is the file where the kernel reports whether AppArmor is on (Y or N). Without AppArmor it does not
// exist.
const appArmorEnabled = "/sys/module/apparmor/parameters/enabled"

func hasAppArmor(path string) bool {
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		slog.Warn("AppArmor counts as absent", "err", err)
	}
	return strings.HasPrefix(string(text), "Y")
}

// strictGroups asks the runtime whether it supports supplementalGroupsPolicy: Strict, which leaves out groups that only
// the image's /etc/group names.
func (a *Agent) strictGroups(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	status, err := a.runtime.Status(ctx, &runtimeapi.StatusRequest{})
	return status.GetFeatures().GetSupplementalGroupsPolicy(), err
}
