package kubeletconfig

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// TestEveryFieldHasAnEntry fails for a field that upstream added, and for an entry whose field no longer exists.
func TestEveryFieldHasAnEntry(t *testing.T) {
	listed := map[string]int{}
	for _, f := range fields {
		listed[f.path]++
		if !f.honoured && f.instead == "" {
			t.Errorf("%s is not honoured, and fields.go does not say what happens instead", f.path)
		}
	}
	for path := range fieldsOf("", reflect.ValueOf(&kubeletconfigv1beta1.KubeletConfiguration{}).Elem()) {
		if listed[path] != 1 {
			t.Errorf("%s has %d lines in fields.go, want one: say whether it is honoured, and what happens if it is not", path,
				listed[path])
		}
		delete(listed, path)
	}
	for path := range listed {
		t.Errorf("fields.go has a line for %s, which is no field of a KubeletConfiguration", path)
	}
}

func TestNothingSetIsAllDefaults(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "head": head} {
		c, warnings, err := Parse([]byte(text), "/etc/kubernetes")
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v, %v", name, warnings, err)
		}
		if c.Port != 10250 || c.Address != "0.0.0.0" || c.MaxPods != 110 || c.NodeLeaseDurationSeconds != 40 ||
			c.NodeStatusReportFrequency.Duration != 5*time.Minute || c.NodeStatusUpdateFrequency.Duration != 10*time.Second ||
			*c.Authentication.Anonymous.Enabled || !*c.Authentication.Webhook.Enabled || c.Authorization.Mode != "Webhook" ||
			*c.ResolverConfig != "/etc/resolv.conf" || *c.PodPidsLimit != -1 || c.EvictionHard["imagefs.available"] != "15%" ||
			!slices.Equal(c.EnforceNodeAllocatable, []string{"pods"}) || c.PodLogsDir != "/var/log/pods" ||
			!*c.SerializeImagePulls {
			t.Errorf("%s: defaults: %+v", name, c)
		}
	}
}

// TestKubeadm reads what kubeadm writes, including zero values, without warnings about them.
func TestKubeadm(t *testing.T) {
	c, warnings, err := Load("testdata/kubeadm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) > 0 {
		t.Errorf("warnings:\n%s", strings.Join(warnings, "\n"))
	}
	if c.EvictionPressureTransitionPeriod.Duration != 5*time.Minute || c.StaticPodPath != "/etc/kubernetes/manifests" {
		t.Errorf("zeros were not taken for absent: %+v", c)
	}
}

func TestDependentDefaults(t *testing.T) {
	c, _, err := Parse([]byte(head+
		"nodeStatusUpdateFrequency: 20s\nmaxParallelImagePulls: 3\npodPidsLimit: -7\n"+
		"evictionHard: {memory.available: 1Gi}\nstaticPodPath: manifests\nresolvConf: ''\n"), "/etc/k")
	if err != nil {
		t.Fatal(err)
	}
	if c.NodeStatusReportFrequency.Duration != 20*time.Second || *c.SerializeImagePulls || *c.PodPidsLimit != -1 ||
		len(c.EvictionHard) != 1 ||
		c.StaticPodPath != "/etc/k/manifests" || *c.ResolverConfig != "" {
		t.Errorf("got %+v", c)
	}
	c, _, err = Parse([]byte(head+"evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true\n"), "/")
	if err != nil || len(c.EvictionHard) != 5 || c.EvictionHard["memory.available"] != "1Gi" {
		t.Errorf("merged: %v, %v", c.EvictionHard, err)
	}
}

func TestEveryProblemAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"decoding": {"apiVersion: v1\nkind: Pod\nmaxPods: many\nsyncFrequency: fast\nmaxPodz: 3\n" +
			"authentication: {x509: {clientCA: a}}\n", []string{
			`apiVersion: "v1": want kubelet.config.k8s.io/v1beta1`, `kind: "Pod": want KubeletConfiguration`,
			`maxPods: "\"many\"": cannot unmarshal string into field maxPods of type int32`,
			`syncFrequency: "\"fast\"": time: invalid duration "fast"`, `unknown field "maxPodz"`,
			`unknown field "authentication.x509.clientCA"`,
		}},
		"values": {head + `
maxPods: -1
port: 70000
address: everywhere
cgroupDriver: cgroups
cpuCFSQuotaPeriod: 2s
imageGCHighThresholdPercent: 70
systemReserved: {cpu: lots, gpu: "1", memory: -1Gi}
kubeReserved: {pid: 1000}
reservedSystemCPUs: 3-1
qosReserved: {memory: 10.5%, cpu: 10%}
memoryReservationPolicy: TieredReservation
memoryThrottlingFactor: 1.5
memorySwap: {swapBehavior: UnlimitedSwap}
logging: {format: xml}
featureGates: {NodeSwap: false, Telepathy: true, CustomCPUCFSQuotaPeriod: false, RotateKubeletServerCertificate: false}
serverTLSBootstrap: true
evictionHard: {memory.free: 1Gi, nodefs.available: 120%, imagefs.available: "0"}
evictionSoft: {memory.available: 1Gi}
enforceNodeAllocatable: [pods, system-reserved, pods, all, system-reserved-compressible]
registerWithTaints: [{key: "a b", effect: Never}]
allowedUnsafeSysctls: [kernel.msg*, vm.swappiness]
tlsCertFile: /a
clusterDNS: [ten]
podLogsDir: logs/
shutdownGracePeriod: 10s
shutdownGracePeriodCriticalPods: 20s
tracing: {samplingRatePerMillion: 1000001, endpoint: "http://collector:4317"}
`, []string{
			"kubeReserved", "cannot unmarshal number", "maxPods: -1: want 0 or more", "port: 70000: want 1 to 65535",
			`address: "everywhere": want an IP address`,
			`cgroupDriver: "cgroups": want one of cgroupfs, systemd`, "cpuCFSQuotaPeriod: 2s: want 1ms to 1s",
			"imageGCLowThresholdPercent: 80: want less than imageGCHighThresholdPercent 70",
			`systemReserved.cpu: "lots"`, `systemReserved.gpu: "1": cannot be reserved`, `systemReserved.memory: "-1Gi"`,
			`qosReserved.memory: "10.5%": want whole percents`, `qosReserved.cpu: "10%": cannot be reserved`,
			`memoryReservationPolicy: "TieredReservation": needs featureGates.MemoryQoS: true`,
			"memoryThrottlingFactor: 1.5: want more than 0",
			`memorySwap.swapBehavior: "UnlimitedSwap": want one of`, "featureGates.NodeSwap: false: is locked to true",
			"featureGates.Telepathy: true: no feature gate of Kubernetes 1.36", `logging.format: "xml": want text or json`,
			"cpuCFSQuotaPeriod: 2s: needs featureGates.CustomCPUCFSQuotaPeriod: true",
			"serverTLSBootstrap: true: needs featureGates.RotateKubeletServerCertificate: true",
			`reservedSystemCPUs: list "3-1"`, `evictionHard.memory.free: "1Gi": is not an eviction signal`,
			`evictionHard.nodefs.available: "120%"`, `evictionHard.imagefs.available: "0"`,
			`evictionSoft.memory.available: "1Gi": needs evictionSoftGracePeriod`,
			`enforceNodeAllocatable: "pods": is listed twice`,
			`enforceNodeAllocatable: "all": want some of`,
			`enforceNodeAllocatable: "system-reserved": needs systemReservedCgroup`,
			`enforceNodeAllocatable: "system-reserved, system-reserved-compressible": exclude each other`,
			`allowedUnsafeSysctls[1]: "vm.swappiness": is not known to be namespaced`,
			`registerWithTaints[0]`, `effect "Never"`, "tlsCertFile, tlsPrivateKeyFile", `clusterDNS[0]: "ten"`,
			`podLogsDir: "logs/"`,
			"tracing.samplingRatePerMillion: 1000001: want 0 to 1000000",
			`tracing.endpoint: "http://collector:4317": want host:port, dns://, unix:// or unix-abstract://`,
			"shutdownGracePeriodCriticalPods: 20s: is part of shutdownGracePeriod 10s",
		}},
		"not yaml":        {"a: [", []string{"yaml"}},
		"not a mapping":   {"- a\n", []string{"want a mapping"}},
		"duplicate field": {head + "maxPods: 1\nmaxPods: 2\n", []string{`"maxPods" already set`}},
	} {
		_, _, err := Parse([]byte(c.text), "/")
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: want %q in:\n%v", name, want, err)
			}
		}
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := Load(filepath.Join(dir, "gone.yaml")); err == nil ||
		!strings.Contains(err.Error(), "gone.yaml: no such file") {
		t.Errorf("missing: %v", err)
	}
	if _, _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "want a regular file") {
		t.Errorf("directory: %v", err)
	}
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte(head+"maxPods: -1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(bad); err == nil || err.Error() != "read kubelet configuration: "+bad+
		": maxPods: -1: want 0 or more" {
		t.Errorf("bad: %v", err)
	}
	if c, _, err := Load(""); err != nil || c.Port != 10250 {
		t.Errorf("no path: %v", err)
	}
}

func TestWarningsNameFieldValueAndEffect(t *testing.T) {
	_, warnings, err := Parse([]byte(head+
		"cpuManagerPolicy: static\ncpuManagerReconcilePeriod: 3s\n"+
		"featureGates: {PodLogsQuerySplitStreams: true, NodeSwap: true, GangScheduling: true}\n"+
		"memoryThrottlingFactor: 0.5\nqosReserved: {memory: 50%}\nevictionSoft: {}\n"+
		"logging: {format: json, vmodule: [{filePattern: a, verbosity: 3}]}\nuserNamespaces: {idsPerPod: 131072}\n"+
		"hairpinMode: promiscuous-bridge\n"), "/")
	want := []string{
		"cpuManagerReconcilePeriod: 3s: not honoured: shared CPUs change at once, and the kernel is not polled",
		"featureGates.GangScheduling: true: cannot be changed here: it has no effect on a node",
		"featureGates.PodLogsQuerySplitStreams: true: cannot be changed here: logs are served with both streams",
		"logging.vmodule: 1 patterns: not honoured: logging.verbosity applies everywhere",
		"memoryThrottlingFactor: 0.5: does nothing without featureGates.MemoryQoS: true",
		"qosReserved: map[memory:50%]: does nothing without featureGates.QOSReserved: true",
	}
	if err != nil || !slices.Equal(warnings, want) {
		t.Errorf("%v\n%s", err, strings.Join(warnings, "\n"))
	}
}

func TestAllocatable(t *testing.T) {
	c, _, err := Parse([]byte(head+`
systemReserved: {cpu: 250m, memory: 500Mi, pid: "1000"}
kubeReserved: {cpu: 500m, memory: 1Gi, ephemeral-storage: 1Gi}
evictionHard: {memory.available: 200Mi, nodefs.available: 10%, imagefs.available: 100%}
reservedSystemCPUs: 0,2-3
maxPods: 50
podsPerCore: 4
`), "/")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Allocatable(c)
	if err != nil {
		t.Fatal(err)
	}
	if s.System != (allocatable.Reserved{CPU: 250, Memory: 500 * unit.MiB, PIDs: 1000}) ||
		s.Kube != (allocatable.Reserved{CPU: 500, Memory: unit.GiB, EphemeralStorage: unit.GiB}) ||
		s.ReservedCPUs != 3 || s.MaxPods != 50 || s.PodsPerCore != 4 || !s.EnforcePods {
		t.Errorf("got %+v", s)
	}
	if len(s.EvictionHard) != 2 || s.EvictionHard[allocatable.MemoryAvailable].Amount != int64(200*unit.MiB) ||
		s.EvictionHard[allocatable.NodeFSAvailable].Share != 0.1 {
		t.Errorf("thresholds %+v", s.EvictionHard)
	}
	if want := []allocatable.Signal{allocatable.ImageFSInodesFree, allocatable.NodeFSInodesFree}; !slices.Equal(s.Dropped,
		want) {
		t.Errorf("dropped %v, want %v", s.Dropped, want)
	}
}

func TestCheckMachine(t *testing.T) {
	c, _, err := Parse([]byte(head+"failCgroupV1: true\nreservedSystemCPUs: 0,8\nsingleProcessOOMKill: false\n"), "/")
	if err != nil {
		t.Fatal(err)
	}
	m := machine.Machine{CPUs: idset.Of(0, 1), Swap: unit.GiB}
	err = CheckMachine(c, m, false)
	for _, want := range []string{"failSwapOn: true: this machine has 1Gi", "failCgroupV1", "singleProcessOOMKill",
		`reservedSystemCPUs: "0,8": CPUs 8 are not online here: 0-1 are`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	c, _, err = Parse([]byte(head+"failSwapOn: false\n"), "/")
	if err != nil || CheckMachine(c, m, false) != nil {
		t.Errorf("%v, %v", err, CheckMachine(c, m, false))
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", head, head + "maxPods: 3\n", head + "evictionHard: {memory.available: 10%}\n",
		head + "systemReserved: {cpu: 1e3}\n", "{}", "[]", "a: b", head +
			"reservedMemory: [{numaNode: 0, limits: {memory: 1}}]\n"} {
		cost.Attack(f, []byte(seed))
	}
	f.Add([]byte(cost.Aliases(head)))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer cost.Spend(t, len(data))()
		c, _, err := Parse(data, "/")
		if err != nil {
			return
		}
		if _, err := Allocatable(c); err != nil {
			t.Errorf("%q: valid, yet: %v", data, err)
		}
	})
}

// TestVolumeStatistics: 0 is the default of volumeStatsAggPeriod, and a negative one, which stands for never, stays.
// The conditions of volumes need their gate.
func TestVolumeStatistics(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"":                            time.Minute,
		"volumeStatsAggPeriod: 0s\n":  time.Minute,
		"volumeStatsAggPeriod: 5m\n":  5 * time.Minute,
		"volumeStatsAggPeriod: -1s\n": -time.Second,
	} {
		c, warnings, err := Parse([]byte(head+text), "/")
		if err != nil || len(warnings) > 0 || c.VolumeStatsAggPeriod.Duration != want || ShowsVolumeHealth(c) {
			t.Errorf("%q: %v, %v, warnings %v, want %v", text, c.VolumeStatsAggPeriod.Duration, err, warnings, want)
		}
	}
	c, warnings, err := Parse([]byte(head+"featureGates: {CSIVolumeHealth: true}\n"), "/")
	if err != nil || len(warnings) > 0 || !ShowsVolumeHealth(c) {
		t.Errorf("with the gate: %v, %v, %v", ShowsVolumeHealth(c), warnings, err)
	}
}
