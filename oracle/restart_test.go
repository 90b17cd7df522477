package oracle

import (
	"flag"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

var (
	restartCases = flag.Int("restart.cases", 100_000, "random containers and exits whose restart is judged")
	restartSeed  = flag.Uint64("restart.seed", 1, "seed of the random containers")
)

// TestRestartRules compares whether an exit restarts its container, or all of its pod, with upstream's
// ContainerShouldRestart and FindMatchingContainerRestartRule. For an exit of an init container with code 0, only the
// answer for the whole pod is compared: upstream asks about the container itself only after failures.
func TestRestartRules(t *testing.T) {
	r := rand.New(rand.NewPCG(*restartSeed, 2))
	seen := map[[2]bool]int{}
	for n := range *restartCases {
		pod := restartPod(r)
		for _, s := range translate.PodlifeSpec(pod).Containers {
			c := *translate.ContainerNamed(pod, s.Name)
			code := int32(r.IntN(5))
			again, all := s.RestartsAfter(code)
			rule, found := podutil.FindMatchingContainerRestartRule(c, code)
			wantAll := found && rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
			want := podutil.ContainerShouldRestart(c, pod.Spec, code)
			if s.Name == "init" && code == 0 {
				want = wantAll
			}
			if again != want || all != wantAll {
				t.Fatalf("seed %d, case %d: exit %d of %s in a pod of policy %s: restarts %v, all %v, want %v, %v\n%+v",
					*restartSeed, n, code, s.Name, pod.Spec.RestartPolicy, again, all, want, wantAll, c)
			}
			seen[[2]bool{again, all}]++
		}
	}
	if len(seen) != 3 {
		t.Errorf("outcomes %v: want all of none, one, all", seen)
	}
}

// restartPod returns a pod with a container of each kind that has rules: at most 3, of which some are not valid.
func restartPod(r *rand.Rand) *corev1.Pod {
	of := func(words ...string) string { return words[r.IntN(len(words))] }
	always := corev1.ContainerRestartPolicyAlways
	container := func(name string) corev1.Container {
		c := corev1.Container{Name: name}
		if r.IntN(3) == 0 {
			return c
		}
		policy := corev1.ContainerRestartPolicy(of("Always", "OnFailure", "Never"))
		if name == "init" {
			policy = corev1.ContainerRestartPolicy(of("OnFailure", "Never"))
		}
		c.RestartPolicy = &policy
		for range r.IntN(4) {
			rule := corev1.ContainerRestartRule{Action: corev1.ContainerRestartRuleAction(of("Restart", "RestartAllContainers"))}
			if r.IntN(8) > 0 {
				rule.ExitCodes = &corev1.ContainerRestartRuleOnExitCodes{
					Operator: corev1.ContainerRestartRuleOnExitCodesOperator(of("In", "NotIn", "In", "NotIn", "Over")),
				}
				for range r.IntN(4) {
					rule.ExitCodes.Values = append(rule.ExitCodes.Values, int32(r.IntN(5)))
				}
			}
			c.RestartPolicyRules = append(c.RestartPolicyRules, rule)
		}
		return c
	}
	sidecar := container("sidecar")
	sidecar.RestartPolicy = &always
	return &corev1.Pod{Spec: corev1.PodSpec{
		RestartPolicy:  corev1.RestartPolicy(of("Always", "OnFailure", "Never")),
		InitContainers: []corev1.Container{container("init"), sidecar},
		Containers:     []corev1.Container{container("main")},
	}}
}
