package cadvisor

// machine writes the families about the machine.
func (e *encoder) machine(o *Options) {
	m := &o.Machine
	id := &m.Identity
	e.labelled("cadvisor_version_info", "Versions of kernel and system; the others are empty, since this is not cAdvisor",
		string(joined("cadvisorRevision", "", "cadvisorVersion", "", "dockerVersion", "",
			"kernelVersion", id.KernelVersion, "osVersion", id.OSImage)), 1)
	of := string(joined("boot_id", id.BootID, "machine_id", id.MachineID, "system_uuid", id.SystemUUID))
	e.labelled("machine_cpu_cores", "Logical CPUs", of, int64(m.CPUs.Len()))
	e.labelled("machine_cpu_physical_cores", "CPU cores", of, int64(len(m.Cores)))
	e.labelled("machine_cpu_sockets", "CPU sockets", of, int64(len(m.Sockets)))
	e.labelled("machine_memory_bytes", "Memory that the kernel can use, in bytes", of, int64(m.Memory))
	e.labelled("machine_swap_bytes", "Swap in bytes", of, int64(m.Swap))
}

// joined writes labels from pairs of name and value.
func joined(pairs ...string) []byte {
	var out []byte
	for i := 0; i+1 < len(pairs); i += 2 {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendLabel(out, pairs[i], pairs[i+1])
	}
	return out
}
