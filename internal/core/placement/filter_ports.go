package placement

import "github.com/plimsoll-dev/plimsoll/internal/core/placement/rows"

type portFilter struct{}

func (portFilter) about() ruling {
	return ruling{rule: RulePorts, plugin: "NodePorts", reads: podFields{"Ports"}, alike: true}
}

// judge demands that no port of the pod is taken on the node. A port on every address (AnyIP) collides with the
// same port on any; one on a given address with that address and with AnyIP.
func (portFilter) judge(c *cluster, d *demand, r row) bool {
	if len(d.ports) == 0 || len(c.ports[r]) == 0 {
		return true
	}
	for _, want := range d.ports {
		if c.portTaken(r, want) {
			return false
		}
	}
	return true
}

func (portFilter) explain(_ *cluster, _ *demand, _ row, reasons []string) []string {
	return append(reasons, "node(s) didn't have free ports for the requested pod ports")
}

func (portFilter) final(*cluster, *demand, row) bool { return false }

func (f portFilter) narrow(c *cluster, d *demand, m rows.Mask) {
	if len(d.ports) > 0 {
		c.narrowAmong(f.judge, d, m, c.marks.ports)
	}
}

func (c *cluster) portTaken(r row, want HostPort) bool {
	if want.IP == AnyIP {
		for have := range c.ports[r] {
			if have.Port == want.Port && have.Protocol == want.Protocol {
				return true
			}
		}
		return false
	}
	anywhere := want
	anywhere.IP = AnyIP
	return c.ports[r][want] > 0 || c.ports[r][anywhere] > 0
}
