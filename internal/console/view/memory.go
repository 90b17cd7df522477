package view

import (
	"encoding/json"
	"time"

	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Sample is a node's memory at a time.
type Sample struct {
	At        time.Time `json:"t"`
	Available int64     `json:"a"` // the signal memory.available
	Capacity  int64     `json:"c"`
	// Stalled is the share of the last ten seconds in which some process waited for memory, in percent; negative: the
	// node does not say.
	Stalled float64 `json:"s"`
}

// SampleOf reads a node's memory in a Summary. known is false if it does not have it.
func SampleOf(s *statsapi.Summary) (out Sample, known bool) {
	o, known := translate.EvictionSignals(s)[allocatable.MemoryAvailable]
	if !known {
		return Sample{}, false
	}
	m := s.Node.Memory
	out = Sample{At: m.Time.Time, Available: o.Available, Capacity: o.Capacity, Stalled: -1}
	if m.PSI != nil {
		out.Stalled = m.PSI.Some.Avg10
	}
	return out, true
}

// Threshold is an eviction threshold of memory.available.
type Threshold struct {
	Bytes int64  `json:"bytes"`
	Text  string `json:"text"`            // as it is configured: "100Mi", "10%"
	Grace string `json:"grace,omitempty"` // of a soft one: how long it must be met
}

// Thresholds returns those of memory.available.
func Thresholds(c eviction.Config, capacity int64) []Threshold {
	out := []Threshold{}
	for _, t := range c.Thresholds {
		if t.Signal != allocatable.MemoryAvailable {
			continue
		}
		one := Threshold{Bytes: t.Value.Of(capacity), Text: t.Text}
		if one.Text == "" {
			one.Text = eviction.Amount(t.Signal, one.Bytes)
		}
		if !t.IsHard() {
			one.Grace = t.Grace.String()
		}
		out = append(out, one)
	}
	return out
}

// Mark is a decision of a node's agent to evict.
type Mark struct {
	At        time.Time `json:"t"`
	Signal    string    `json:"signal,omitempty"` // the first that was met
	Available int64     `json:"available"`
	Threshold int64     `json:"threshold"`
	Pods      []string  `json:"pods"` // who was evicted
	Text      string    `json:"text"`
}

// Marks returns the decisions in a journal by which pods were evicted, the oldest first.
func Marks(records []journal.Record) []Mark {
	out := []Mark{}
	for i := range records {
		r := &records[i]
		var d journal.Decision
		if r.Kind != journal.Eviction || len(r.Pods) == 0 || json.Unmarshal(r.Detail, &d) != nil {
			continue
		}
		m := Mark{At: r.Time, Text: r.Text}
		for _, met := range d.Decided.Met {
			if met.Acts {
				m.Signal = string(met.Signal)
				m.Available, m.Threshold = met.Available, met.Amount
				break
			}
		}
		for _, p := range r.Pods {
			m.Pods = append(m.Pods, p.Namespace+"/"+p.Name)
		}
		out = append(out, m)
	}
	return out
}
