package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Status is what `plimsoll status` shows; its JSON form is stable.
type Status struct {
	Instance      string             `json:"instance"`
	StateDir      string             `json:"stateDir"`
	Server        string             `json:"server"`
	SupervisorPID int                `json:"supervisorPID"` // 0: no process restarts children that die
	APIServer     string             `json:"apiServer"`     // "ready", or why it is not
	Children      []supervise.Status `json:"children"`
	Nodes         []NodeStatus       `json:"nodes"`
	Addons        []AddonStatus      `json:"addons"` // those that run as pods

	node string // on a machine that joined, its own node, the only one that Up considers; otherwise empty
}

// AddonStatus is the status of one add-on that runs as pods.
type AddonStatus struct {
	Name   string `json:"name"`
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"` // why it is not ready
}

// NodeStatus is the status of one node.
type NodeStatus struct {
	Name   string `json:"name"`
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"` // why it is not Ready
}

// Up reports whether the instance is up: supervised, every child running, every node Ready. Add-ons that run as pods do
// not count: users may scale or remove them.
func (s Status) Up() bool {
	up := s.SupervisorPID != 0 && s.APIServer == "ready"
	for _, c := range s.Children {
		up = up && c.PID != 0
	}
	for _, n := range s.Nodes {
		up = up && (n.Ready || s.node != "" && n.Name != s.node)
	}
	return up
}

// AwaitUp waits until an instance that another process supervises is up, as cluster.Up does.
func AwaitUp(ctx context.Context, o Options, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not up within %s (--timeout)", timeout))
	defer cancel()
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		s, err := ReadStatus(ctx, o)
		switch {
		case err != nil:
			return err
		case s.Up():
			return nil
		case s.SupervisorPID == 0:
			return fmt.Errorf("wait for instance %s: its supervisor ended meanwhile: run `plimsoll up` again", o.Instance)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for instance %s: %w (see `plimsoll status`)", o.Instance, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// statusTimeout bounds the requests to the API server: users run status when they suspect that something is broken.
const statusTimeout = 5 * time.Second

// ReadStatus reads the status of an instance and changes nothing.
func ReadStatus(ctx context.Context, o Options) (Status, error) {
	l := layout{o}
	s := Status{Instance: o.Instance, StateDir: o.StateDir, Server: l.serverURL(), Nodes: []NodeStatus{},
		Addons: []AddonStatus{}}
	if o.joined() {
		s.node = o.NodeName
	}
	var err error
	if s.SupervisorPID, err = lockHolder(l.lock()); err != nil {
		return s, err
	}
	if s.Children, err = supervise.Read(l.record()); err != nil {
		return s, err
	}
	local, err := l.localChildren()
	if err != nil {
		return s, err
	}
	s.Children = append(s.Children, local...)
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s.APIServer = "ready"
	if s.Nodes, err = l.nodes(ctx); err != nil {
		s.APIServer = err.Error()
		return s, nil
	}
	if !l.o.joined() {
		s.Addons = l.addons(ctx)
	}
	return s, nil
}

func (l layout) addons(ctx context.Context) []AddonStatus {
	out := []AddonStatus{}
	client, err := l.client(whoAdmin)
	for _, a := range l.o.podAddons() {
		s := AddonStatus{Name: a.name}
		reason := err
		if reason == nil {
			reason = deploymentReady(ctx, client, a.name)
		}
		if s.Ready = reason == nil; !s.Ready {
			s.Reason = reason.Error()
		}
		out = append(out, s)
	}
	return out
}

func (l layout) nodes(ctx context.Context) ([]NodeStatus, error) {
	out := []NodeStatus{}
	client, err := l.client(whoAdmin)
	if err != nil {
		return out, err
	}
	if err := client.Ready(ctx); err != nil {
		return out, err
	}
	nodes := &corev1.NodeList{}
	if err := client.List(ctx, kube.Nodes, "", metav1.ListOptions{}, nodes); err != nil {
		return out, err
	}
	for i := range nodes.Items {
		n := NodeStatus{Name: nodes.Items[i].Name, Ready: true}
		if err := readyCondition(&nodes.Items[i]); err != nil {
			n.Ready, n.Reason = false, err.Error()
		}
		out = append(out, n)
	}
	return out, nil
}

// nodesShown is how many nodes a table lists.
const nodesShown = 10

// Print writes s as tables.
func (s Status) Print(w io.Writer) error {
	supervisor := fmt.Sprintf("pid %d", s.SupervisorPID)
	if s.SupervisorPID == 0 {
		supervisor = "none"
	}
	fmt.Fprintf(w, "instance    %s (%s)\nsupervisor  %s\nAPI server  %s, %s\n\n", s.Instance, s.StateDir, supervisor,
		s.Server, s.APIServer)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "PROCESS\tPID\tUPTIME\tRESTARTS\tRESIDENT\tLAST EXIT")
	for _, c := range s.Children {
		pid := "-"
		uptime := "-"
		resident := "-"
		if c.PID != 0 {
			pid = fmt.Sprint(c.PID)
			uptime = c.Uptime.Truncate(time.Second).String()
			resident = mebibytes(unit.Bytes(c.ResidentBytes))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", c.Name, pid, uptime, c.Restarts, resident, c.LastExit)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(s.Children) == 0 {
		fmt.Fprintln(w, "(none: start with `plimsoll up`)")
	}
	if len(s.Nodes) > 0 {
		fmt.Fprintln(w)
		t = tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		fmt.Fprintln(t, "NODE\tREADY\tREASON")
		for _, n := range s.Nodes[:min(len(s.Nodes), nodesShown)] {
			fmt.Fprintf(t, "%s\t%v\t%s\n", n.Name, n.Ready, n.Reason)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		if more := len(s.Nodes) - nodesShown; more > 0 {
			fmt.Fprintf(w, "and %d more\n", more)
		}
	}
	if len(s.Addons) > 0 {
		fmt.Fprintln(w)
		t = tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		fmt.Fprintln(t, "ADD-ON\tREADY\tREASON")
		for _, a := range s.Addons {
			fmt.Fprintf(t, "%s\t%v\t%s\n", a.Name, a.Ready, a.Reason)
		}
		return t.Flush()
	}
	return nil
}

func mebibytes(b unit.Bytes) string { return fmt.Sprintf("%dMi", b/unit.MiB) }

// AdminKubeconfig returns the path of the user's kubeconfig, if the instance has one.
func AdminKubeconfig(o Options) (string, error) {
	if o.joined() {
		return "", fmt.Errorf("find admin kubeconfig: this machine is a node of %s, and the kubeconfig is there", o.Server)
	}
	path := layout{o}.adminKubeconfig()
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find admin kubeconfig: %w (`plimsoll up` writes it)", err)
	}
	return path, nil
}

// Journals returns the directories of the journals of decisions that the scheduler and the lifecycle controller of a
// cluster keep here, by component. There are none if the API server at the address server is another cluster's.
func Journals(o Options, server string) map[string]string {
	out, l := map[string]string{}, layout{o}
	if server != l.serverURL() {
		return out
	}
	for name, left := range map[string]bool{childScheduler: o.NoScheduler, childLifecycle: o.NoLifecycle} {
		if !left && !o.joined() {
			out[name] = l.journal(name)
		}
	}
	return out
}

// KubectlCommand returns the command line and the environment of kubectl for the cluster of kubeconfig. With an empty
// kubeconfig, kubectl uses what it finds itself.
func KubectlCommand(o Options, kubeconfig string, args []string) (argv, env []string, err error) {
	b, err := layout{o}.programs()
	if err != nil {
		return nil, nil, err
	}
	env = os.Environ()
	if kubeconfig != "" {
		env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, "KUBECONFIG=") })
		env = append(env, "KUBECONFIG="+kubeconfig)
	}
	return append([]string{b.controlplane, "kubectl"}, args...), env, nil
}
