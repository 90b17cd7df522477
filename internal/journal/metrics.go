package journal

import (
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
)

// collector measures one journal when it is asked.
type collector struct {
	log  *Log     // nil: nothing is kept in memory
	disk *Journal // nil: nothing is on disk

	records, memory, onDisk, lost, waiting *prometheus.Desc
}

// Measurements returns what l has recorded, keeps and has lost. name tells it from other journals of the process.
func (l *Log) Measurements(name string) prometheus.Collector {
	c := newCollector(name)
	c.log, c.disk = l, l.disk
	return c
}

// Measurements returns what j has recorded, keeps and has lost. name tells it from other journals of the process.
func (j *Journal) Measurements(name string) prometheus.Collector {
	c := newCollector(name)
	c.disk = j
	return c
}

func newCollector(name string) *collector {
	desc := func(metric, help string) *prometheus.Desc {
		return prometheus.NewDesc("plimsoll_journal_"+metric, help, nil, prometheus.Labels{"journal": name})
	}
	return &collector{
		records: desc("records_total", "Decisions recorded since the process began"),
		memory:  desc("memory_bytes", "About what the journal keeps in memory"),
		onDisk:  desc("disk_bytes", "Size of the journal's files"),
		lost: desc("lost_total",
			"Decisions lost since the process began: the disk was full, too slow, or failed, and too many waited for it"),
		waiting: desc("waiting", "Decisions that are in memory only, because the disk cannot be written"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	out <- c.records
	if c.log != nil {
		out <- c.memory
	}
	if c.disk != nil {
		out <- c.onDisk
		out <- c.lost
		out <- c.waiting
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n uint64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
	gauge := func(d *prometheus.Desc, n int64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
	var lost uint64
	if c.log != nil {
		c.log.mu.Lock()
		records, bytes := c.log.next-c.log.began, c.log.bytes
		c.log.mu.Unlock()
		counter(c.records, records)
		gauge(c.memory, int64(bytes))
		lost = c.log.lost.Load()
	} else {
		c.disk.mu.Lock()
		records := c.disk.number - c.disk.began
		c.disk.mu.Unlock()
		counter(c.records, records)
	}
	if c.disk == nil {
		return
	}
	var size int64
	for _, name := range []string{older, newer} {
		if info, err := os.Stat(filepath.Join(c.disk.dir, name)); err == nil {
			size += info.Size()
		}
	}
	gauge(c.onDisk, size)
	counter(c.lost, lost+c.disk.lost.Load())
	var a Answer
	c.disk.waiting(&a)
	gauge(c.waiting, int64(a.Waiting))
}
