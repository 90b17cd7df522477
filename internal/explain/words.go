package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/remedy"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// quantity prints an amount of a resource as Kubernetes does.
func quantity(resource string, n int64) string {
	switch {
	case resource == scheduler.CPU:
		return unit.MilliCPU(n).String()
	case resource == scheduler.Memory, resource == scheduler.EphemeralStorage, strings.HasPrefix(resource, "hugepages-"):
		return unit.Bytes(n).String()
	}
	return fmt.Sprint(n)
}

func taintText(t scheduler.Taint) string {
	if t.Value == "" {
		return t.Key + ":" + string(t.Effect)
	}
	return t.Key + "=" + t.Value + ":" + string(t.Effect)
}

// remedyOf puts a remedy into words.
func remedyOf(r *remedy.Remedy) Remedy {
	out := Remedy{Of: r.Of, Node: r.Node, Feasible: r.Fits, Violations: r.Violations}
	var parts []string
	for i := range r.Changes {
		c := &r.Changes[i]
		parts = append(parts, changeText(c, r.Node))
		out.Changes = append(out.Changes, changeOf(c))
	}
	for _, v := range r.Victims {
		out.Victims = append(out.Victims, v.Namespace+"/"+v.Name)
	}
	text := strings.Join(parts, ", and ")
	switch r.Of {
	case remedy.OfPreemption:
		parts = append(parts, "nothing has to change: it may preempt less important pods")
		text = strings.Join(parts, ", and ")
	case remedy.OfPod:
		text = fmt.Sprintf("change the pod: %s (%s then)", text, nodesTake(r))
	}
	if len(r.Victims) > 0 {
		text += fmt.Sprintf(" (on %s it preempts %s", r.Node, strings.Join(out.Victims, ", "))
		if r.Violations > 0 {
			text += fmt.Sprintf("; of these, disruption budgets protect %d", r.Violations)
		}
		text += ")"
	}
	out.Text = text
	return out
}

func nodesTake(r *remedy.Remedy) string {
	if r.Fits == 1 {
		return r.Node + " takes it"
	}
	return fmt.Sprintf("%d nodes take it", r.Fits)
}

func changeOf(c *remedy.Change) Change {
	out := Change{Kind: c.Kind, Name: c.Name, Value: c.Value}
	if c.Taint.Key != "" {
		out.Taint = taintText(c.Taint)
	}
	amounts := []remedy.Kind{remedy.LowerRequest, remedy.FreeResource, remedy.GrowNode, remedy.RaisePriority,
		remedy.AllowDisruptions}
	if slices.Contains(amounts, c.Kind) {
		out.From, out.To = quantity(c.Name, c.From), quantity(c.Name, c.To)
	}
	if c.Kind == remedy.DropPort {
		out.To = fmt.Sprint(c.To)
	}
	return out
}

// changeText puts one change into words. node is the node of its remedy.
func changeText(c *remedy.Change, node string) string {
	from, to := quantity(c.Name, c.From), quantity(c.Name, c.To)
	switch c.Kind {
	case remedy.RemoveGate:
		return fmt.Sprintf("remove the scheduling gate %s", c.Name)
	case remedy.LowerRequest:
		if c.To == 0 {
			return fmt.Sprintf("request no %s (now %s)", c.Name, from)
		}
		return fmt.Sprintf("request %s %s instead of %s", c.Name, to, from)
	case remedy.Tolerate:
		return fmt.Sprintf("tolerate the taint %s", taintText(c.Taint))
	case remedy.DropSelector:
		return fmt.Sprintf("drop %s=%s from nodeSelector", c.Name, c.Value)
	case remedy.DropNodeAffinity:
		return "drop the required node affinity"
	case remedy.SoftenSpread:
		return fmt.Sprintf("set whenUnsatisfiable: ScheduleAnyway in the spread constraint over %s", c.Name)
	case remedy.DropAffinity:
		return fmt.Sprintf("drop the required pod affinity within %s", c.Name)
	case remedy.DropAntiAffinity:
		return fmt.Sprintf("drop the required pod anti-affinity within %s", c.Name)
	case remedy.DropPort:
		return fmt.Sprintf("drop the host port %d/%s", c.To, c.Name)
	case remedy.RaisePriority:
		return fmt.Sprintf("give the pod a priority of at least %d instead of %d", c.To, c.From)
	case remedy.AllowPreemption:
		return "set preemptionPolicy: PreemptLowerPriority"
	case remedy.AllowDisruptions:
		return fmt.Sprintf("have disruption budget %s allow %s instead of %d", c.Name,
			countOf(int(c.To), "disruption", "disruptions"), c.From)
	}
	return nodeText(c, node, from, to)
}

// nodeText is changeText for changes of nodes.
func nodeText(c *remedy.Change, node, from, to string) string {
	switch c.Kind {
	case remedy.Uncordon:
		return fmt.Sprintf("uncordon node %s", node)
	case remedy.RemoveTaint:
		return fmt.Sprintf("remove the taint %s from node %s", taintText(c.Taint), node)
	case remedy.EndCondition:
		return fmt.Sprintf("end the condition of node %s for which it has the taint %s", node, taintText(c.Taint))
	case remedy.SetLabel:
		return fmt.Sprintf("label node %s with %s=%s", node, c.Name, c.Value)
	case remedy.RemoveLabel:
		return fmt.Sprintf("remove the label %s from node %s", c.Name, node)
	case remedy.FreeResource:
		if c.Name == scheduler.Pods {
			return fmt.Sprintf("make room for one more pod on node %s", node)
		}
		return fmt.Sprintf("free %s %s more on node %s (%s is free, %s is requested)", c.Name,
			quantity(c.Name, c.To-c.From), node, from, to)
	case remedy.GrowNode:
		return fmt.Sprintf("have %s %s allocatable on node %s instead of %s", c.Name, to, node, from)
	case remedy.AddNode:
		return fmt.Sprintf("add one more node like %s", c.Name)
	}
	return string(c.Kind)
}
