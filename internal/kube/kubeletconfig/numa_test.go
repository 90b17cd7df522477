package kubeletconfig

import (
	"reflect"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// numaOf loads a configuration as the agent does, for a machine of two NUMA nodes with four CPUs and 8 GiB each.
func numaOf(t *testing.T, text string) (numa.Config, error) {
	t.Helper()
	m := machine.Machine{
		NUMANodes: []machine.NUMANode{{ID: 0, CPUs: idset.Of(0, 1, 2, 3), Memory: 8 * unit.GiB},
			{ID: 1, CPUs: idset.Of(4, 5, 6, 7), Memory: 8 * unit.GiB}},
		NodeFS: machine.Filesystem{Capacity: 100 * unit.GiB},
	}.Complete()
	c, warnings, err := Parse([]byte(head+text), "/")
	if err != nil {
		return numa.Config{}, err
	}
	if len(warnings) > 0 {
		t.Errorf("warnings: %q", warnings)
	}
	settings, err := Allocatable(c)
	if err != nil {
		t.Fatal(err)
	}
	resources, err := allocatable.Compute(m, settings)
	if err != nil {
		t.Fatal(err)
	}
	config, err := NUMA(c, resources)
	if err != nil {
		return config, err
	}
	_, err = numa.New(m, config)
	return config, err
}

func TestNUMA(t *testing.T) {
	got, err := numaOf(t, `
systemReserved: {cpu: 1500m, memory: 400Mi}
evictionHard: {memory.available: 100Mi}
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true", strict-cpu-reservation: "true", distribute-cpus-across-numa: "false"}
memoryManagerPolicy: Static
reservedMemory:
- {numaNode: 0, limits: {memory: 300Mi}}
- {numaNode: 1, limits: {memory: 200Mi}}
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true", max-allowable-numa-nodes: "64"}
`)
	want := numa.Config{
		CPU: numa.CPUConfig{Static: true, ReservedCount: 2, FullPCPUsOnly: true, StrictReservation: true},
		Memory: numa.MemoryConfig{Static: true,
			Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{0: {0: 300 * unit.MiB}, 1: {0: 200 * unit.MiB}}},
		Topology: numa.TopologyConfig{Policy: numa.PolicySingleNUMANode, PodScope: true, PreferClosest: true},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	if got, err := numaOf(t, ""); err != nil || !reflect.DeepEqual(got, numa.Config{}) {
		t.Errorf("by default: %+v, %v", got, err)
	}
}

// All problems are reported at once.
func TestNUMAReportsEveryProblem(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"cpuManagerPolicy: exclusive\nmemoryManagerPolicy: static\ntopologyManagerPolicy: best\n" +
			"topologyManagerScope: node\n" +
			"reservedMemory: [{numaNode: 0, limits: {memory: 0, cpu: 1}}, {numaNode: 0, limits: {memory: 1}}]\n", []string{
			"cpuManagerPolicy: exclusive", "memoryManagerPolicy: static", "topologyManagerPolicy: best",
			"topologyManagerScope: node",
			"reservedMemory[0].limits.memory: 0: want more than 0", "reservedMemory[0].limits.cpu",
			"is listed twice for NUMA node 0",
		}},
		{"cpuManagerPolicyOptions: {full-pcpus-only: yes please, colour: blue}\n" +
			"topologyManagerPolicyOptions: {max-allowable-numa-nodes: \"4\"}\nmemoryManagerPolicy: Static\n" +
			"reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\n", []string{
			"cpuManagerPolicyOptions: 2: need cpuManagerPolicy: static",
			"cpuManagerPolicyOptions.full-pcpus-only: yes please: want true or false",
			"cpuManagerPolicyOptions.colour: blue: is not an option",
			"topologyManagerPolicyOptions.max-allowable-numa-nodes: 4: want a number of 8 or more",
			"reservedMemory: 1Gi: want memory of 100Mi on all nodes together",
		}},
		{"cpuManagerPolicy: static\n" +
			"cpuManagerPolicyOptions: {full-pcpus-only: \"true\", distribute-cpus-across-cores: \"true\", align-by-socket: " +
			"\"true\"}\ntopologyManagerPolicy: single-numa-node\n", []string{
			"cpuManagerPolicy: static: reserve some CPU", "full-pcpus-only and distribute-cpus-across-cores contradict",
			"align-by-socket: contradicts topologyManagerPolicy",
		}},
		{"reservedSystemCPUs: 0,99\ncpuManagerPolicy: static\nevictionHard: {memory.available: 1Mi}\n" +
			"memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 5, limits: {memory: 1Mi}}]\n", []string{
			"reservedSystemCPUs: 99: this machine has no such CPUs", "NUMA node 5: this machine has no such node",
		}},
	} {
		_, err := numaOf(t, c.text)
		for _, want := range c.want {
			if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `"`, ""), want) {
				t.Errorf("%v\nwant %q in it", err, want)
			}
		}
	}
}
