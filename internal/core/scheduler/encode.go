package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// The append functions write values for keys of classes, identities and pod sets; see package encode.

func appendPodTerm(b []byte, t *PodTerm) []byte {
	b = t.NamespaceSelector.Append(encode.Strings(b, t.Namespaces))
	return encode.String(t.Selector.Append(b), t.TopologyKey)
}

func appendPodTerms(b []byte, list []PodTerm) []byte {
	b = encode.Number(b, int64(len(list)))
	for i := range list {
		b = appendPodTerm(b, &list[i])
	}
	return b
}

func appendWeightedPodTerms(b []byte, list []WeightedPodTerm) []byte {
	b = encode.Number(b, int64(len(list)))
	for i := range list {
		b = appendPodTerm(encode.Number(b, list[i].Weight), &list[i].Term)
	}
	return b
}

func appendSpread(b []byte, list []SpreadConstraint) []byte {
	b = encode.Number(b, int64(len(list)))
	for i := range list {
		s := &list[i]
		b = encode.Number(encode.Number(b, int64(s.MaxSkew)), int64(s.MinDomains))
		b = s.Selector.Append(encode.String(b, s.TopologyKey))
		b = encode.Bool(encode.Bool(encode.Bool(b, s.Hard), s.IgnoreAffinity), s.HonorTaints)
	}
	return b
}

func appendMounts(b []byte, pod *Pod) []byte {
	b = encode.Number(b, int64(len(pod.Mounts)))
	for i := range pod.Mounts {
		m := &pod.Mounts[i]
		if b = encode.Bool(encode.String(b, m.Claim), m.Own); m.Claim != "" {
			b = encode.String(b, pod.Namespace)
		}
		if m.Own {
			b = encode.String(encode.String(b, string(pod.ID)), pod.Name)
		}
		if m.Disk != nil {
			b = encode.String(encode.String(append(b, 1), m.Disk.Kind), m.Disk.ID)
			b = encode.Bool(encode.Strings(b, m.Disk.Monitors), m.Disk.ReadOnly)
		} else {
			b = append(b, 0)
		}
		b = encode.String(encode.String(b, m.Attached.Driver), m.Attached.Handle)
	}
	return b
}

// appendDemands writes everything of pod that its class has.
func appendDemands(b []byte, pod *Pod) []byte {
	b = encode.String(b, pod.Profile)
	b = encode.Bool(encode.Number(b, int64(pod.Priority)), pod.NeverPreempts)
	b = encode.Number(b, int64(len(pod.Requests)))
	for i := range pod.Requests {
		b = encode.Number(encode.String(b, pod.Requests[i].Resource), pod.Requests[i].Value)
	}
	for _, l := range [...]Load{pod.IncomingLoad, pod.PlacedLoad} {
		b = encode.Number(encode.Number(b, int64(l.CPU)), int64(l.Memory))
	}
	b = selector.AppendLabels(selector.AppendTolerations(b, pod.Tolerations), pod.NodeSelector)
	b = selector.AppendNodeTerms(b, pod.NodeAffinity)
	b = encode.Number(b, int64(len(pod.Preferred)))
	for i := range pod.Preferred {
		b = selector.AppendNodeTerm(encode.Number(b, pod.Preferred[i].Weight), &pod.Preferred[i].Term)
	}
	b = encode.Number(b, int64(len(pod.Ports)))
	for _, p := range pod.Ports {
		b = encode.Number(encode.String(encode.String(b, p.IP), p.Protocol), int64(p.Port))
	}
	preferred := len(pod.PreferredAffinity) + len(pod.PreferredAntiAffinity)
	if len(pod.Spread)+len(pod.Affinity)+len(pod.AntiAffinity)+preferred > 0 {
		b = appendSpread(encode.String(append(b, 1), pod.Namespace), pod.Spread)
		b = appendPodTerms(appendPodTerms(b, pod.Affinity), pod.AntiAffinity)
		b = appendWeightedPodTerms(appendWeightedPodTerms(b, pod.PreferredAffinity), pod.PreferredAntiAffinity)
	} else {
		b = append(b, 0)
	}
	b = appendMounts(b, pod)
	b = encode.Number(encode.Strings(b, pod.Images), int64(pod.Containers))
	b = encode.Strings(encode.Strings(encode.Strings(b, pod.Features), pod.NeedsOfAgent), pod.Unsupported)
	return appendNUMA(b, pod.NUMA)
}
