package recommend

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	corerecommend "github.com/plimsoll-dev/plimsoll/internal/core/recommend"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Result is what was measured, what to reserve, and what other vendors' formulas reserve.
type Result struct {
	Machine  machine.Machine
	MaxPods  int64
	Report   corerecommend.Report
	Advice   corerecommend.Recommendation
	Formulas []corerecommend.Formula
}

func (o Options) result(r corerecommend.Report, coarse bool) *Result {
	out := &Result{
		Machine: o.Machine, MaxPods: o.MaxPods, Report: r, Advice: corerecommend.Recommend(r,
			corerecommend.Node{CPUs: int64(o.Machine.CPUs.Len()), Memory: o.Machine.Memory, MaxPods: o.MaxPods}),
		Formulas: corerecommend.Formulas(int64(o.Machine.CPUs.Len()), o.Machine.Memory, o.MaxPods),
	}
	if coarse {
		out.Advice.Warnings = append(out.Advice.Warnings,
			"the memory of some processes counts shared pages in full, because only root may read it exactly: run as root")
	}
	return out
}

// YAML returns the recommended part of a KubeletConfiguration, with everything else in comments.
func (r *Result) YAML() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Watched for %v: %d samples, %s.\n#\n", r.Report.For.Round(time.Second), r.Report.Samples, r.pods())
	comment(&b, r.usage())
	b.WriteString("#\n")
	for _, c := range r.Report.System {
		fmt.Fprintf(&b, "# Of the system: %s, %s of CPU on average, at most %s of memory (with shared pages).\n", c.Name,
			c.CPU, rounded(c.Memory))
	}
	fmt.Fprintf(&b,
		"#\n# What the formulas of others reserve on %d CPUs and %s, for the system and Kubernetes together, for %d pods:\n"+
			"#\n",
		r.Machine.CPUs.Len(), rounded(r.Machine.Memory), r.MaxPods)
	comment(&b, r.formulas())
	for _, w := range r.Advice.Warnings {
		fmt.Fprintf(&b, "#\n# Warning: %s.\n", w)
	}
	b.WriteString("\n")
	block(&b, "systemReserved", r.Advice.System, r.Advice.Why.SystemCPU, r.Advice.Why.SystemMemory)
	block(&b, "kubeReserved", r.Advice.Kube, r.Advice.Why.KubeCPU, r.Advice.Why.KubeMemory)
	return b.Bytes()
}

func (r *Result) pods() string {
	switch p := r.Report.Pods; {
	case p.Peak == 0:
		return "no pods"
	case p.Peak == 1:
		return "1 pod"
	case p.P50 == p.Peak:
		return fmt.Sprintf("%d pods", p.Peak)
	default:
		return fmt.Sprintf("%d pods, at most %d", p.P50, p.Peak)
	}
}

// block writes one reservation. Amounts are quoted: the configuration requires strings, and 2 without quotes is a
// number.
func block(b *bytes.Buffer, name string, reserved allocatable.Reserved, whyCPU, whyMemory string) {
	if reserved == (allocatable.Reserved{}) {
		fmt.Fprintf(b, "# %s: nothing was seen to reserve for.\n", name)
		return
	}
	cpu, memory := translate.CPUQuantity(reserved.CPU), translate.BytesQuantity(reserved.Memory)
	fmt.Fprintf(b, "%s:\n  cpu: %q # %s\n  memory: %q # %s\n", name, cpu.String(), whyCPU, memory.String(), whyMemory)
}

// comment writes lines as comments.
func comment(b *bytes.Buffer, text []byte) {
	for line := range strings.Lines(string(text)) {
		b.WriteString(strings.TrimRight("# "+line, " \n") + "\n")
	}
}

func (r *Result) usage() []byte {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "USED BY\tCPU P50\tP99\tPEAK\tMEMORY P50\tP99\tPEAK")
	line := func(name string, u corerecommend.Usage) {
		fmt.Fprintf(t, "%s\t%v\t%v\t%v\t%s\t%s\t%s\n", name, u.CPU.P50, u.CPU.P99, u.CPU.Peak, rounded(u.Memory.P50),
			rounded(u.Memory.P99), rounded(u.Memory.Peak))
	}
	for _, part := range []corerecommend.Part{corerecommend.System, corerecommend.Runtime, corerecommend.Agent} {
		line(part.String(), r.Report.Parts[part])
	}
	if r.Report.Slice != nil {
		line("(system.slice)", *r.Report.Slice)
	}
	t.Flush()
	if p := r.Report.PerPod; p.Memory > 0 {
		fmt.Fprintf(&b, "\nEach pod costs runtime and agent %s of memory outside the pod, and %v of CPU an hour.\n",
			rounded(p.Memory), p.CPUPerHour.Round(100*time.Millisecond))
	}
	return b.Bytes()
}

func (r *Result) formulas() []byte {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "\tCPU\tMEMORY\t+ EVICTION\tSOURCE")
	fmt.Fprintf(t, "measured here\t%v\t%s\t\t\n", r.Advice.System.CPU+r.Advice.Kube.CPU, rounded(r.Advice.System.Memory+
		r.Advice.Kube.Memory))
	for _, f := range r.Formulas {
		fmt.Fprintf(t, "%s\t%v\t%s\t%s\t%s\n", f.Vendor, f.CPU, rounded(f.Memory), rounded(f.Eviction), f.Source)
	}
	t.Flush()
	return b.Bytes()
}

// rounded prints memory in MiB, so that amounts can be compared.
func rounded(b unit.Bytes) string {
	return fmt.Sprintf("%.0fMi", float64(b)/float64(unit.MiB))
}

// JSON returns r for programs. The format is stable: keys may be added, but existing keys do not change.
func (r *Result) JSON() ([]byte, error) {
	type amounts struct {
		CPU    string `json:"cpu"`
		Memory string `json:"memory"`
	}
	of := func(cpu unit.MilliCPU, memory unit.Bytes) amounts {
		c, m := translate.CPUQuantity(cpu), translate.BytesQuantity(memory)
		return amounts{c.String(), m.String()}
	}
	type usage struct {
		P50  amounts `json:"p50"`
		P99  amounts `json:"p99"`
		Peak amounts `json:"peak"`
	}
	usageOf := func(u corerecommend.Usage) usage {
		return usage{of(u.CPU.P50, u.Memory.P50), of(u.CPU.P99, u.Memory.P99), of(u.CPU.Peak, u.Memory.Peak)}
	}
	used := map[string]usage{}
	for part, u := range r.Report.Parts {
		used[corerecommend.Part(part).String()] = usageOf(u)
	}
	if r.Report.Slice != nil {
		used["system.slice"] = usageOf(*r.Report.Slice)
	}
	formulas := map[string]amounts{}
	for _, f := range r.Formulas {
		formulas[f.Vendor] = of(f.CPU, f.Memory)
	}
	perPod := translate.BytesQuantity(r.Report.PerPod.Memory)
	var b bytes.Buffer
	w := json.NewEncoder(&b)
	w.SetIndent("", "  ")
	w.SetEscapeHTML(false)
	err := w.Encode(struct {
		Seconds        float64            `json:"watchedSeconds"`
		Samples        int                `json:"samples"`
		PodsMost       int                `json:"podsMost"`
		Used           map[string]usage   `json:"used"`
		PerPod         string             `json:"memoryPerPod"`
		PerPodCPU      float64            `json:"cpuSecondsPerPodHour"`
		SystemReserved amounts            `json:"systemReserved"`
		KubeReserved   amounts            `json:"kubeReserved"`
		Formulas       map[string]amounts `json:"formulas"`
		Warnings       []string           `json:"warnings"`
	}{
		Seconds:        r.Report.For.Seconds(),
		Samples:        r.Report.Samples,
		PodsMost:       r.Report.Pods.Peak,
		Used:           used,
		PerPod:         perPod.String(),
		PerPodCPU:      r.Report.PerPod.CPUPerHour.Seconds(),
		SystemReserved: of(r.Advice.System.CPU, r.Advice.System.Memory),
		KubeReserved:   of(r.Advice.Kube.CPU, r.Advice.Kube.Memory),
		Formulas:       formulas,
		Warnings:       append([]string{}, r.Advice.Warnings...),
	})
	return b.Bytes(), err
}
