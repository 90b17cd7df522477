package explain

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/deploy"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

// tabler is an answer.
type tabler interface{ Table() []byte }

// TestQuestions plays testdata/*.txt. "cluster" sets the manifests of the cluster; forbid=RESOURCE names what the
// caller may not read, and expired says that lists change too fast to be read in pages. The questions after it are
// "pending", "pod NAMESPACE NAME" (with node=NAME for the journal) and "node NAME"; with the argument yaml they print
// that format.
func TestQuestions(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := newServer(t)
		var a *Asker
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "cluster" {
				s = newServer(t)
				s.add(d.Input)
				s.expired = d.HasArg("expired")
				for _, arg := range d.CmdArgs {
					for _, resource := range arg.Vals {
						s.forbid[resource] = arg.Key == "forbid"
					}
				}
				a = askerOf(t, s, "")
				return ""
			}
			answer, err := ask(t, a, d)
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			if d.HasArg("yaml") {
				text, err := yaml.Marshal(answer)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				return string(text)
			}
			return string(answer.Table())
		})
	})
}

func askerOf(t *testing.T, s *server, config string) *Asker {
	t.Helper()
	c, _, err := schedulerconfig.Parse([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return &Asker{Client: s.client(), Config: c}
}

func ask(t *testing.T, a *Asker, d *datadriven.TestData) (tabler, error) {
	t.Helper()
	node := ""
	if d.Cmd == "pod" && d.HasArg("node") {
		d.ScanArgs(t, "node", &node)
	}
	var words []string
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) == 0 {
			words = append(words, arg.Key)
		}
	}
	switch d.Cmd {
	case "pending":
		return a.Waiting(t.Context())
	case "pod":
		return a.Pod(t.Context(), words[0], words[1], node)
	case "node":
		return a.Node(t.Context(), words[0])
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return nil, nil
}

// everything is a cluster in which every kind of object matters for some question.
const everything = `
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "2", memory: 4Gi, pods: "10"}}
---
apiVersion: v1
kind: Pod
metadata: {name: waits}
spec:
  containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata: {name: placed}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
`

// hardDefaults is a configuration with which the objects that select pods decide where pods may go.
const hardDefaults = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  pluginConfig:
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule}
`

// TestRoleIsWhatIsAsked: the role in deploy/ allows the requests that the questions make, and no others.
func TestRoleIsWhatIsAsked(t *testing.T) {
	s := newServer(t)
	s.add(everything)
	a := askerOf(t, s, hardDefaults)
	if _, err := a.Waiting(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []string{"waits", "placed"} {
		if _, err := a.Pod(t.Context(), "default", pod, ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Node(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict([]byte(deploy.Explain), &role); err != nil {
		t.Fatal(err)
	}
	may, journals := map[string]bool{}, 0
	for _, rule := range role.Rules {
		if rule.APIGroups[0] == journal.Group && slices.Equal(rule.Resources, []string{journal.Resource}) {
			journals++ // components ask for it, which are not in this test
			continue
		}
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				may[verb+" "+strings.TrimSuffix(resource+"."+rule.APIGroups[0], ".")] = true
			}
		}
	}
	if asked := slices.Sorted(maps.Keys(s.asked)); !slices.Equal(asked, slices.Sorted(maps.Keys(may))) {
		t.Errorf("asked are\n%s\nallowed are\n%s", strings.Join(asked, "\n"),
			strings.Join(slices.Sorted(maps.Keys(may)), "\n"))
	}
	if journals != 1 {
		t.Errorf("journals may be read by %d rules", journals)
	}
	if len(may) != len(kinds)+2 { // pods and nodes are read and listed
		t.Errorf("%d requests for %d kinds", len(may), len(kinds))
	}
}

// TestHostileText: what others write does not end a line or change the terminal.
func TestHostileText(t *testing.T) {
	s := newServer(t)
	s.add(`
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status:
  phase: Failed
  message: "a\e[31mb\nc"
  containerStatuses: [{name: c, image: i, imageID: "", state: {terminated: {exitCode: 1, message: "x\ty\r\0z"}}}]
---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {conditions: [{type: Ready, status: "False", message: "\u009b31m\n"}]}
`)
	a := askerOf(t, s, "")
	pod, err := a.Pod(t.Context(), "default", "p", "")
	if err != nil {
		t.Fatal(err)
	}
	node, err := a.Node(t.Context(), "n1")
	if err != nil {
		t.Fatal(err)
	}
	text := string(pod.Table()) + string(node.Table())
	if strings.ContainsAny(text, "\x1b\r\x00\t\u009b") || !strings.Contains(text, "a [31mb c") {
		t.Errorf("%q", text)
	}
}
