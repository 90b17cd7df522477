package scheduler

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"

type portFilter struct{}

func (portFilter) about() ruling {
	return ruling{
		rule:   RulePorts,
		plugin: "NodePorts",
		ends:   byRoom,
		reads:  podFields{"Ports"},
		alike:  true,
	}
}

func (portFilter) asks(d *demand) bool { return len(d.ports) > 0 }

// judge requires that no port of the pod is taken on the node. A port on every address (AnyIP) conflicts with the same
// port on any address. A port on one address conflicts with the same port on that address and on AnyIP.
func (portFilter) judge(c *state, d *demand, r row) bool {
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

func (portFilter) explain(_ *state, _ *demand, _ row, reasons []string) []string {
	return append(reasons, "node(s) didn't have free ports for the requested pod ports")
}

func (portFilter) final(*state, *demand, row) bool { return false }

func (f portFilter) narrow(c *state, d *demand, m rows.Mask) {
	if len(d.ports) > 0 {
		c.narrowAmong(f.judge, d, m, c.marks.ports)
	}
}

func (c *state) portTaken(r row, want HostPort) bool {
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
