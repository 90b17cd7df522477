package recommend

import "github.com/plimsoll-dev/plimsoll/internal/core/unit"

// Formula is what a vendor reserves for system and Kubernetes together, without measuring the node.
type Formula struct {
	Vendor   string
	CPU      unit.MilliCPU
	Memory   unit.Bytes
	Eviction unit.Bytes // hard memory eviction threshold, in addition
	Source   string     // where the formula is published, and when it was read
}

// Formulas returns what the vendors' formulas reserve on a machine.
func Formulas(cpus int64, memory unit.Bytes, maxPods int64) []Formula {
	return []Formula{
		{"GKE", stepsCPU(cpus), gkeMemory(memory), evictionUsual,
			"cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes (2026)"},
		{"EKS", stepsCPU(cpus), eksMemory(maxPods), evictionUsual,
			"awslabs/amazon-eks-ami, nodeadm, kubelet configuration (2026)"},
		{"AKS", aksCPU(cpus), aksMemory(memory, maxPods), evictionUsual,
			"learn.microsoft.com/azure/aks/node-resource-reservations, 1.29 and later (2026)"},
		{"OpenShift", openShiftCPU(cpus), openShiftMemory(memory), evictionUsual,
			"openshift/machine-config-operator, kubelet-auto-sizing.yaml, version 2 (2026)"},
	}
}

// evictionUsual is the eviction threshold that all of them use: memory.available<100Mi, the kubelet's default.
const evictionUsual = 100 * unit.MiB

// stepsCPU is GKE's formula, which EKS uses too: 6% of the first CPU, 1% of the second, 0.5% of the next two, 0.25% of
// all others.
func stepsCPU(cpus int64) unit.MilliCPU {
	total := int64(0) // in ten-thousandths of a CPU, so that 0.25% is whole
	for i := range cpus {
		switch {
		case i == 0:
			total += 600
		case i == 1:
			total += 100
		case i < 4:
			total += 50
		default:
			total += 25
		}
	}
	return unit.MilliCPU(total / 10)
}

// band is a percentage of a part of the memory; size 0 means all that is left.
type band struct {
	size    unit.Bytes
	percent int64
}

func bands(memory unit.Bytes, all ...band) unit.Bytes {
	var total unit.Bytes
	for _, b := range all {
		part := memory
		if b.size > 0 {
			part = min(memory, b.size)
		}
		total += part * unit.Bytes(b.percent) / 100
		memory -= part
	}
	return total
}

// gkeMemory: 255 MiB below 1 GiB; otherwise 25% of the first 4 GiB, 20% of the next 4, 10% of the next 8, 6% of the
// next 112, 2% of the rest.
func gkeMemory(memory unit.Bytes) unit.Bytes {
	if memory < unit.GiB {
		return 255 * unit.MiB
	}
	return bands(memory, band{4 * unit.GiB, 25}, band{4 * unit.GiB, 20}, band{8 * unit.GiB, 10}, band{112 * unit.GiB, 6},
		band{0, 2})
}

// eksMemory: 11 MiB for each possible pod, plus 255 MiB.
func eksMemory(maxPods int64) unit.Bytes {
	return 11*unit.MiB*unit.Bytes(maxPods) + 255*unit.MiB
}

// aksCPU interpolates linearly in a table of CPUs and thousandths, and continues the last segment beyond the table.
func aksCPU(cpus int64) unit.MilliCPU {
	table := [][2]int64{{0, 60}, {1, 60}, {2, 100}, {4, 140}, {8, 180}, {16, 260}, {32, 420}, {64, 740}}
	for i := 1; i < len(table); i++ {
		if below, above := table[i-1], table[i]; cpus <= above[0] || i == len(table)-1 {
			return unit.MilliCPU(below[1] + (cpus-below[0])*(above[1]-below[1])/(above[0]-below[0]))
		}
	}
	return 0 // not reached: the last segment has no end
}

// aksMemory: 20 MB for each possible pod plus 50 MB, or a quarter of the memory if that is less. Megabytes are decimal,
// as in the source.
func aksMemory(memory unit.Bytes, maxPods int64) unit.Bytes {
	const megabyte = 1_000_000
	return min(20*megabyte*unit.Bytes(maxPods)+50*megabyte, memory/4)
}

// openShiftCPU: 60 thousandths, plus 12 for each CPU after the first, and at least 500.
func openShiftCPU(cpus int64) unit.MilliCPU {
	return max(500, unit.MilliCPU(60+12*max(0, cpus-1)))
}

// openShiftMemory computes in whole GiB, as the original script: 1 for the first 8, 6% of the next 120, 2% of the rest,
// rounded to the nearest. Above 128 GiB the script reserves 6.72 GiB (6% of 112, not of 120) and subtracts 112 from the
// rest. That is repeated here.
func openShiftMemory(memory unit.Bytes) unit.Bytes {
	hundredths, left := int64(100), max(0, int64(memory/unit.GiB)-8)
	if left <= 120 {
		hundredths += 6 * left
	} else {
		hundredths += 672 + 2*(left-112)
	}
	return unit.Bytes((hundredths+50)/100) * unit.GiB
}
