package journal

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// measured returns the values of metrics by name, without what all names begin with.
func measured(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		out[f.GetName()[len("plimsoll_journal_"):]] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return out
}

// TestMeasurements: a journal in memory has no metrics of a disk; what does not reach the disk is counted as lost.
func TestMeasurements(t *testing.T) {
	memory := newLog(t, BytesMax, "")
	memory.Note(placed("p"))
	got := measured(t, memory.Measurements("m"))
	if len(got) != 2 || got["records_total"] != 1 || got["memory_bytes"] < 1 {
		t.Errorf("in memory: %v", got)
	}

	dir := t.TempDir()
	both := newLog(t, BytesMax, dir)
	both.Note(placed("p"))
	both.Note(placed("q"))
	for deadline := time.Now().Add(time.Minute); measured(t, both.Measurements("b"))["disk_bytes"] == 0; {
		if time.Now().After(deadline) {
			t.Fatal("nothing is on the disk")
		}
	}
	got = measured(t, both.Measurements("b"))
	if len(got) != 5 || got["records_total"] != 2 || got["memory_bytes"] < 1 || got["lost_total"] != 0 {
		t.Errorf("in memory and on disk: %v", got)
	}
	if err := both.Close(); err != nil {
		t.Fatal(err)
	}

	disk := open(t, dir, 0) // it counts from its own beginning
	if _, err := disk.Append(record("p", 10)); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.Append(record("too long", 2*lineMax)); err == nil {
		t.Error("a record of 2 MiB was written")
	}
	got = measured(t, disk.Measurements("d"))
	if len(got) != 4 || got["records_total"] != 2 || got["lost_total"] != 1 || got["disk_bytes"] < 10 {
		t.Errorf("on disk: %v", got)
	}
}
