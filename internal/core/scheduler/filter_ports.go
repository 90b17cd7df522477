package scheduler

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"

// PortsTaken are the host ports that the pods on a node take, each with the number of its pods.
type PortsTaken map[HostPort]int

// Count records that n more pods take a port, or fewer if n is negative.
func (p PortsTaken) Count(port HostPort, n int) {
	if p[port] += n; p[port] == 0 {
		delete(p, port)
	}
}

// Taken reports whether a pod on the node takes a port that another pod asks for. A port on every address (AnyIP)
// collides with the same port on any address; one on a given address collides with that address and with AnyIP.
func (p PortsTaken) Taken(want HostPort) bool {
	if want.IP == AnyIP {
		for have := range p {
			if have.Port == want.Port && have.Protocol == want.Protocol {
				return true
			}
		}
		return false
	}
	anywhere := want
	anywhere.IP = AnyIP
	return p[want] > 0 || p[anywhere] > 0
}

// PluginNodePorts is upstream's name of the rule about host ports, ReasonNodePorts what it says of a node.
const (
	PluginNodePorts = "NodePorts"
	ReasonNodePorts = "node(s) didn't have free ports for the requested pod ports"
)

type portFilter struct{}

func (portFilter) about() ruling {
	return ruling{
		rule:   RulePorts,
		plugin: PluginNodePorts,
		ends:   byRoom,
		reads:  podFields{"Ports"},
		alike:  true,
	}
}

func (portFilter) applies(d *demand) bool { return len(d.ports) > 0 }

// judge requires that no port of the pod is taken on the node.
func (portFilter) judge(c *state, d *demand, r row) bool {
	if len(d.ports) == 0 || len(c.ports[r]) == 0 {
		return true
	}
	for _, want := range d.ports {
		if c.ports[r].Taken(want) {
			return false
		}
	}
	return true
}

func (portFilter) explain(_ *state, _ *demand, _ row, reasons []string) []string {
	return append(reasons, ReasonNodePorts)
}

func (portFilter) final(*state, *demand, row) bool { return false }

func (f portFilter) narrow(c *state, d *demand, m rows.Mask) {
	if len(d.ports) > 0 {
		c.narrowAmong(f.judge, d, m, c.marks.ports)
	}
}
