package cadvisor

import (
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
)

const (
	counter = "counter"
	gauge   = "gauge"
)

// put takes one sample of a row: its labels next to the row's, and its value. cgroup.Absent is no sample.
type put func(extra string, v int64)

// family is a family of metrics about rows.
type family struct {
	name string
	kind string
	unit unit
	each func(*scrape, *row, put)
	help string
}

// count is a counter.
func count(name string, each func(*scrape, *row, put), help string) family {
	return family{name: name, kind: counter, each: each, help: help}
}

// countSeconds is a counter of nanoseconds.
func countSeconds(name string, each func(*scrape, *row, put), help string) family {
	return family{name: name, kind: counter, unit: nanoseconds, each: each, help: help}
}

// countMilliseconds is a counter of milliseconds.
func countMilliseconds(name string, each func(*scrape, *row, put), help string) family {
	return family{name: name, kind: counter, unit: milliseconds, each: each, help: help}
}

// show is a gauge.
func show(name string, each func(*scrape, *row, put), help string) family {
	return family{name: name, kind: gauge, each: each, help: help}
}

// showLimit is a gauge that shows no limit as 0.
func showLimit(name string, each func(*scrape, *row, put), help string) family {
	return family{name: name, kind: gauge, unit: orZero, each: each, help: help}
}

// showMicroseconds is a gauge of nanoseconds that is shown in microseconds.
func showMicroseconds(name string, each func(*scrape, *row, put), help string) family {
	return family{name: name, kind: gauge, unit: microseconds, each: each, help: help}
}

// families are all families about rows, in the order of their names.
var families = []family{
	count("container_blkio_device_usage_total", eachOperation, "Bytes read and written by block device"),
	count("container_cpu_cfs_burst_periods_total", withQuota(cgroup.CPUBurstPeriods),
		"Periods in which the quota was exceeded by what had been saved"),
	countSeconds("container_cpu_cfs_burst_seconds_total", withQuota(cgroup.CPUBurstTime),
		"CPU time above the quota, in seconds"),
	count("container_cpu_cfs_periods_total", withQuota(cgroup.CPUPeriods), "Periods of the CPU quota that have passed"),
	count("container_cpu_cfs_throttled_periods_total", withQuota(cgroup.CPUThrottledPeriods),
		"Periods in which the CPU quota was used up"),
	countSeconds("container_cpu_cfs_throttled_seconds_total", withQuota(cgroup.CPUThrottledTime),
		"Time for which the CPU quota held tasks back, in seconds"),
	countSeconds("container_cpu_system_seconds_total", of(cgroup.CPUSystem), "CPU time in the kernel, in seconds"),
	countSeconds("container_cpu_usage_seconds_total", cpuTime, "CPU time in seconds"),
	countSeconds("container_cpu_user_seconds_total", of(cgroup.CPUUser), "CPU time outside the kernel, in seconds"),
	show("container_file_descriptors", own(func(r *row) int64 { return r.descriptors }), "Open files of all processes"),
	show("container_fs_inodes_free", eachFilesystem(func(f *filesystem) int64 { return f.inodesFree }),
		"Free inodes of a file system of the node"),
	show("container_fs_inodes_total", eachFilesystem(func(f *filesystem) int64 { return f.inodes }),
		"Inodes of a file system of the node"),
	show("container_fs_io_current", eachDisk(diskInFlight), "Requests that a disk of the node works on"),
	countMilliseconds("container_fs_io_time_seconds_total", eachDisk(diskBusy),
		"Time for which a disk of the node had requests, in seconds"),
	countMilliseconds("container_fs_io_time_weighted_seconds_total", eachDisk(diskBusyWeighted),
		"The same, times the requests at that time, in seconds"),
	show("container_fs_limit_bytes", eachFilesystem(func(f *filesystem) int64 { return f.capacity }),
		"Size of a file system of the node"),
	countMilliseconds("container_fs_read_seconds_total", eachDisk(diskReadTime), "Time that reads took, in seconds"),
	count("container_fs_reads_bytes_total", eachDevice(readBytes, diskReadBytes), "Bytes read by device"),
	count("container_fs_reads_merged_total", eachDisk(diskReadsMerged), "Reads that were merged with others"),
	count("container_fs_reads_total", eachDevice(reads, diskReads.of), "Reads by device"),
	count("container_fs_sector_reads_total", eachDisk(diskSectorsRead), "Sectors of 512 bytes that were read"),
	count("container_fs_sector_writes_total", eachDisk(diskSectorsWritten), "Sectors of 512 bytes that were written"),
	show("container_fs_usage_bytes", eachFilesystem(func(f *filesystem) int64 { return f.used }),
		"Bytes in use of a file system of the node"),
	countMilliseconds("container_fs_write_seconds_total", eachDisk(diskWriteTime), "Time that writes took, in seconds"),
	count("container_fs_writes_bytes_total", eachDevice(writeBytes, diskWriteBytes), "Bytes written by device"),
	count("container_fs_writes_merged_total", eachDisk(diskWritesMerged), "Writes that were merged with others"),
	count("container_fs_writes_total", eachDevice(writes, diskWrites.of), "Writes by device"),
	show("container_last_seen", now, "Unix time of this scrape"),
	show("container_memory_cache", of(cgroup.MemoryCache), "Page cache in bytes"),
	count("container_memory_failcnt", of(cgroup.MemoryLimitHits), "How often memory reached its limit"),
	count("container_memory_failures_total", eachFault, "Page faults; the scope hierarchy includes the cgroups below"),
	show("container_memory_kernel_usage", of(cgroup.MemoryKernel), "Memory of the kernel in bytes"),
	show("container_memory_mapped_file", of(cgroup.MemoryMapped), "Mapped files in bytes"),
	show("container_memory_max_usage_bytes", of(cgroup.MemoryPeak), "Largest container_memory_usage_bytes so far"),
	show("container_memory_rss", of(cgroup.MemoryAnonymous), "Anonymous memory in bytes"),
	show("container_memory_swap", of(cgroup.MemorySwapped), "Swapped memory in bytes"),
	show("container_memory_total_active_file_bytes", of(cgroup.MemoryActiveFile),
		"Page cache that was used lately, in bytes"),
	show("container_memory_total_inactive_file_bytes", of(cgroup.MemoryInactiveFile),
		"Page cache that was not used lately, in bytes"),
	show("container_memory_usage_bytes", of(cgroup.MemoryCharged), "Memory in bytes, page cache included"),
	show("container_memory_working_set_bytes", workingSet,
		"Memory in bytes, without page cache that was not used lately"),
	count("container_network_receive_bytes_total", eachInterface(rxBytes), "Bytes received"),
	count("container_network_receive_errors_total", eachInterface(rxErrors), "Errors while receiving"),
	count("container_network_receive_packets_dropped_total", eachInterface(rxDropped),
		"Packets dropped while receiving"),
	count("container_network_receive_packets_total", eachInterface(rxPackets), "Packets received"),
	count("container_network_transmit_bytes_total", eachInterface(txBytes), "Bytes sent"),
	count("container_network_transmit_errors_total", eachInterface(txErrors), "Errors while sending"),
	count("container_network_transmit_packets_dropped_total", eachInterface(txDropped),
		"Packets dropped while sending"),
	count("container_network_transmit_packets_total", eachInterface(txPackets), "Packets sent"),
	count("container_oom_events_total", of(cgroup.MemoryOOMKills), "Processes that the kernel killed for memory"),
	countSeconds("container_pressure_cpu_stalled_seconds_total", of(cgroup.CPUStallFull),
		"Time in which all tasks waited for a CPU, in seconds"),
	countSeconds("container_pressure_cpu_waiting_seconds_total", of(cgroup.CPUStallSome),
		"Time in which some task waited for a CPU, in seconds"),
	countSeconds("container_pressure_io_stalled_seconds_total", of(cgroup.IOStallFull),
		"Time in which all tasks waited for disks, in seconds"),
	countSeconds("container_pressure_io_waiting_seconds_total", of(cgroup.IOStallSome),
		"Time in which some task waited for disks, in seconds"),
	countSeconds("container_pressure_memory_stalled_seconds_total", of(cgroup.MemoryStallFull),
		"Time in which all tasks waited for memory, in seconds"),
	countSeconds("container_pressure_memory_waiting_seconds_total", of(cgroup.MemoryStallSome),
		"Time in which some task waited for memory, in seconds"),
	show("container_processes", own(func(r *row) int64 { return r.processes }), "Processes"),
	show("container_sockets", own(func(r *row) int64 { return r.sockets }), "Open sockets of all processes"),
	showMicroseconds("container_spec_cpu_period", of(cgroup.CPUPeriod), "Period of the CPU quota in microseconds"),
	showMicroseconds("container_spec_cpu_quota", of(cgroup.CPUQuota), "CPU quota in microseconds per period"),
	show("container_spec_cpu_shares", shares, "CPU shares"),
	showLimit("container_spec_memory_limit_bytes", of(cgroup.MemoryLimit), "Memory limit in bytes; 0: none"),
	showLimit("container_spec_memory_reservation_limit_bytes", of(cgroup.MemorySoftLimit),
		"Memory that is protected (v2 memory.min) or to be left (v1 soft limit), in bytes; 0: none"),
	showLimit("container_spec_memory_swap_limit_bytes", of(cgroup.SwapLimit),
		"Swap limit in bytes, on cgroup v1 with the memory's; 0: none"),
	show("container_start_time_seconds", own(func(r *row) int64 { return r.started }), "Unix time of the start"),
	show("container_threads", of(cgroup.Threads), "Threads"),
	showLimit("container_threads_max", of(cgroup.ThreadsLimit), "Limit of threads; 0: none"),
	show("container_ulimits_soft", filesLimit, "Soft limits of the first process"),
}

// of is one counter of the row.
func of(c cgroup.Counter) func(*scrape, *row, put) {
	return func(_ *scrape, r *row, put put) { put("", r.Counters[c]) }
}

// own is one number of the row that is no counter of its cgroup.
func own(value func(*row) int64) func(*scrape, *row, put) {
	return func(_ *scrape, r *row, put put) { put("", value(r)) }
}

func now(s *scrape, _ *row, put put) { put("", s.now) }

func cpuTime(_ *scrape, r *row, put put) { put(`cpu="total"`, r.Counters[cgroup.CPUTime]) }

func filesLimit(_ *scrape, r *row, put put) { put(`ulimit="max_open_files"`, r.filesSoftLimit) }

// withQuota is one counter of a row that has a CPU quota. The kernel shows zeros for others.
func withQuota(c cgroup.Counter) func(*scrape, *row, put) {
	return func(_ *scrape, r *row, put put) {
		if r.Counters[cgroup.CPUQuota] != cgroup.Absent {
			put("", r.Counters[c])
		}
	}
}

func workingSet(_ *scrape, r *row, put put) {
	if charged, ok := r.Get(cgroup.MemoryCharged); ok {
		// The two are read one after the other, so the difference may be negative.
		put("", max(0, charged-max(0, r.Counters[cgroup.MemoryInactiveFile])))
	}
}

// shares translates the weight of v2 back to shares: 1 to 10000 become 2 to 262144, the inverse of what runtimes do
// (KEP-2254).
func shares(_ *scrape, r *row, put put) {
	if weight, ok := r.Get(cgroup.CPUWeight); ok {
		put("", 2+(min(max(weight, 1), 10_000)-1)*262_142/9_999)
		return
	}
	put("", r.Counters[cgroup.CPUShares])
}

func eachFault(_ *scrape, r *row, put put) {
	alone, aloneMajor := r.Counters[cgroup.OwnPageFaults], r.Counters[cgroup.OwnMajorPageFaults]
	if alone == cgroup.Absent { // v2 counts the whole hierarchy only; cAdvisor shows it twice
		alone, aloneMajor = r.Counters[cgroup.PageFaults], r.Counters[cgroup.MajorPageFaults]
	}
	put(`failure_type="pgfault",scope="container"`, alone)
	put(`failure_type="pgmajfault",scope="container"`, aloneMajor)
	put(`failure_type="pgfault",scope="hierarchy"`, r.Counters[cgroup.PageFaults])
	put(`failure_type="pgmajfault",scope="hierarchy"`, r.Counters[cgroup.MajorPageFaults])
}

// eachInterface is one counter of each network interface of a row.
func eachInterface(which int) func(*scrape, *row, put) {
	return func(s *scrape, r *row, put put) {
		for i := r.interfaces.from; i < r.interfaces.to; i++ {
			put(s.interfaces[i].label, s.interfaces[i].counters[which])
		}
	}
}

// eachDevice is one counter of each block device that a row has used: of its cgroup, or of the disk for the root row,
// whose cgroup counts nothing on v1.
func eachDevice(used func(*cgroup.Device) int64, all func(*disk) int64) func(*scrape, *row, put) {
	return func(s *scrape, r *row, put put) {
		if r.root {
			s.eachUsedDisk(func(d *disk) { put(d.device, all(d)) })
			return
		}
		for i := r.devices.from; i < r.devices.to; i++ {
			put(s.diskOf(&s.devices[i]).device, used(&s.devices[i]))
		}
	}
}

func reads(d *cgroup.Device) int64      { return d.Reads }
func writes(d *cgroup.Device) int64     { return d.Writes }
func readBytes(d *cgroup.Device) int64  { return d.ReadBytes }
func writeBytes(d *cgroup.Device) int64 { return d.WriteBytes }

func eachOperation(s *scrape, r *row, put put) {
	if r.root {
		s.eachUsedDisk(func(d *disk) {
			put(d.read, diskReadBytes(d))
			put(d.write, diskWriteBytes(d))
		})
		return
	}
	for i := r.devices.from; i < r.devices.to; i++ {
		d := &s.devices[i]
		put(s.diskOf(d).read, d.ReadBytes)
		put(s.diskOf(d).write, d.WriteBytes)
	}
}

// eachDisk is a number of each disk of the node that has been used, for the root row.
func eachDisk(which diskField) func(*scrape, *row, put) {
	return func(s *scrape, r *row, put put) {
		if !r.root {
			return
		}
		s.eachUsedDisk(func(d *disk) { put(d.device, d.fields[which]) })
	}
}

// eachFilesystem is a number of each file system of the node, for the root row.
func eachFilesystem(value func(*filesystem) int64) func(*scrape, *row, put) {
	return func(s *scrape, r *row, put put) {
		if !r.root {
			return
		}
		for i := range s.mounted {
			put(s.mounted[i].device, value(&s.mounted[i]))
		}
	}
}
