package recommend

import (
	"fmt"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Constants that turn measured use into a reservation. All are chosen.
const (
	// memoryHeadroomPercent is added to the measured peak of memory. More wastes memory on every node. With less, the
	// first day that is busier than the measurement exceeds the reservation.
	memoryHeadroomPercent = 10

	// memoryStep and cpuStep are the steps that amounts are rounded up to, so that two measurements of a quiet node
	// give the same.
	memoryStep = 16 * unit.MiB
	cpuStep    = unit.MilliCPU(10)

	// watchShort is the shortest measurement without a warning: log rotation, package updates and the restarts of a
	// deployment may not happen in less time.
	watchShort = 5 * time.Minute

	// samplesFew is the smallest number of samples without a warning: with fewer, the 99th percentile is the peak.
	samplesFew = 100

	// largePercent of a machine is more than a node's own programs should need. Above it, something else probably runs
	// outside the pods.
	largePercent = 50
)

// Node is the node that the recommendation is for.
type Node struct {
	CPUs    int64
	Memory  unit.Bytes
	MaxPods int64 // maximum number of pods
}

// Recommendation is how much to reserve, and why.
type Recommendation struct {
	System, Kube allocatable.Reserved
	Why          Reasons
	Warnings     []string
}

// Reasons say how each amount was computed.
type Reasons struct{ SystemCPU, SystemMemory, KubeCPU, KubeMemory string }

// Recommend computes amounts for a node from a Report. Memory follows the peak, because too little memory kills
// processes. CPU follows the 99th percentile, because too little CPU only delays them.
func Recommend(r Report, n Node) Recommendation {
	var out Recommendation
	system := r.Parts[System]
	runtime := r.Parts[Runtime]
	agent := r.Parts[Agent]

	out.System.CPU = roundUp(system.CPU.P99, cpuStep)
	out.Why.SystemCPU = fmt.Sprintf("p99 of %v, rounded up to %v", system.CPU.P99, cpuStep)
	out.System.Memory = withHeadroom(system.Memory.Peak)
	out.Why.SystemMemory = fmt.Sprintf("peak of %s and %d%%, rounded up to %v", mebibytes(system.Memory.Peak),
		memoryHeadroomPercent, memoryStep)

	cpu := runtime.CPU.P99 + agent.CPU.P99
	out.Kube.CPU = roundUp(cpu, cpuStep)
	out.Why.KubeCPU = fmt.Sprintf("p99 of runtime %v and agent %v, rounded up to %v", runtime.CPU.P99, agent.CPU.P99,
		cpuStep)
	memory := runtime.Memory.Peak + agent.Memory.Peak
	why := []string{fmt.Sprintf("peak of runtime %s and agent %s", mebibytes(runtime.Memory.Peak),
		mebibytes(agent.Memory.Peak))}
	if more := n.MaxPods - int64(r.Pods.Peak); more > 0 && r.PerPod.Memory > 0 {
		memory += r.PerPod.Memory * unit.Bytes(more)
		why = append(why, fmt.Sprintf("%s for each of %d more pods up to %d", mebibytes(r.PerPod.Memory), more, n.MaxPods))
	}
	out.Kube.Memory = withHeadroom(memory)
	out.Why.KubeMemory = strings.Join(why, ", ") + fmt.Sprintf(", and %d%%, rounded up to %v", memoryHeadroomPercent,
		memoryStep)

	out.Warnings = append(warnings(r, n.MaxPods), out.large(n)...)
	return out
}

// large returns warnings about amounts that no node can spare.
func (r Recommendation) large(n Node) []string {
	var out []string
	if cpu := r.System.CPU + r.Kube.CPU; int64(cpu)*100 > largePercent*n.CPUs*int64(unit.CPU) {
		out = append(out, fmt.Sprintf("%v of CPU is more than half of the machine's %d: programs that do not belong to "+
			"the node ran outside the pods; measure again without them", cpu, n.CPUs))
	}
	if memory := r.System.Memory + r.Kube.Memory; memory > n.Memory/100*largePercent {
		out = append(out, fmt.Sprintf("%s of memory is more than half of the machine's %s: programs that do not belong to "+
			"the node ran outside the pods, or this machine is too small for %d pods", mebibytes(memory), mebibytes(n.Memory),
			n.MaxPods))
	}
	return out
}

func warnings(r Report, maxPods int64) []string {
	var out []string
	if r.For < watchShort {
		out = append(out, fmt.Sprintf("watched for %v only: rare events (pod starts, updates, log rotation) may not be "+
			"included", r.For.Round(time.Second)))
	}
	if r.Samples < samplesFew {
		out = append(out, fmt.Sprintf("%d samples only: p99 is not reliable", r.Samples))
	}
	if r.Pods.Peak == 0 {
		out = append(out, fmt.Sprintf("no pods ran: what runtime and agent need for %d pods is not included", maxPods))
	} else if int64(r.Pods.Peak)*4 < maxPods {
		out = append(out, fmt.Sprintf("at most %d of %d pods ran: how the agent's memory, and the CPU of runtime and "+
			"agent, grow with more pods was not measured", r.Pods.Peak, maxPods))
	}
	if r.Parts[Runtime].Memory.Peak == 0 {
		out = append(out, "no container runtime was seen (containerd, dockerd, crio)")
	}
	if r.Parts[Agent].Memory.Peak == 0 {
		out = append(out, "no node agent was seen (kubelet, plimsoll agent)")
	}
	return out
}

func withHeadroom(b unit.Bytes) unit.Bytes {
	return roundUp(b+b/100*memoryHeadroomPercent, memoryStep)
}

func roundUp[T ~int64](v, step T) T { return (v + step - 1) / step * step }

// mebibytes formats memory in MiB, so that amounts are easy to compare.
func mebibytes(b unit.Bytes) string {
	return fmt.Sprintf("%.1fMi", float64(b)/float64(unit.MiB))
}
