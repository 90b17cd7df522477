package qos

import "github.com/plimsoll-dev/plimsoll/internal/core/unit"

// OOM score adjustments, in thousandths of the machine's memory as the kernel counts it (proc_pid_oom_score_adj(5)):
// -1000 is never killed, 1000 is always killed first.
const (
	OOMScoreAgent      = -999 // for this agent and the runtime: only init is safer
	oomScoreGuaranteed = -997
	oomScoreBestEffort = 1000
	// Burstable containers stay above Guaranteed ones that use all memory (score 3), and below BestEffort ones.
	oomScoreBurstableMin = 1000 + oomScoreGuaranteed
	oomScoreBurstableMax = oomScoreBestEffort - 1
)

// OOMScoreAdj returns the adjustment for the processes of container c of p on a machine with the given memory. For a
// Burstable container it falls with the share of the machine's memory that the container requests, so that containers
// that use more than their request are killed first. A sidecar is not killed before the main container with the
// smallest request.
func OOMScoreAdj(p Pod, c Container, memory unit.Bytes) int {
	if p.NodeCritical {
		return oomScoreGuaranteed
	}
	switch ClassOf(p) {
	case Guaranteed:
		return oomScoreGuaranteed
	case BestEffort:
		return oomScoreBestEffort
	}
	if memory <= 0 {
		return oomScoreBurstableMax // the machine's memory is not known: as if the container had requested nothing
	}
	share := unrequested(p)
	score := func(request unit.Bytes) int { return int(1000 - 1000*(request+share)/memory) }
	adj := score(c.Requests.Memory.OrZero())
	if c.Sidecar && len(p.Containers) > 0 {
		least := p.Containers[0].Requests.Memory.OrZero()
		for _, served := range p.Containers[1:] {
			least = min(least, served.Requests.Memory.OrZero())
		}
		adj = min(adj, score(least))
	}
	return min(max(adj, oomScoreBurstableMin), oomScoreBurstableMax)
}

// unrequested returns each container's equal part of the pod-level memory request that no container requests for
// itself.
func unrequested(p Pod) unit.Bytes {
	if p.Level == nil || p.Level.Requests.Memory.OrZero() == 0 {
		return 0
	}
	taken := aggregate(p, func(r Resources) Amounts { return r.Requests }, nil).Memory.OrZero()
	return (p.Level.Requests.Memory.OrZero() - taken) / unit.Bytes(len(p.Containers)+len(p.Init))
}
