package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/containerruntime"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// ErrAlreadyUp says that a running supervisor holds the instance's lock.
var ErrAlreadyUp = errors.New("already up")

// ErrHandedOver says that the supervisor left its children to the process that signalled it.
var ErrHandedOver = errors.New("handed over")

// Up brings an instance up, calls ready, and supervises it until ctx ends (then it takes the instance down) or another
// process takes over (ErrHandedOver). If the instance does not come up, and the user did not cancel it, the children
// are stopped again. The containers of this machine's own pods are left running, because they may be from an earlier
// run that was up. Local nodes are taken down.
func Up(ctx context.Context, o Options, sink progress.Sink, ready func()) error {
	handover, done := signal.NotifyContext(context.Background(), unix.SIGUSR1)
	defer done()
	if !signal.Ignored(unix.SIGHUP) { // nohup ignores it
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, unix.SIGHUP) // the terminal was closed
		defer stop()
	}

	l, err := prepare(o, sink)
	if err != nil {
		return err
	}
	logger, closeLog, err := l.supervisorLog()
	if err != nil {
		return err
	}
	defer closeLog()
	patient := &patience{limit: o.Timeout}
	c, err := open(o, patientSink{sink, patient}, logger)
	if errors.Is(err, errLocked) {
		return ErrAlreadyUp
	}
	if err != nil {
		return err
	}
	defer c.close()

	starting, stop := patient.bound(ctx)
	context.AfterFunc(handover, stop)
	err = withCause(starting, c.bringUp(starting))
	stop()
	switch {
	case handover.Err() != nil:
		return ErrHandedOver
	case ctx.Err() != nil && c.halfJoined:
		return errors.Join(context.Cause(ctx), c.leave(ctx))
	case ctx.Err() != nil:
		return errors.Join(context.Cause(ctx), c.takeDownAfter(ctx))
	case err != nil && c.halfJoined:
		return errors.Join(err, c.leave(ctx))
	case err != nil:
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, c.takeLocalNodesDown(ctx))
		c.stopChildren(ctx)
		c.supervisor.Stop(ctx, childContainerd, graceStore)
		return errors.Join(err, c.removeNodeNetwork())
	}
	c.halfJoined = false
	c.keepReserve()
	ready()
	return c.supervise(ctx, handover.Done())
}

// supervise keeps the instance up until ctx ends or another process takes over.
func (c *cluster) supervise(ctx context.Context, handover <-chan struct{}) error {
	isAskedToLeave, dismiss := context.WithCancel(context.WithoutCancel(ctx))
	defer dismiss()
	move := make(chan string)
	var cancel context.CancelFunc
	keep := func() {
		var background context.Context
		background, cancel = context.WithCancel(ctx)
		c.keepCluster(background, dismiss, move)
	}
	keep()
	defer func() { cancel() }()
	chores := time.NewTicker(chorePeriod)
	defer chores.Stop()
	ports := time.NewTicker(containerruntime.UpdateListenersPeriod)
	defer ports.Stop()
	for {
		select {
		case <-ports.C:
			c.keepPorts()
		case <-handover:
			c.logger.Info("hand over: leave children running")
			return ErrHandedOver
		case <-ctx.Done():
			return c.takeDownAfter(ctx)
		case <-isAskedToLeave.Done():
			cancel()
			return c.leaveCluster(ctx)
		case server := <-move:
			cancel()
			c.moveTo(ctx, server)
			keep()
		case <-chores.C:
			c.doChores(ctx)
		}
	}
}

// keepPorts protects host ports of pods from listeners on this machine. After a failure the next tick tries again. The
// first failure in a row is logged.
func (c *cluster) keepPorts() {
	if c.runtime == nil {
		return
	}
	err := c.runtime.UpdateListeners()
	if err != nil && !c.portsFail {
		c.logger.Warn("host ports may take connections of this machine's listeners", "err", err)
	}
	c.portsFail = err != nil
}

// takeDownAfter is takeDown when ctx has ended.
func (c *cluster) takeDownAfter(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTimeout)
	defer cancel()
	return c.takeDown(ctx)
}

// chorePeriod is the time between two calls of doChores (chosen). It bounds how far a log can exceed its limit and how
// late a certificate is renewed.
const chorePeriod = time.Minute

// doChores bounds logs, restores the disk reserve and renews certificates. Children that read a renewed certificate
// only at their start are replaced; Apply recognizes them by their inputs.
func (c *cluster) doChores(ctx context.Context) {
	for _, s := range c.supervisor.Status() {
		if err := supervise.TrimLog(s.Log); err != nil {
			c.logger.Warn("trim log", "error", err)
		}
	}
	if err := supervise.TrimLog(c.log("supervisor")); err != nil {
		c.logger.Warn("trim log", "error", err)
	}
	c.keepReserve()
	c.retryAddons(ctx)
	c.keepLocalNodes(ctx)
	var renewed []string
	var err error
	if c.o.joined() {
		renewed, err = c.renewMembership(ctx)
	} else {
		renewed, err = c.ensureIdentities(time.Now())
	}
	if err != nil {
		c.logger.Warn("renew certificates", "error", err)
		return
	}
	if len(renewed) > 0 {
		c.logger.Info("certificates renewed", "names", renewed)
		c.addonsLack = c.addonsLack || slices.Contains(renewed, certMetrics) || slices.Contains(renewed, caCluster)
		for _, spec := range c.specs() {
			if _, err := c.supervisor.Apply(ctx, spec); err != nil {
				c.logger.Warn("apply child", "child", spec.Name, "error", err)
			}
		}
	}
}

// bringUp executes the steps to a Ready node, from nothing or from what an earlier run left.
func (c *cluster) bringUp(ctx context.Context) error {
	c.warnOfSpace()
	if c.o.joined() {
		return c.bringUpNode(ctx)
	}
	if err := c.joinServers(ctx); err != nil {
		return err
	}
	err := progress.Step(c.sink, "check this machine", func() (string, error) {
		if err := c.preflight(); err != nil {
			return "", err
		}
		return "", c.checkObjects(ctx)
	})
	if err != nil {
		return err
	}
	from := "" // where kube-apiserver was before
	err = progress.Step(c.sink, "keys and certificates", func() (string, error) {
		changed, err := c.ensureIdentities(time.Now())
		if err == nil {
			err = c.saveVersion()
		}
		if err == nil {
			from = c.movedFrom()
			err = c.o.save()
		}
		if err == nil && c.o.Agent {
			err = c.writeAgentConfig()
		}
		if err == nil && c.o.Agent && c.o.AgentBinary != "" {
			err = c.makePodCgroup()
		}
		if len(changed) == 0 {
			return "all present", err
		}
		return fmt.Sprintf("%d made", len(changed)), err
	})
	if err != nil {
		return err
	}
	if err := c.checkServerName(ctx); err != nil {
		return err
	}
	c.halfJoined = false // it can be started again without the token
	if err := c.configureAgent(); err != nil {
		return err
	}
	if err := parallel(ctx, c.startControlPlane, c.startRuntime); err != nil {
		return err
	}
	c.noteMoved(ctx, from)
	return c.startComponents(ctx)
}

// configureAgent writes the agent's configuration and checks it by reading it as the agent does.
func (c *cluster) configureAgent() error {
	if !c.o.Agent {
		return nil
	}
	if err := c.writeAgentConfig(); err != nil {
		return err
	}
	if _, _, err := kubeletconfig.Load(c.agentConfig()); err != nil {
		return fmt.Errorf("configure the agent: %w", err)
	}
	return nil
}

// startControlPlane starts etcd, then kube-apiserver, then kube-controller-manager. kube-apiserver is started as soon
// as etcd's process runs. It does not need etcd in its first second, and then waits for it.
func (c *cluster) startControlPlane(ctx context.Context) error {
	if len(c.o.EtcdServers) == 0 {
		if err := c.apply(ctx, c.build.etcd()); err != nil {
			return err
		}
	}
	client, err := c.client(whoLauncher)
	if err != nil {
		return err
	}
	err = progress.Step(c.sink, "control plane", func() (string, error) {
		if err := c.apply(ctx, c.build.apiServer()); err != nil {
			return "", err
		}
		return c.serverURL(), c.await(ctx, "kube-apiserver", client.Ready, childAPIServer, childEtcd)
	})
	if err != nil {
		return err
	}
	installed := func(ctx context.Context) error {
		if err := c.keepClusterID(ctx, client); err != nil {
			return err
		}
		return c.install(ctx, client)
	}
	if err := c.await(ctx, "the objects of this instance", installed, childAPIServer); err != nil {
		return err
	}
	if c.o.NoControllerManager {
		return nil
	}
	return c.apply(ctx, c.build.controllerManager())
}

// startRuntime starts our containerd, or checks the runtime that the options name.
func (c *cluster) startRuntime(ctx context.Context) error {
	if c.runtime == nil {
		return nil
	}
	return progress.Step(c.sink, "container runtime", func() (string, error) {
		if err := c.runtime.Prepare(ctx); err != nil {
			return "", err
		}
		if spec, ours := c.containerd(); ours {
			if err := c.apply(ctx, spec); err != nil {
				return "", err
			}
		}
		c.showNotes()
		if err := c.await(ctx, "container runtime", c.runtime.WaitReady, childContainerd); err != nil {
			return "", err
		}
		return c.runtime.Endpoint(), c.runtime.LoadImages(ctx)
	})
}

// showNotes shows what this machine lacks for pods.
func (c *cluster) showNotes() {
	for _, note := range c.runtime.Notes() {
		c.sink.Show(progress.Event{Step: "container runtime", Phase: progress.Note, Detail: note})
	}
}

// startComponents starts our own components and waits for the nodes.
func (c *cluster) startComponents(ctx context.Context) error {
	if err := c.applyComponents(ctx); err != nil {
		return err
	}
	client, err := c.client(whoLauncher)
	if err != nil {
		return err
	}
	if err := removeSurplus(ctx, client, c.o.Hollow); err != nil {
		return err
	}
	keeping, stop := context.WithCancel(ctx)
	defer stop() // supervise takes over this work
	c.keepCluster(keeping, func() {}, nil)
	waits := []func(context.Context) error{
		func(ctx context.Context) error { return c.startLocalNodes(ctx, client) },
	}
	if !c.o.NoControllerManager {
		waits = append(waits, c.step("controllers", "running",
			func(ctx context.Context) error { return defaultAccount(ctx, client) }, childControllerManager, childAPIServer))
	}
	waits = append(waits, c.nodeWaits(client)...)
	if c.o.Agent {
		waits = append(waits, func(ctx context.Context) error { return c.startAddons(ctx, client) })
	}
	if c.o.Hollow > 0 {
		waits = append(waits, c.step("hollow nodes", fmt.Sprintf("%d Ready", c.o.Hollow),
			func(ctx context.Context) error {
				return hollowReady(ctx, client, c.o.Hollow,
					c.startOf(childFleet))
			}, childFleet, childAPIServer))
	}
	return parallel(ctx, waits...)
}

// applyComponents starts our own components and kube-proxy, and stops those that the options no longer want.
func (c *cluster) applyComponents(ctx context.Context) error {
	if c.o.has(childKubeProxy) {
		if err := c.recordServices(); err != nil {
			return err
		}
	}
	for _, spec := range c.componentSpecs() {
		if err := c.apply(ctx, spec); err != nil {
			return err
		}
	}
	c.stopUnwanted(ctx)
	if c.o.has(childKubeProxy) {
		return nil
	}
	return c.cleanServices(ctx)
}

// nodeWaits returns the waits for this machine's own node.
func (c *cluster) nodeWaits(client *kube.Client) (waits []func(context.Context) error) {
	if c.o.Agent {
		ready := func(ctx context.Context) error { return nodeReady(ctx, client, c.o.NodeName, c.startOf(childAgent)) }
		waits = append(waits, c.step("node "+c.o.NodeName, "Ready", ready, childAgent, childAPIServer))
	}
	if c.divides() {
		waits = append(waits, func(ctx context.Context) error { return c.joinPodNetwork(ctx, client) })
	}
	if c.o.has(childKubeProxy) {
		waits = append(waits, c.step("services", c.build.proxyMode, c.servicesReady, childKubeProxy, childAPIServer))
	}
	if c.o.has(addonCSI) {
		waits = append(waits, func(ctx context.Context) error {
			return c.awaitDriver(ctx, client, c.o.NodeName, childCSIDriver, childAgent)
		})
	}
	return waits
}

// step returns a function that waits for something and shows that as a step.
func (c *cluster) step(what, result string, ready func(context.Context) error,
	children ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		return progress.Step(c.sink, what, func() (string, error) { return result, c.await(ctx, what, ready, children...) })
	}
}

// stopUnwanted stops children of an earlier run that the options no longer want, such as the agent.
func (c *cluster) stopUnwanted(ctx context.Context) {
	for _, name := range c.supervisor.Survivors() {
		c.logger.Info("stop child: the options no longer ask for it", "child", name)
		c.supervisor.Stop(ctx, name, graceOf(name))
	}
}

// componentSpecs returns the children that need only the API server: our own programs and kube-proxy.
func (c *cluster) componentSpecs() []supervise.Spec {
	var specs []supervise.Spec
	if !c.o.NoScheduler && !c.o.joined() {
		specs = append(specs, c.build.scheduler())
	}
	if !c.o.NoLifecycle && !c.o.joined() {
		specs = append(specs, c.build.lifecycle())
	}
	if c.o.Agent {
		specs = append(specs, c.build.agent(c.runtime.Endpoint()))
	}
	if c.o.has(childKubeProxy) {
		specs = append(specs, c.build.kubeProxy())
	}
	if c.o.has(addonCSI) {
		specs = append(specs, c.build.csiDriver(), c.build.storage())
	}
	if c.o.Hollow > 0 {
		specs = append(specs, c.build.fleet())
	}
	return specs
}

// specs returns all children in the order of their start.
func (c *cluster) specs() []supervise.Spec {
	var specs []supervise.Spec
	if !c.o.joined() {
		specs = c.controlPlaneSpecs()
	}
	if spec, ours := c.containerd(); ours {
		specs = append(specs, spec)
	}
	return append(specs, c.componentSpecs()...)
}

func (c *cluster) controlPlaneSpecs() []supervise.Spec {
	var specs []supervise.Spec
	if len(c.o.EtcdServers) == 0 {
		specs = append(specs, c.build.etcd())
	}
	specs = append(specs, c.build.apiServer())
	if !c.o.NoControllerManager {
		specs = append(specs, c.build.controllerManager())
	}
	return specs
}

func (c *cluster) apply(ctx context.Context, spec supervise.Spec) error {
	_, err := c.supervisor.Apply(ctx, spec)
	return err
}

// prepare creates the instance's directories. It returns an error if this user or this version may not bring the
// instance up, or if it is up already. A supervisor of another build has to leave.
func prepare(o Options, sink progress.Sink) (layout, error) {
	l := layout{o}
	if err := errors.Join(checkUser(o), l.checkVersion(), l.checkRole()); err != nil {
		return l, err
	}
	if err := l.replaceOther(sink); err != nil {
		return l, err
	}
	held, err := lockIsHeld(l.lock())
	if err == nil && held {
		err = ErrAlreadyUp
	}
	if err != nil {
		return l, err
	}
	return l, l.makeDirectories()
}

// checkUser returns an error if a user without root privileges wants containers. Without the check the start would fail
// later.
func checkUser(o Options) error {
	if os.Geteuid() == 0 || !o.Agent {
		return nil
	}
	return errors.New("run containers on this machine: not root: run as root, or use --hollow N: " +
		"hollow nodes run no containers and need no root")
}

// preflight returns everything that prevents a start, before anything is started.
func (c *cluster) preflight() error {
	if err := c.prepareNodeNetwork(); err != nil {
		return err // the ports are on its address
	}
	var err error
	c.build, err = c.programs()
	errs := []error{
		err, c.o.checkPorts(c.supervisor.Pids()), c.checkNetworks(), c.o.checkEtcd(), c.checkKubeProxy(),
		c.build.findStorage(),
	}
	if c.o.AgentBinary != "" {
		if err := unix.Access(c.o.AgentBinary, unix.X_OK); err != nil {
			errs = append(errs, fmt.Errorf("find agent: --agent-binary %s: %w", c.o.AgentBinary, err))
		}
	}
	if c.o.Agent && c.o.AgentConfig != "" {
		_, warnings, err := kubeletconfig.Load(c.o.AgentConfig)
		if err != nil {
			errs = append(errs, fmt.Errorf("--agent-config: %w", err))
		}
		for _, w := range warnings {
			c.sink.Show(progress.Event{Step: c.o.AgentConfig, Phase: progress.Note, Detail: w})
		}
	}
	if c.o.Agent {
		c.runtime, err = newRuntime(c.layout)
		errs = append(errs, err, c.checkPodCgroup())
	}
	return errors.Join(errs...)
}

// defaultAccount returns nil if the service account "default" exists. Without it, creating a pod is refused. It is the
// last object of kube-controller-manager that a user needs at once.
func defaultAccount(ctx context.Context, c *kube.Client) error {
	return c.Get(ctx, kube.ServiceAccounts, metav1.NamespaceDefault, "default", &corev1.ServiceAccount{})
}
