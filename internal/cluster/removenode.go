package cluster

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/bootstrap"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Removing a node: its pods are evicted, its machine is asked to leave, and then its Node is deleted. An agent that
// still runs would register it again, as it must after an accidental deletion. So an annotation of the Node asks the
// machine to leave. When everything has ended there, the machine's supervisor answers in the same annotation.
const (
	annotationLeave = "plimsoll.dev/leave"
	leaveAsked      = "asked"
	leaveDone       = "done"
)

// leaveTimeout bounds the wait for a machine that is asked to leave (chosen; it stops containers and removes mounts,
// which takes some 2 s).
const leaveTimeout = time.Minute

// A Removal says which node is removed, and how.
type Removal struct {
	Node    string
	Force   bool          // also delete pods without a controller, which nothing creates again
	Timeout time.Duration // bounds the wait until all its pods have ended
}

// RemoveNode removes a node of the cluster that runs on this machine.
func RemoveNode(ctx context.Context, o Options, r Removal, sink progress.Sink) error {
	client, err := TokenClient(o)
	if err != nil {
		return fmt.Errorf("remove node %s: %w", r.Node, err)
	}
	if o.Agent && r.Node == o.NodeName {
		return fmt.Errorf("remove node %s: it is the node of the machine with the control plane: `plimsoll down` ends both",
			r.Node)
	}
	if o.isLocal(r.Node) {
		return fmt.Errorf("remove node %s: it is one of the %d nodes of this machine: run `plimsoll down`, then `plimsoll "+
			"up` with fewer --nodes", r.Node, o.Nodes)
	}
	node := &corev1.Node{}
	err = client.Get(ctx, kube.Nodes, "", r.Node, node)
	if apierrors.IsNotFound(err) {
		return freeName(ctx, client, r.Node, sink)
	}
	if err != nil {
		return fmt.Errorf("remove node %s: %w", r.Node, err)
	}
	gone := readyCondition(node)
	if err := progress.Step(sink, "drain", func() (string, error) {
		return "", drain(ctx, o, r,
			gone != nil)
	}); err != nil {
		return err
	}
	if gone == nil {
		if err := requestLeave(ctx, client, r.Node, sink); err != nil {
			return fmt.Errorf("remove node %s: %w", r.Node, err)
		}
	} else {
		sink.Show(progress.Event{Step: "node " + r.Node, Phase: progress.Note,
			Detail: fmt.Sprintf("%v: if its machine returns, run `plimsoll down --purge` there, or it registers again", gone)})
	}
	err = client.Delete(ctx, kube.Nodes, "", r.Node, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove node %s: %w", r.Node, err)
	}
	if _, err := bootstrap.FreeName(ctx, client, r.Node); err != nil {
		return fmt.Errorf("remove node %s: let another machine have its name: %w", r.Node, err)
	}
	return nil
}

// freeName lets another machine have the name of a node that does not exist: it was deleted, or the join of its machine
// has failed. If nothing keeps the name, it is an error.
func freeName(ctx context.Context, client *kube.Client, node string, sink progress.Sink) error {
	freed, err := bootstrap.FreeName(ctx, client, node)
	if err != nil {
		return fmt.Errorf("remove node %s: let another machine have its name: %w", node, err)
	}
	if freed == 0 {
		return fmt.Errorf("remove node %s: the cluster has no node of that name (see `plimsoll status`)", node)
	}
	sink.Show(progress.Event{Step: "node " + node, Phase: progress.Note,
		Detail: "the cluster has no node of that name; another machine can have the name now"})
	return nil
}

// drain evicts the pods of a node with kubectl drain, which respects disruption budgets. If the machine is gone,
// nothing confirms that its pods have ended, so drain does not wait for that.
func drain(ctx context.Context, o Options, r Removal, gone bool) error {
	kubeconfig, err := AdminKubeconfig(o)
	if err != nil {
		return err
	}
	args := []string{"drain", r.Node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=" + r.Timeout.String()}
	if r.Force {
		args = append(args, "--force")
	}
	if gone {
		args = append(args, "--skip-wait-for-delete-timeout=1")
	}
	argv, env, err := KubectlCommand(o, kubeconfig, args)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Env = env
	if said, err := command.CombinedOutput(); err != nil {
		hint := "the node stays cordoned: `plimsoll kubectl uncordon " + r.Node + "` undoes that"
		if !r.Force && strings.Contains(string(said), "--force") {
			hint = "--force deletes pods that nothing creates again; " + hint
		}
		return fmt.Errorf("drain node %s: %w: %s (%s)", r.Node, err, strings.TrimSpace(string(said)), hint)
	}
	return nil
}

// requestLeave asks the machine of a node to leave, and waits until it has left.
func requestLeave(ctx context.Context, client *kube.Client, name string, sink progress.Sink) error {
	return progress.Step(sink, "ask the machine to leave", func() (string, error) {
		if err := setLeave(ctx, client, name, leaveAsked); err != nil {
			return "", err
		}
		ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
		defer cancel()
		tick := time.NewTicker(pollPeriod)
		defer tick.Stop()
		for {
			node := &corev1.Node{}
			err := client.Get(ctx, kube.Nodes, "", name, node)
			if err == nil && node.Annotations[annotationLeave] == leaveDone || apierrors.IsNotFound(err) {
				return "it has", nil
			}
			select {
			case <-ctx.Done():
				return "it does not answer: run `plimsoll down --purge` there, or it registers again", nil
			case <-tick.C:
			}
		}
	})
}

func setLeave(ctx context.Context, client *kube.Client, node, value string) error {
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, annotationLeave, value)
	return client.Patch(ctx, kube.Nodes, "", node, types.MergePatchType, []byte(body), nil)
}

// isAskedToLeave reports whether a Node says that this machine is to leave the cluster.
func (c *cluster) isAskedToLeave(node *corev1.Node) bool {
	return c.o.joined() && node.Name == c.o.NodeName && node.Annotations[annotationLeave] == leaveAsked
}

// leaveCluster takes this machine's node down and removes its state, because the node was removed from its cluster.
func (c *cluster) leaveCluster(ctx context.Context) error {
	c.logger.Info("the node was removed from its cluster; this machine leaves it")
	client, err := c.client(whoAgent)
	if err != nil {
		return err
	}
	if err := c.takeDownAfter(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settingsTimeout)
	defer cancel()
	if err := setLeave(ctx, client, c.o.NodeName, leaveDone); err != nil {
		return fmt.Errorf("report that this machine has left: %w", err)
	}
	return c.purge()
}
