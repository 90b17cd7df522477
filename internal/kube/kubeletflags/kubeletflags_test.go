package kubeletflags

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// parse parses a command line.
func parse(args ...string) (*Line, error) {
	fs := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	fs.Usage = func() {}
	l := Add(fs)
	return l, fs.Parse(args)
}

// TestSettings: flags of each kind become settings; those given twice collect or override, as in the kubelet.
func TestSettings(t *testing.T) {
	l, err := parse("--max-pods=20", "--max_pods", "30", "--fail-swap-on=false", "--enable-server",
		"--cluster-dns=10.0.0.10", "--cluster-dns=10.0.0.11,10.0.0.12",
		"--eviction-hard=memory.available<1Gi,nodefs.available<5%",
		"--system-reserved=cpu=100m,", "--system-reserved=memory=1Gi", "--feature-gates=NodeSwap=true",
		"--feature-gates", "QOSReserved=false,MemoryQoS=1", "--v=4", "--cpu-manager-policy-options=a=b,c",
		"--sync-frequency=90s", "--address=", "--healthz-bind-address=::1", "--max-open-files=5000000000",
		"--manifest-url-header=a:b,a:c", "--manifest-url-header=a:d",
		"--reserved-memory=0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=3Gi", "--reserved-memory", "2:memory=4Gi",
		"--seccomp-default=false")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"maxPods":                 int64(30),
		"failSwapOn":              false,
		"enableServer":            true,
		"clusterDNS":              []any{"10.0.0.10", "10.0.0.11", "10.0.0.12"},
		"evictionHard":            map[string]any{"memory.available": "1Gi", "nodefs.available": "5%"},
		"systemReserved":          map[string]any{"cpu": "100m", "memory": "1Gi"},
		"featureGates":            map[string]any{"NodeSwap": true, "QOSReserved": false, "MemoryQoS": true},
		"logging.verbosity":       int64(4),
		"syncFrequency":           "1m30s",
		"healthzBindAddress":      "::1",
		"maxOpenFiles":            int64(5000000000),
		"staticPodURLHeader":      map[string]any{"a": []string{"b", "c", "d"}},
		"reservedMemory":          []any{numaLimits(0, "1Gi", "2Gi"), numaLimits(1, "3Gi", ""), numaLimits(2, "4Gi", "")},
		"cpuManagerPolicyOptions": map[string]any{"a": "b,c"},
	}
	for _, s := range l.Settings() {
		if !reflect.DeepEqual(s.Value, want[s.Path]) {
			t.Errorf("%s sets %s to %#v, want %#v", s.Flag, s.Path, s.Value, want[s.Path])
		}
		if s.Add != (s.Path == "featureGates") {
			t.Errorf("%s: adds %v", s.Flag, s.Add)
		}
		delete(want, s.Path)
	}
	for path := range want {
		t.Errorf("%s is not set", path)
	}
}

func numaLimits(node int64, memory, pages string) map[string]any {
	limits := map[string]any{"memory": memory}
	if pages != "" {
		limits["hugepages-1Gi"] = pages
	}
	return map[string]any{"numaNode": node, "limits": limits}
}

// TestBadValues: a value that cannot be read is an error that names flag and value.
func TestBadValues(t *testing.T) {
	for arg, want := range map[string]string{
		"--max-pods=many":                      `"many" for "--max-pods"`,
		"--max-pods=3000000000":                "want a number of 32 bits",
		"--sync-frequency=fast":                "want a duration such as",
		"--fail-swap-on=perhaps":               "want true or false",
		"--address=everywhere":                 "want an IP address",
		"--eviction-hard=memory.available=1Gi": `want key<value`,
		"--system-reserved=cpu":                "want key=value",
		"--feature-gates=NodeSwap=perhaps":     "NodeSwap=perhaps: want true or false",
		"--manifest-url-header=a":              "want name:value",
		"--reserved-memory=memory=1Gi":         "want node:type=quantity",
		`--cluster-dns="10`:                    "want a list with commas",
		"--no-such-flag":                       "unknown flag",
	} {
		if _, err := parse(arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
	}
}

// TestCheck: flags without effect are warnings, others are refused with the reason, unless they ask for nothing.
func TestCheck(t *testing.T) {
	l, err := parse("--housekeeping-interval=10s", "--vmodule=a=3", "--lock-file=", "--exit-on-lock-contention=false")
	if err != nil {
		t.Fatal(err)
	}
	warnings, err := l.Check()
	if err != nil || len(warnings) != 2 || !strings.HasPrefix(warnings[0], "--housekeeping-interval: no effect: ") {
		t.Errorf("%q, %v", warnings, err)
	}
	if l, err = parse("--lock-file=/run/lock", "--experimental-mounter-path=/bin/m"); err != nil {
		t.Fatal(err)
	}
	_, err = l.Check()
	for _, want := range []string{"--lock-file=/run/lock: not supported", "--experimental-mounter-path=/bin/m: not"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}

// TestGone: the error about a flag of an older kubelet says what holds now; other errors stay as they are.
func TestGone(t *testing.T) {
	for arg, want := range map[string]string{
		"--network-plugin=cni": "unknown flag: --network-plugin: the kubelet 1.36 has it no more: remove it: the container " +
			"runtime's own configuration says this",
		"--log_file=/var/log/kubelet": "unknown flag: --log_file: the kubelet 1.36 has it no more: remove it: logs go to",
		"--no-such-flag":              "unknown flag: --no-such-flag",
		"--max-pods=many":             "want a number of 32 bits",
	} {
		_, err := parse(arg)
		if err = Explain(err); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
		if strings.Contains(err.Error(), "no more") != strings.Contains(want, "no more") {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

// TestFieldsExist: each flag of the table sets a field that exists, and no two set the same one.
func TestFieldsExist(t *testing.T) {
	var known []string
	for _, f := range kubeletconfig.Fields() {
		known = append(known, f.Path)
	}
	seen := map[string]bool{}
	for _, f := range fields {
		if !slices.Contains(known, f.path) && !strings.HasPrefix(f.path, "logging.") {
			t.Errorf("--%s sets %s, which is no field", f.name, f.path)
		}
		if seen[f.path] {
			t.Errorf("--%s sets %s, as another flag does", f.name, f.path)
		}
		seen[f.path] = true
	}
}

func FuzzKinds(f *testing.F) {
	for k, text := range []string{"a", "true", "3", "4", "1m", "::1", "a,b", "a=b", "a=b", "a<b", "G=true", "a:b",
		"0:memory=1Gi;1:memory=2Gi", "true"} {
		cost.Attack(f, uint8(k), text)
	}
	f.Fuzz(func(t *testing.T, k uint8, text string) {
		defer cost.Spend(t, len(text))()
		v, err := kinds[k%uint8(unusedKinds)].parse(text)
		if err != nil && v != nil {
			t.Errorf("%q: %v and %v", text, v, err)
		}
	})
}
