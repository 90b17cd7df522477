package scheduler

import (
	"fmt"
	"strings"
)

// storage runs the commands of TestScenarios about volumes. It reports whether f was such a command:
//
//	class NAME waits|now [by=PROVISIONER] [driver=D] [in=K:V]
//	driver NAME capacities
//	capacity NAME class=C size=N in=K:V
//	volume NAME class=C size=N [in=K:V] [label=K:V] [driver=D] [for=CLAIM]
//	claim NAME class=C size=N [volume=V] [once] [at=NODE]
//	attaches NODE DRIVER=N ...      the volume limits of a node's drivers
//	attached NAME NODE DRIVER VOLUME
//	volume-gone, claim-gone, attached-gone NAME
//	written POD                     the shell has written the pod's volume plan
//	settled                         prints the plans that have ended
//
// A pod mounts claim=NAME,... and disk=KIND:ID[:ro]. A claim with a volume is bound, a volume with a claim is reserved
// for it.
func (w *world) storage(f []string) (lines []string, known bool) {
	args := parseArguments(f[1:])
	p := w.placer
	w.version++
	version := fmt.Sprint(w.version)
	switch f[0] {
	case "class":
		k := StorageClass{Name: f[1], Waits: f[2] == "waits", Provisioner: args["by"], Driver: args["driver"]}
		if in := args["in"]; in != "" {
			k.Topologies = inLabel(in)
		}
		p.StorageClassSeen(w.now, k)
	case "driver":
		p.DriverSeen(w.now, f[1], f[2] == "capacities")
	case "capacity":
		key, value, _ := strings.Cut(args["in"], ":")
		p.CapacitySeen(w.now, Capacity{Namespace: "kube-system", Name: f[1], Class: args["class"], Size: number(args["size"]),
			Sized: true,
			Nodes: &LabelSelector{Requirements: []Requirement{{Key: key, Op: In, Values: []string{value}}}}})
	case "volume":
		p.VolumeSeen(w.now, parseVolume(f[1], version, args))
	case "claim":
		k := Claim{
			Namespace: "default",
			Name:      f[1],
			UID:       "uid-" + f[1],
			Version:   version,
			Class:     args["class"],
			Size:      number(args["size"]),
			Sized:     true,
			Modes:     []string{"ReadWriteOnce"},
		}
		k.Volume, k.Bound = args["volume"], args["volume"] != ""
		_, k.OncePod = args["once"]
		k.Node, k.Selected = args["at"], args["at"] != ""
		p.ClaimSeen(w.now, k)
	case "attaches":
		n := NodeStorage{Node: f[1], Limits: map[string]int64{}}
		for driver, limit := range parseArguments(f[2:]) {
			n.Limits[driver] = number(limit)
		}
		p.NodeStorageSeen(w.now, n)
	case "attached":
		p.AttachmentSeen(w.now, Attachment{Name: f[1], Node: f[2], Driver: f[3], Volume: f[4]})
	case "volume-gone":
		p.VolumeGone(w.now, f[1])
	case "claim-gone":
		p.ClaimGone(w.now, "default", f[1])
	case "attached-gone":
		p.AttachmentGone(w.now, f[1])
	case "written":
		p.VolumesWritten(w.now, PodID(f[1]))
	case "settled":
		for _, s := range p.VolumeOutcomes(w.now) {
			if s.Why == "" {
				lines = append(lines, s.Decision.Pod.Name+": every volume is bound")
				continue
			}
			lines = append(lines, s.Decision.Pod.Name+": "+s.Why)
			p.Bound(w.now, s.Decision.Pod, BindRefused)
		}
		if lines == nil {
			lines = []string{"(nothing)"}
		}
	default:
		return nil, false
	}
	return lines, true
}

// parseArguments reads KEY=VALUE, and words without a value.
func parseArguments(f []string) map[string]string {
	out := map[string]string{}
	for _, a := range f {
		key, value, _ := strings.Cut(a, "=")
		out[key] = value
	}
	return out
}

func inLabel(text string) *[]NodeTerm {
	key, value, _ := strings.Cut(text, ":")
	return &[]NodeTerm{{Labels: []Requirement{{Key: key, Op: In, Values: []string{value}}}}}
}

func parseVolume(name, version string, args map[string]string) Volume {
	v := Volume{
		Name:      name,
		Version:   version,
		Class:     args["class"],
		Capacity:  number(args["size"]),
		Available: true,
		Modes:     []string{"ReadWriteOnce"},
	}
	if in := args["in"]; in != "" {
		v.Affinity = inLabel(in)
	}
	if label := args["label"]; label != "" {
		v.Labels = parseLabels(label)
	}
	if driver := args["driver"]; driver != "" {
		v.CSI, v.Attached = true, Attached{Driver: driver, Handle: "handle-" + name}
	}
	if claim := args["for"]; claim != "" {
		v.Claimed, v.ClaimNamespace, v.ClaimName, v.ClaimUID, v.Available = true, "default", claim, "uid-"+claim, false
	}
	return v
}

// parseMount adds a mount to p. It returns false if key is not about mounts.
func parseMount(p *Pod, key, value string) bool {
	switch key {
	case "claim":
		for name := range strings.SplitSeq(value, ",") {
			p.Mounts = append(p.Mounts, Mount{Claim: name})
		}
	case "disk":
		d := strings.Split(value, ":")
		p.Mounts = append(p.Mounts, Mount{Disk: &Disk{Kind: d[0], ID: d[1], ReadOnly: len(d) > 2}})
	default:
		return false
	}
	return true
}

// planned prints what must be written before a pod is bound.
func planned(p *VolumePlan) string {
	var parts []string
	if p == nil {
		return ""
	}
	for _, b := range p.Bind {
		parts = append(parts, fmt.Sprintf("keep volume %s for %s", b.Volume, b.ClaimName))
	}
	for _, q := range p.Provision {
		parts = append(parts, fmt.Sprintf("ask for a volume for %s", q.Name))
	}
	return "; " + strings.Join(parts, ", ")
}
