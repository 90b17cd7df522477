package cluster

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresource "k8s.io/component-helpers/resource"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Describe prints what a user wants to know about a cluster that is up: the resources of this machine's node, the pods
// on it, problems, and commands to try next.
func Describe(ctx context.Context, w io.Writer, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s, err := ReadStatus(ctx, o)
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	if o.Agent {
		if err := describeNode(ctx, w, o); err != nil {
			return err
		}
	}
	describeOthers(w, s, o)
	describeTrouble(w, s)
	describeNext(w, o)
	return nil
}

func describeNode(ctx context.Context, w io.Writer, o Options) error {
	client, err := layout{o}.client(whoAdmin)
	if err != nil {
		return err
	}
	node := &corev1.Node{}
	if err := client.Get(ctx, kube.Nodes, "", o.NodeName, node); err != nil {
		return err
	}
	all := &corev1.PodList{}
	if err := client.List(ctx, kube.Pods, "", metav1.ListOptions{FieldSelector: "spec.nodeName=" + o.NodeName},
		all); err != nil {
		return err
	}
	state := "Ready"
	if err := readyCondition(node); err != nil {
		state = err.Error()
	}
	fmt.Fprintf(w, "node %s: %s\n", node.Name, state)
	lines := resourceRows(node, all.Items, layout{o}.readUsage(ctx))
	if err := printResources(w, lines); err != nil {
		return err
	}
	return printPods(w, all.Items)
}

// resourceRow is one resource of a node. Nil quantities are not known.
type resourceRow struct {
	resource                                         corev1.ResourceName
	capacity, reserved, allocatable, requested, used *resource.Quantity
}

// resourceRows computes for each resource what a node has, what is allocatable, what its pods request and what they
// use.
func resourceRows(node *corev1.Node, pods []corev1.Pod, used corev1.ResourceList) []resourceRow {
	requested := corev1.ResourceList{}
	running := int64(0)
	for i := range pods {
		if pods[i].Status.Phase == corev1.PodSucceeded || pods[i].Status.Phase == corev1.PodFailed {
			continue
		}
		running++
		for name, q := range podresource.PodRequests(&pods[i], podresource.PodResourcesOptions{}) {
			sum := requested[name]
			sum.Add(q)
			requested[name] = sum
		}
	}
	requested[corev1.ResourcePods] = *resource.NewQuantity(running, resource.DecimalSI)
	if used != nil {
		used[corev1.ResourcePods] = requested[corev1.ResourcePods]
	}
	var rows []resourceRow
	for name, capacity := range node.Status.Capacity {
		row := resourceRow{resource: name, capacity: &capacity}
		if allocatable, ok := node.Status.Allocatable[name]; ok {
			reserved := capacity.DeepCopy()
			reserved.Sub(allocatable)
			row.allocatable, row.reserved = &allocatable, &reserved
		}
		if capacity.IsZero() && row.allocatable != nil && row.allocatable.IsZero() {
			continue // a size of huge pages that the kernel supports and of which nobody reserved pages
		}
		asked := requested[name]
		row.requested = &asked
		if q, ok := used[name]; ok {
			row.used = &q
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b resourceRow) int {
		return cmp.Or(cmp.Compare(rank(a.resource), rank(b.resource)), cmp.Compare(a.resource, b.resource))
	})
	return rows
}

// rank sorts the common resources first.
func rank(name corev1.ResourceName) int {
	order := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourcePods}
	if i := slices.Index(order, name); i >= 0 {
		return i
	}
	return len(order)
}

func printResources(w io.Writer, rows []resourceRow) error {
	widest := len("RESOURCE")
	for _, r := range rows {
		widest = max(widest, len(r.resource))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	// names are aligned to the left, numbers to the right
	fmt.Fprintf(t, "%-*s\tCAPACITY\tRESERVED\tALLOCATABLE\tREQUESTED\tUSED\t\n", widest, "RESOURCE")
	for _, r := range rows {
		fmt.Fprintf(t, "%-*s\t%s\t%s\t%s\t%s\t%s\t\n", widest, r.resource,
			short(r.resource, r.capacity), short(r.resource, r.reserved), short(r.resource, r.allocatable), short(r.resource,
				r.requested), short(r.resource, r.used))
	}
	return t.Flush()
}

// short prints a quantity for a person: bytes in the largest unit that is exact, or that leaves at least three digits,
// so that a difference of one hundredth is visible.
func short(name corev1.ResourceName, q *resource.Quantity) string {
	if q == nil {
		return "-"
	}
	if name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage {
		return q.String()
	}
	const step = 1024
	units := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	value := q.Value()
	for value != 0 && len(units) > 1 && (value%step == 0 || value >= 100*step) {
		value, units = (value+step/2)/step, units[1:]
	}
	return fmt.Sprintf("%d%s", value, units[0])
}

// podsShown is how many pods are listed.
const podsShown = 10

func printPods(w io.Writer, pods []corev1.Pod) error {
	if len(pods) == 0 {
		fmt.Fprintln(w, "\nno pods yet")
		return nil
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "POD\tPHASE\tIP\tRESTARTS\tAGE")
	for i := range pods[:min(len(pods), podsShown)] {
		p := &pods[i]
		restarts := int32(0)
		for _, c := range p.Status.ContainerStatuses {
			restarts += c.RestartCount
		}
		fmt.Fprintf(t, "%s/%s\t%s\t%s\t%d\t%s\n", p.Namespace, p.Name, p.Status.Phase, cmp.Or(p.Status.PodIP, "-"), restarts,
			time.Since(p.CreationTimestamp.Time).Truncate(time.Second))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if more := len(pods) - podsShown; more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
	return nil
}

// describeOthers prints the number of nodes other than this machine's.
func describeOthers(w io.Writer, s Status, o Options) {
	ready, others := 0, 0
	for _, n := range s.Nodes {
		if o.Agent && n.Name == o.NodeName {
			continue
		}
		others++
		if n.Ready {
			ready++
		}
	}
	if others > 0 {
		fmt.Fprintf(w, "\nother nodes: %d, %d of them Ready\n", others, ready)
	}
}

// describeTrouble prints processes that do not run or were restarted, although the nodes are Ready.
func describeTrouble(w io.Writer, s Status) {
	for _, c := range s.Children {
		switch {
		case c.PID == 0:
			fmt.Fprintf(w, "\n%s is not running: %s (log: %s)\n", c.Name, cmp.Or(c.LastExit, "never started"), c.Log)
		case c.Restarts > 0:
			fmt.Fprintf(w, "\n%s was restarted %d times, last: %s (log: %s)\n", c.Name, c.Restarts, c.LastExit, c.Log)
		}
	}
}

func describeNext(w io.Writer, o Options) {
	flags := o.flags(os.Geteuid() == 0, os.Getenv)
	run := "create deployment hello --image " + image.Demo + " --replicas 3"
	if !o.Agent && o.Hollow == 0 {
		run = "get namespaces" // there is no node to run a pod
	}
	if o.joined() { // kubectl is used on the machine with the control plane
		fmt.Fprintf(w, "\ntry:\n  plimsoll status%s\n", flags)
		return
	}
	fmt.Fprintf(w, `
try:
  export KUBECONFIG=$(plimsoll kubeconfig%s)
  plimsoll kubectl%s %s
  plimsoll status%s
`, flags, flags, run, flags)
}

// flags returns the flags with which other verbs find the instance. It is empty for the default name and directory.
func (o Options) flags(root bool, getenv func(string) string) string {
	flags := ""
	if o.Instance != DefaultInstance {
		flags += " --instance " + o.Instance
	}
	usual := Options{Instance: o.Instance}
	if state, _, err := usual.directories(root, getenv); err != nil || state != o.StateDir {
		flags += " --state-dir " + o.StateDir
	}
	return flags
}
