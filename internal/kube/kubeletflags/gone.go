package kubeletflags

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

const (
	byRuntime = "the container runtime's own configuration says this"
	toStderr  = "logs go to standard error, and -v and --logging-format say what is in them"
	remote    = "every runtime is reached at --container-runtime-endpoint"
)

// gone are flags that kubelets before 1.36 had, and what holds now. The kubelet 1.36 does not know them either (a test
// in oracle/ compares). Files of flags that were written for older releases still have them.
var gone = map[string]string{
	"add-dir-header":                         toStderr,
	"allow-privileged":                       "Pod Security and admission plugins of the API server decide",
	"alsologtostderr":                        toStderr,
	"cadvisor-port":                          "usage is served by the node's own port, below /metrics/cadvisor",
	"cloud-config":                           "use --cloud-provider=external; give it to the cloud's controllers",
	"cni-bin-dir":                            byRuntime,
	"cni-cache-dir":                          byRuntime,
	"cni-conf-dir":                           byRuntime,
	"container-runtime":                      remote,
	"docker-endpoint":                        remote,
	"dynamic-config-dir":                     "use --config and --config-dir",
	"experimental-bootstrap-kubeconfig":      "use --bootstrap-kubeconfig",
	"experimental-kernel-memcg-notification": "use --kernel-memcg-notification",
	"image-pull-progress-deadline":           byRuntime,
	"iptables-drop-bit":                      "no packet is marked",
	"iptables-masquerade-bit":                "no packet is marked",
	"keep-terminated-pod-volumes":            "volumes of ended pods are removed",
	"log-backtrace-at":                       toStderr,
	"log-dir":                                toStderr,
	"log-file":                               toStderr,
	"log-file-max-size":                      toStderr,
	"logtostderr":                            toStderr,
	"master-service-namespace":               "the Service kubernetes is in the namespace default",
	"network-plugin":                         byRuntime,
	"network-plugin-mtu":                     byRuntime,
	"non-masquerade-cidr":                    byRuntime,
	"one-output":                             toStderr,
	"pod-infra-container-image":              byRuntime + " (sandbox_image of containerd)",
	"register-schedulable":                   "use --register-with-taints",
	"seccomp-profile-root":                   "profiles are in the directory seccomp in --root-dir",
	"skip-headers":                           toStderr,
	"skip-log-headers":                       toStderr,
	"stderrthreshold":                        toStderr,
}

// Explain adds to the error about an unknown flag that older kubelets had it, and what holds now. It returns any other
// error as it is.
func Explain(err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	if why, was := gone[strings.ReplaceAll(unknown.GetSpecifiedName(), "_", "-")]; was {
		return fmt.Errorf("%w: the kubelet 1.36 has it no more: remove it: %s", err, why)
	}
	return err
}

// Gone returns the names of flags that older kubelets had.
func Gone() []string { return slices.Sorted(maps.Keys(gone)) }
