package schedulerconfig

import (
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

func TestDefaults(t *testing.T) {
	want := scheduler.DefaultProfile()
	want.Name = "default-scheduler"
	for _, text := range []string{"", head, head + "profiles: []\n"} {
		c, warnings, err := Parse([]byte(text))
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%q: %v %v", text, warnings, err)
		}
		if !reflect.DeepEqual(c.Profiles, []scheduler.Profile{want}) || c.BackoffFirst != time.Second ||
			c.BackoffMax != 10*time.Second {
			t.Errorf("%q: %+v", text, c)
		}
	}
}

func TestProfiles(t *testing.T) {
	c, warnings, err := Parse([]byte(head + `
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 60
percentageOfNodesToScore: 50
clientConnection: {kubeconfig: /etc/k}
leaderElection: {leaderElect: false}
profiles:
- schedulerName: packing
  plugins:
    multiPoint:
      disabled: [{name: InterPodAffinity}]
    score:
      disabled: [{name: ImageLocality}]
      enabled: [{name: NodeResourcesFit, weight: 10}]
    filter:
      disabled: [{name: NodePorts}]
    preFilter:
      disabled: [{name: NodePorts}]
  pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      ignoredResourceGroups: [example.com]
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: cpu, weight: 3}, {name: example.com/gpu}]
        requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}
  - name: PodTopologySpread
    args: {defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]}
- schedulerName: bare
  plugins:
    multiPoint: {disabled: [{name: "*"}], enabled: [{name: NodeResourcesFit}, {name: TaintToleration, weight: 7}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 1 || c.Kubeconfig != "/etc/k" || c.LeaderElection == nil || c.BackoffFirst != 2*time.Second ||
		c.BackoffMax != time.Minute {
		t.Errorf("%q %+v", warnings, c)
	}
	p := c.Profiles[0]
	if p.Name != "packing" || !p.Skip["InterPodAffinity"] || !p.Skip["NodePorts"] || p.Skip["NodeResourcesFit"] ||
		p.NoPreemption {
		t.Errorf("%+v", p)
	}
	if want := map[string]int64{"TaintToleration": 3, "NodeAffinity": 2, "PodTopologySpread": 2, "NodeResourcesFit": 10,
		"NodeResourcesBalancedAllocation": 1}; !reflect.DeepEqual(p.Weights, want) {
		t.Errorf("weights %v, want %v", p.Weights, want)
	}
	strategy := scheduler.Strategy{Type: scheduler.RequestedToCapacityRatio,
		Resources: []scheduler.WeightedResource{{Resource: "cpu", Weight: 3}, {Resource: "example.com/gpu", Weight: 1}},
		Shape:     []scheduler.ShapePoint{{Utilization: 0, Score: 0}, {Utilization: 100, Score: 100}}}
	if !reflect.DeepEqual(p.Strategy, strategy) || p.SystemDefaults || len(p.DefaultSpread) != 1 ||
		!p.DefaultSpread[0].Hard {
		t.Errorf("%+v", p)
	}
	bare := c.Profiles[1]
	if want := map[string]int64{"TaintToleration": 7, "NodeResourcesFit": 1}; !reflect.DeepEqual(bare.Weights, want) ||
		!bare.NoPreemption || !bare.Skip["PodTopologySpread"] || !bare.Skip["NodeResourceTopologyMatch"] ||
		p.Skip["NodeResourceTopologyMatch"] || bare.Skip["TaintToleration"] {
		t.Errorf("%+v", bare)
	}
}

// TestEveryProblemIsReported checks that one error has every problem, with path and value.
func TestEveryProblemIsReported(t *testing.T) {
	_, _, err := Parse([]byte(head + `
colour: red
parallelism: 0
podInitialBackoffSeconds: 0
percentageOfNodesToScore: 101
extenders: [{urlPrefix: "x", prioritizeVerb: p, bindVerb: b, managedResources: [{name: a}]}, {urlPrefix: "http://x", preemptVerb: p, bindVerb: b, httpTimeout: -1s, tlsConfig: {caFile: /nowhere/ca.crt}, managedResources: [{name: a}]}]
profiles:
- schedulerName: a
  plugins:
    score: {enabled: [{name: Telepathy, weight: 1}, {name: ImageLocality, weight: -1}, {name: NodeAffinity, weight: 2000000000}]}
    multiPoint: {enabled: [{name: GangScheduling}], disabled: [{name: DefaultBinder}]}
    preFilter: {disabled: [{name: PodTopologySpread}]}
  pluginConfig:
  - {name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}
  - {name: InterPodAffinity, args: {}}
  - {name: Telepathy, args: {}}
  - {name: NodeResourcesFit, args: {kind: OtherArgs, strange: 1, scoringStrategy: {type: Best, resources: [{name: cpu, weight: 101}]}}}
  - {name: NodeAffinity, args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Near}]}]}}}}
  - {name: PodTopologySpread, args: {defaultingType: List, defaultConstraints: [{maxSkew: 0, topologyKey: "", whenUnsatisfiable: Never}]}}
- schedulerName: a
`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{
		`unknown field "colour"`, "parallelism: 0", "podInitialBackoffSeconds: 0", "percentageOfNodesToScore: 101",
		`extenders[0].urlPrefix: "x"`, "extenders[0].weight: 0", "extenders[1].bindVerb", "extenders[1].httpTimeout",
		"extenders[1].tlsConfig: open /nowhere/ca.crt",
		"extenders[1].managedResources[0].name",
		`plugins.score.enabled[0]: "Telepathy": unknown plugin`, "plugins.score.enabled[1].weight: -1",
		"plugins.score.enabled[2].weight: 2000000000",
		"multiPoint.enabled[0]: GangScheduling: gang scheduling is not supported", "DefaultBinder: cannot be disabled",
		"preFilter.disabled[0]: PodTopologySpread",
		"pluginConfig[0].args.hardPodAffinityWeight: 101", "pluginConfig[1]: \"InterPodAffinity\": is listed twice",
		`pluginConfig[2].name: "Telepathy"`,
		`args.kind: "OtherArgs"`, `unknown field "strange"`, `scoringStrategy.type: "Best"`, "resources[0].weight: 101",
		"addedAffinity: required", "maxSkew: 0", `whenUnsatisfiable: "Never"`,
		`profiles[1].schedulerName: "a": profiles[0] has that name already`,
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("not said: %s\n%v", part, err)
		}
	}
}

func TestNotAConfiguration(t *testing.T) {
	for _, text := range []string{"[1]", "a: b: c", "apiVersion: v1\nkind: Pod\n", head + "profiles: 7\n",
		head + "parallelism: 1\nparallelism: 2\n"} {
		if _, _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%q: accepted", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	cost.Attack(f, []byte(head+"profiles: [{schedulerName: a, plugins: {score: {disabled: [{name: '*'}]}}}]\n"))
	cost.Attack(f, []byte(head+
		"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}]}]\n"))
	f.Add([]byte(cost.Aliases(head)))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer cost.Spend(t, len(data))()
		if c, _, err := Parse(data); err == nil {
			scheduler.New(scheduler.Options{Profiles: c.Profiles}) // every accepted configuration can be used
		}
	})
}

// TestCompat checks that nodes are sampled only if requested outside the file; a profile's value overrides the file's.
func TestCompat(t *testing.T) {
	c, warnings,
		err := Parse([]byte(`{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, parallelism: 4, percentageOfNodesToScore: 30, profiles: [{schedulerName: a}, {schedulerName: b, percentageOfNodesToScore: 70}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 3 || c.Profiles[0].Sample.On || c.Profiles[1].Sample.On {
		t.Errorf("unasked: %v, %+v", warnings, c.Profiles)
	}
	warnings = c.Compat(warnings)
	if len(warnings) != 1 || c.Profiles[0].Sample != (scheduler.Sample{On: true, Percent: 30}) ||
		c.Profiles[1].Sample != (scheduler.Sample{On: true, Percent: 70}) {
		t.Errorf("asked: %v, %+v %+v", warnings, c.Profiles[0].Sample, c.Profiles[1].Sample)
	}
}

// TestVolumeBindingArgs checks the timeout of volumes, and that an alpha field is refused.
func TestVolumeBindingArgs(t *testing.T) {
	parse := func(args, plugins string) (*Config, error) {
		c, _,
			err := Parse([]byte(`{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, profiles: [{plugins: {` + plugins + `}, pluginConfig: [{name: VolumeBinding, args: {` + args + `}}]}]}`))
		return c, err
	}
	for args, want := range map[string]time.Duration{"": 600 * time.Second, "bindTimeoutSeconds: 30": 30 * time.Second,
		"bindTimeoutSeconds: 0": 1} {
		c, err := parse(args, "")
		if err != nil || c.Profiles[0].VolumeTimeout != want {
			t.Errorf("%q: %+v, %v", args, c, err)
		}
	}
	for _, bad := range []struct{ args, plugins, want string }{
		{"bindTimeoutSeconds: -1", "", "args.bindTimeoutSeconds: -1: want 0 to"},
		{"shape: [{utilization: 0, score: 1}]", "", "args.shape: must be absent"},
		{"", "preBind: {disabled: [{name: VolumeBinding}]}", "VolumeBinding: the plugin's filter cannot work without it"},
	} {
		if _, err := parse(bad.args, bad.plugins); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	c, err := parse("", "multiPoint: {disabled: [{name: VolumeBinding}]}")
	if err != nil || !c.Profiles[0].Skip["VolumeBinding"] {
		t.Errorf("disabled: %+v, %v", c, err)
	}
}

// TestShow checks that the configuration in effect is shown as upstream does, with defaults, and can be read again.
func TestShow(t *testing.T) {
	c, _, err := Parse([]byte(head +
		"podMaxBackoffSeconds: 60\n" +
		"profiles: [{schedulerName: a, pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 5}}]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, nil)
	for _, part := range []string{`{"componentconfig":{"kind":"KubeSchedulerConfiguration","apiVersion":"kubescheduler.config.k8s.io/v1"`, `"parallelism":16`,
		`"podInitialBackoffSeconds":1,"podMaxBackoffSeconds":60`, `"schedulerName":"a"`, `"hardPodAffinityWeight":5`,
		`"enableProfiling":true`} {
		if !strings.Contains(w.Body.String(), part) {
			t.Errorf("not shown: %s\n%s", part, w.Body)
		}
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := c.WriteTo(path); err != nil {
		t.Fatal(err)
	}
	again, _, err := Load(path)
	if err != nil || !reflect.DeepEqual(again.Profiles, c.Profiles) || again.BackoffMax != c.BackoffMax {
		t.Errorf("read again: %v", err)
	}
	c.Disable("NodePorts")
	if !c.Profiles[0].Skip["NodePorts"] {
		t.Error("not disabled")
	}
}

// TestNoDynamicResources checks that enabling the plugin is an error at every extension point, and that disabling it is
// accepted.
func TestNoDynamicResources(t *testing.T) {
	for _, profile := range []string{
		"plugins: {multiPoint: {enabled: [{name: DynamicResources}]}}",
		"plugins: {filter: {enabled: [{name: DynamicResources}]}}",
		"pluginConfig: [{name: DynamicResources, args: {}}]",
	} {
		if _, _, err := Parse([]byte(head + "profiles: [{" + profile + "}]\n")); err == nil ||
			!strings.Contains(err.Error(), "DynamicResources: dynamic resource allocation is not supported") {
			t.Errorf("%s: %v", profile, err)
		}
	}
	if _, _, err := Parse([]byte(head +
		"profiles: [{plugins: {multiPoint: {disabled: [{name: DynamicResources}]}}}]\n")); err != nil {
		t.Error(err)
	}
}
