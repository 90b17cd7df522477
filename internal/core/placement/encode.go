package placement

import "encoding/binary"

// The append functions write values as bytes that no other values give: the keys of classes, identities and aims.

func appendNumber(b []byte, n int64) []byte { return binary.AppendVarint(b, n) }

func appendString(b []byte, s string) []byte {
	return append(appendNumber(b, int64(len(s))), s...)
}

func appendStrings(b []byte, list []string) []byte {
	b = appendNumber(b, int64(len(list)))
	for _, s := range list {
		b = appendString(b, s)
	}
	return b
}

func appendBool(b []byte, x bool) []byte {
	if x {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendLabels(b []byte, list []Label) []byte {
	b = appendNumber(b, int64(len(list)))
	for i := range list {
		b = appendString(appendString(b, list[i].Key), list[i].Value)
	}
	return b
}

func appendRequirements(b []byte, list []Requirement) []byte {
	b = appendNumber(b, int64(len(list)))
	for i := range list {
		q := &list[i]
		b = appendNumber(appendString(b, q.Key), int64(q.Op))
		b = appendNumber(appendStrings(b, q.Values), q.Bound)
	}
	return b
}

func appendSelector(b []byte, s *LabelSelector) []byte {
	return appendRequirements(appendBool(b, s.Nothing), s.Requirements)
}

func appendNodeTerm(b []byte, t *NodeTerm) []byte {
	b = appendRequirements(b, t.Labels)
	return appendBool(appendRequirements(b, t.Names), t.Broken)
}

func appendNodeTerms(b []byte, list *[]NodeTerm) []byte {
	if list == nil {
		return append(b, 0)
	}
	b = appendNumber(append(b, 1), int64(len(*list)))
	for i := range *list {
		b = appendNodeTerm(b, &(*list)[i])
	}
	return b
}

func appendTolerations(b []byte, list []Toleration) []byte {
	b = appendNumber(b, int64(len(list)))
	for i := range list {
		t := &list[i]
		b = appendString(appendString(appendString(b, t.Key), t.Value), string(t.Effect))
		b = appendBool(appendBool(b, t.Exists), t.Never)
	}
	return b
}

func appendPodTerm(b []byte, t *PodTerm) []byte {
	b = appendSelector(appendStrings(b, t.Namespaces), &t.NamespaceSelector)
	return appendString(appendSelector(b, &t.Selector), t.TopologyKey)
}

func appendPodTerms(b []byte, list []PodTerm) []byte {
	b = appendNumber(b, int64(len(list)))
	for i := range list {
		b = appendPodTerm(b, &list[i])
	}
	return b
}

func appendWeightedPodTerms(b []byte, list []WeightedPodTerm) []byte {
	b = appendNumber(b, int64(len(list)))
	for i := range list {
		b = appendPodTerm(appendNumber(b, list[i].Weight), &list[i].Term)
	}
	return b
}

func appendSpread(b []byte, list []SpreadConstraint) []byte {
	b = appendNumber(b, int64(len(list)))
	for i := range list {
		s := &list[i]
		b = appendNumber(appendNumber(b, int64(s.MaxSkew)), int64(s.MinDomains))
		b = appendSelector(appendString(b, s.TopologyKey), &s.Selector)
		b = appendBool(appendBool(appendBool(b, s.Hard), s.IgnoreAffinity), s.HonorTaints)
	}
	return b
}

func appendMounts(b []byte, pod *Pod) []byte {
	b = appendNumber(b, int64(len(pod.Mounts)))
	for i := range pod.Mounts {
		m := &pod.Mounts[i]
		if b = appendBool(appendString(b, m.Claim), m.Own); m.Claim != "" {
			b = appendString(b, pod.Namespace)
		}
		if m.Own {
			b = appendString(appendString(b, string(pod.ID)), pod.Name)
		}
		if m.Disk != nil {
			b = appendString(appendString(append(b, 1), m.Disk.Kind), m.Disk.ID)
			b = appendBool(appendStrings(b, m.Disk.Monitors), m.Disk.ReadOnly)
		} else {
			b = append(b, 0)
		}
		b = appendString(appendString(b, m.Attached.Driver), m.Attached.Handle)
	}
	return b
}

// appendDemands writes everything of pod that a class holds.
func appendDemands(b []byte, pod *Pod) []byte {
	b = appendString(b, pod.Profile)
	b = appendBool(appendNumber(b, int64(pod.Priority)), pod.NeverPreempts)
	b = appendNumber(b, int64(len(pod.Requests)))
	for i := range pod.Requests {
		b = appendNumber(appendString(b, pod.Requests[i].Resource), pod.Requests[i].Value)
	}
	for _, l := range [...]Load{pod.Asked, pod.Held} {
		b = appendNumber(appendNumber(b, int64(l.CPU)), int64(l.Memory))
	}
	b = appendNodeTerms(appendLabels(appendTolerations(b, pod.Tolerations), pod.NodeSelector), pod.NodeAffinity)
	b = appendNumber(b, int64(len(pod.Preferred)))
	for i := range pod.Preferred {
		b = appendNodeTerm(appendNumber(b, pod.Preferred[i].Weight), &pod.Preferred[i].Term)
	}
	b = appendNumber(b, int64(len(pod.Ports)))
	for _, p := range pod.Ports {
		b = appendNumber(appendString(appendString(b, p.IP), p.Protocol), int64(p.Port))
	}
	if len(pod.Spread)+len(pod.Affinity)+len(pod.AntiAffinity)+len(pod.PreferredAffinity)+len(pod.PreferredAntiAffinity) > 0 {
		b = appendSpread(appendString(append(b, 1), pod.Namespace), pod.Spread)
		b = appendPodTerms(appendPodTerms(b, pod.Affinity), pod.AntiAffinity)
		b = appendWeightedPodTerms(appendWeightedPodTerms(b, pod.PreferredAffinity), pod.PreferredAntiAffinity)
	} else {
		b = append(b, 0)
	}
	b = appendMounts(b, pod)
	b = appendNumber(appendStrings(b, pod.Images), int64(pod.Containers))
	b = appendStrings(appendStrings(appendStrings(b, pod.Features), pod.NeedsOfAgent), pod.Unsupported)
	return appendNUMA(b, pod.NUMA)
}
