package oracle

import (
	"context"
	"encoding/json"
	"flag"
	"maps"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	critesting "k8s.io/cri-api/pkg/apis/testing"
	"k8s.io/klog/v2"
	defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/features"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	containertest "k8s.io/kubernetes/pkg/kubelet/container/testing"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"
	kubeletsysctl "k8s.io/kubernetes/pkg/kubelet/sysctl"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	"github.com/plimsoll-dev/plimsoll/internal/host/sysfs"
)

var (
	confinePods = flag.Int("confine.pods", 3_000,
		"random pods that Pod Security admits, half of them at restricted, and as many others at most, whose requests to "+
			"the runtime are judged")
	confineSeed = flag.Uint64("confine.seed", 1, "seed of the random pods")
)

//go:linkname upstreamSandboxConfig k8s.io/kubernetes/pkg/kubelet/kuberuntime.(*kubeGenericRuntimeManager).generatePodSandboxConfig
func upstreamSandboxConfig(manager unsafe.Pointer, ctx context.Context, pod *corev1.Pod,
	attempt uint32) (*runtimeapi.PodSandboxConfig, error)

//go:linkname upstreamContainerConfig k8s.io/kubernetes/pkg/kubelet/kuberuntime.(*kubeGenericRuntimeManager).generateContainerConfig
func upstreamContainerConfig(manager unsafe.Pointer, ctx context.Context, c *corev1.Container, pod *corev1.Pod,
	restartCount int, podIP, imageRef string,
	podIPs []string, target *kubecontainer.ContainerID, volumes kubecontainer.ImageVolumes) (*runtimeapi.ContainerConfig,
	func(), error)

// nodeFacts answers what upstream's runtime manager asks the rest of the kubelet and the runtime. Both sides get these
// facts.
type nodeFacts struct {
	containertest.FakeRuntimeHelper
	critesting.FakeImageService
	image *runtimeapi.Image
}

const (
	factParent   = "/kubepods/podx"
	factHostname = "web"
	factLogs     = "/var/log/pods"
)

var factEnv = []kubecontainer.EnvVar{{Name: "WHO", Value: "me"}, {Name: "ZED", Value: ""}, {Name: "ALPHA", Value: "1"}}

func factDNS() *runtimeapi.DNSConfig {
	return &runtimeapi.DNSConfig{Servers: []string{"192.0.2.10"}, Searches: []string{"cluster.local"},
		Options: []string{"ndots:5"}}
}

func (f *nodeFacts) GetPodDNS(context.Context, *corev1.Pod) (*runtimeapi.DNSConfig, error) {
	return factDNS(), nil
}
func (f *nodeFacts) GetPodCgroupParent(*corev1.Pod) string { return factParent }
func (f *nodeFacts) GeneratePodHostNameAndDomain(klog.Logger, *corev1.Pod) (string, string, error) {
	return factHostname, "", nil
}

func (f *nodeFacts) GenerateRunContainerOptions(context.Context, *corev1.Pod, *corev1.Container, string, []string,
	kubecontainer.ImageVolumes) (*kubecontainer.RunContainerOptions, func(), error) {
	return &kubecontainer.RunContainerOptions{Envs: factEnv}, nil, nil
}

// GetOrCreateUserNamespaceMappings answers as the kubelet's user namespace manager does on a node whose runtime
// supports user namespaces.
func (f *nodeFacts) GetOrCreateUserNamespaceMappings(_ klog.Logger, pod *corev1.Pod,
	_ string) (*runtimeapi.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}, nil
	}
	return factUsers(pod), nil
}

// factUsers returns the id mappings that both sides give a pod with hostUsers: false; nil for other pods.
func factUsers(pod *corev1.Pod) *runtimeapi.UserNamespace {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return nil
	}
	ids := []*runtimeapi.IDMapping{{HostId: 65536, ContainerId: 0, Length: 65536}}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
}

func (f *nodeFacts) ImageStatus(context.Context, *runtimeapi.ImageSpec, bool) (*runtimeapi.ImageStatusResponse, error) {
	return &runtimeapi.ImageStatusResponse{Image: f.image}, nil
}

// confiner is a node for both sides.
type confiner struct {
	t       *testing.T
	manager kuberuntime.KubeGenericRuntime
	facts   *nodeFacts
	node    criconfig.Node
	count   map[string]int // differences by kind
	errors  map[string]int // pods that both sides refuse
}

func newConfiner(t *testing.T, seccompDefault bool) *confiner {
	t.Helper()
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ContainerStopSignals, true)
	c := &confiner{t: t, manager: runtimeManager(t), facts: &nodeFacts{}, count: map[string]int{},
		errors: map[string]int{}}
	c.node = criconfig.Node{SeccompDir: "/var/lib/kubelet/seccomp", SeccompDefault: seccompDefault, LogDir: factLogs,
		MaskedPaths: sysfs.Default.ThermalThrottles()}
	setField(c.manager, "runtimeHelper", c.facts)
	setField(c.manager, "imageService", c.facts)
	setField(c.manager, "osInterface", &containertest.FakeOS{})
	setField(c.manager, "seccompProfileRoot", c.node.SeccompDir)
	setField(c.manager, "seccompDefault", seccompDefault)
	setField(c.manager, "podLogsDirectory", factLogs)
	return c
}

// judge compares all requests for a pod.
func (c *confiner) judge(pod *corev1.Pod, image *runtimeapi.Image) {
	c.facts.image = image
	theirs := pod.DeepCopy()
	kubeletsysctl.ConvertPodSysctlsVariableToDotsSeparator(theirs.Spec.SecurityContext) // as its SyncPod does first
	ours, err := c.node.Sandbox(pod, criconfig.SandboxFacts{
		Attempt: 2, Hostname: factHostname, DNS: factDNS(), CgroupParent: factParent, Users: factUsers(pod),
	})
	want, wantErr := upstreamSandboxConfig(c.pointer(), c.t.Context(), theirs, 2)
	if c.refused("sandbox", err, wantErr) {
		return
	}
	want.Linux.Resources, want.Linux.Overhead = nil, nil // compared in TestContainerValues and TestQoS
	c.compare("sandbox", ours.ProtoReflect(), want.ProtoReflect())

	for i := range pod.Spec.InitContainers {
		c.container(pod, theirs, &pod.Spec.InitContainers[i], "")
	}
	for i := range pod.Spec.Containers {
		c.container(pod, theirs, &pod.Spec.Containers[i], "")
	}
	for i := range pod.Spec.EphemeralContainers {
		e := &pod.Spec.EphemeralContainers[i]
		c.container(pod, theirs, (*corev1.Container)(&e.EphemeralContainerCommon), e.TargetContainerName)
	}
}

func (c *confiner) pointer() unsafe.Pointer { return reflect.ValueOf(c.manager).UnsafePointer() }

// factsOf returns the facts that our side gets about a container.
func (c *confiner) factsOf(pod *corev1.Pod, container *corev1.Container) criconfig.ContainerFacts {
	var vars []*runtimeapi.KeyValue
	for _, v := range factEnv {
		vars = append(vars, &runtimeapi.KeyValue{Key: v.Name, Value: []byte(v.Value)})
	}
	facts := criconfig.ContainerFacts{
		Attempt: 3, Image: criconfig.ImageOf(c.facts.image), Env: vars, Running: map[string]string{"c0": "id-c0",
			"other": "id"},
		Users: factUsers(pod),
	}
	var bad error
	if facts.Command, facts.Args, bad = env.CommandLine(container, vars); bad != nil {
		c.t.Fatal(bad)
	}
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		facts.GraceSeconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	return facts
}

func (c *confiner) container(pod, theirs *corev1.Pod, container *corev1.Container, target string) {
	facts := c.factsOf(pod, container)
	ours, err := c.node.Container(pod, container, facts)
	var id *kubecontainer.ContainerID
	if target != "" {
		id = &kubecontainer.ContainerID{Type: "containerd", ID: facts.Running[target]}
	}
	want, _, wantErr := upstreamContainerConfig(c.pointer(), c.t.Context(), container, theirs, 3, "", c.facts.image.Id,
		nil, id, nil)
	if c.refused("container", err, wantErr) {
		return
	}
	want.Linux.Resources = nil // compared in TestContainerValues
	c.compare("container", ours.ProtoReflect(), want.ProtoReflect())
}

// drawn returns the n-th pod as the API server would store it, and its image.
func drawn(seed uint64, n int) (*corev1.Pod, *runtimeapi.Image) {
	t := newTenant(seed, n)
	pod := t.pod()
	defaults.SetObjectDefaults_Pod(pod)
	return pod, t.image()
}

// TestConfinement compares the requests to the runtime for a pod with those of the kubelet 1.36.3 for the same pod,
// image and node: pods that Pod Security allows at baseline or restricted, and as many others: with host namespaces,
// privileged, or refused by the API server. No field of ours may confine less. Every other difference is in
// confineKinds.
func TestConfinement(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	admits := func(pod *corev1.Pod, level psa.Level) bool {
		lv := psa.LevelVersion{Level: level, Version: psa.LatestVersion()}
		return policy.AggregateCheckResults(evaluator.EvaluatePod(lv, &pod.ObjectMeta, &pod.Spec)).Allowed
	}
	nodes := []*confiner{newConfiner(t, false), newConfiner(t, true)}
	got := map[string]int{}
	half := (*confinePods + 1) / 2
	for n := 0; got["baseline"]+got["restricted"] < 2*half; n++ {
		pod, image := drawn(*confineSeed, n)
		class := "others"
		switch {
		case admits(pod, psa.LevelRestricted):
			class = "restricted"
		case admits(pod, psa.LevelBaseline):
			class = "baseline"
		}
		if got[class] == half && class != "others" || got[class] == 2*half {
			continue
		}
		got[class]++
		nodes[n%2].judge(pod, image)
		if t.Failed() {
			text, err := json.Marshal(pod)
			t.Fatalf("seed %d, pod %d (%s), image %v:\n%s %v", *confineSeed, n, class, image, text, err)
		}
	}
	kinds, refused := map[string]int{}, map[string]int{}
	for _, node := range nodes {
		for kind, n := range node.count {
			kinds[kind] += n
		}
		for text, n := range node.errors {
			refused[text] += n
		}
	}
	t.Logf("seed %d: %v", *confineSeed, got)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		t.Logf("%8d %s", kinds[kind], kind)
	}
	for _, text := range slices.Sorted(maps.Keys(refused)) {
		t.Logf("%8d both refuse: %s", refused[text], text)
	}
	for _, kind := range confineKinds {
		if kinds[kind.name] == 0 && *confinePods >= 1000 {
			t.Errorf("no pod showed the difference %q: take it out of confineKinds, or draw it", kind.name)
		}
	}
}

// TestJudgeOfConfinement checks that a request that confines less is detected.
func TestJudgeOfConfinement(t *testing.T) {
	for name, weaken := range map[string]func(*runtimeapi.LinuxContainerSecurityContext){
		"privileged":      func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged = true },
		"a masked path":   func(s *runtimeapi.LinuxContainerSecurityContext) { s.MaskedPaths = s.MaskedPaths[1:] },
		"no masked path":  func(s *runtimeapi.LinuxContainerSecurityContext) { s.MaskedPaths = nil },
		"a read-only one": func(s *runtimeapi.LinuxContainerSecurityContext) { s.ReadonlyPaths = s.ReadonlyPaths[1:] },
		"seccomp": func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Seccomp.ProfileType = runtimeapi.SecurityProfile_Unconfined
		},
		"no seccomp":     func(s *runtimeapi.LinuxContainerSecurityContext) { s.Seccomp = nil },
		"new privileges": func(s *runtimeapi.LinuxContainerSecurityContext) { s.NoNewPrivs = false },
		"a capability": func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Capabilities.AddCapabilities = []string{"SYS_ADMIN"}
		},
		"nothing dropped": func(s *runtimeapi.LinuxContainerSecurityContext) { s.Capabilities = nil },
		"the host's pids": func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
		},
		"the pod's pids": func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		},
		"root":             func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser.Value = 0 },
		"the image's user": func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser = nil },
		"a group":          func(s *runtimeapi.LinuxContainerSecurityContext) { s.SupplementalGroups = []int64{0} },
		"a writable root":  func(s *runtimeapi.LinuxContainerSecurityContext) { s.ReadonlyRootfs = false },
	} {
		yes := true
		no := false
		user := int64(1000)
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{Name: "c0", SecurityContext: &corev1.SecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &user, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}},
		}}
		node := newConfiner(t, false)
		node.facts.image = &runtimeapi.Image{Id: "x"}
		want, _, err := upstreamContainerConfig(node.pointer(), t.Context(), &pod.Spec.Containers[0], pod, 3, "", "x", nil,
			nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := node.node.Container(pod, &pod.Spec.Containers[0], node.factsOf(pod, &pod.Spec.Containers[0]))
		if err != nil {
			t.Fatal(err)
		}
		want.Linux.Resources = nil
		if before := node.unknown("container", ours.ProtoReflect(), want.ProtoReflect()); len(before) > 0 {
			t.Errorf("%s: before: %v", name, before)
		}
		weaken(ours.Linux.SecurityContext)
		if after := node.unknown("container", ours.ProtoReflect(), want.ProtoReflect()); len(after) == 0 {
			t.Errorf("%s: not seen", name)
		}
	}
}
