// Package containerruntime manages the containerd on which `plimsoll up` runs pods.
//
// An Instance is one containerd process of the system's binary, with its own root, state, sockets, CNI network and
// configuration below Plimsoll's directories. No other containerd's files are read or written. Its methods, in the
// order of use:
//
//	New         checks options and finds the system's binaries
//	Prepare     reports every missing binary, with the command that installs it; writes directories, configuration
//	            and network rules; may be repeated, and then changes only what is not right
//	Command     returns the command that a supervisor must run; containers survive its restarts (their shims are not its children)
//	SetNetwork  sets the pods' addresses, if the options lack them because the cluster assigns them to its nodes
//	WaitReady   returns when the CRI answers and both runtime and network are ready
//	LoadImages  imports Plimsoll's images if they are missing; nothing is ever pulled
//	Images, Import, RemoveImage    list, import and remove images for users (userimages.go)
//	Teardown    stops and removes pods, mounts, cgroups, links, rules and sockets of this instance, and only of this one
//
// With Options.External the containerd belongs to another program: nothing is configured, only images are imported, and
// Teardown removes only the pods below the instance's cgroup.
//
// Invariants: everything that Prepare and the pods leave on the machine can be found from Options alone, so that `down`
// removes all of it after any crash. Paths in the configuration are absolute; no shell is ever called.
//
// The package does not supervise the process, run pods or collect images: the launcher and the agent do.
package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/internal/image"
)

// An Instance is one container runtime, prepared or not.
type Instance struct {
	options Options
	tools   tools
	missing error         // which tools are missing; nil: none. Prepare returns it, Teardown works without them
	pause   image.Archive // of the pause image; set by Prepare
	notes   []string      // see Notes
}

// New checks the options and finds the programs that the instance needs on this machine.
func New(options Options) (*Instance, error) {
	options = options.withDefaults()
	if err := options.validate(); err != nil {
		return nil, fmt.Errorf("container runtime: %w", err)
	}
	found, missing := findTools(options)
	return &Instance{options: options, tools: found, missing: missing}, nil
}

// Notes returns what this machine lacks, found by Prepare: limitations for pods, not failures.
func (i *Instance) Notes() []string { return i.notes }

// Endpoint returns the CRI socket as a unix:// URL.
func (i *Instance) Endpoint() string { return "unix://" + i.options.socket() }

// Command returns the argv of the instance's containerd; nil if the runtime is external.
func (i *Instance) Command() []string {
	if i.external() {
		return nil
	}
	return []string{i.tools.containerd, "--config", i.options.configPath()}
}

// ProgramDir returns the directory with the shim that belongs to the instance's containerd. It must come first in
// containerd's PATH: a shim of another release starts nothing.
func (i *Instance) ProgramDir() string { return filepath.Dir(i.tools.shim) }

func (i *Instance) external() bool { return i.options.External != "" }

// Prepare makes the machine ready for Command. It needs root.
func (i *Instance) Prepare(ctx context.Context) error {
	if i.external() {
		return nil
	}
	if err := i.prepare(ctx); err != nil {
		return fmt.Errorf("prepare container runtime: %w", err)
	}
	return nil
}

func (i *Instance) prepare(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("containers need root: run as root, or use hollow nodes, which have none")
	}
	if i.missing != nil {
		return i.missing
	}
	var err error
	if i.pause, err = image.Read(filepath.Join(i.options.ImageDir, image.PauseFile)); err != nil {
		return err
	}
	version, err := i.tools.containerdVersion(ctx)
	if err != nil {
		return err
	}
	if err := checkPodCIDR(i.options); err != nil {
		return err
	}
	if why := crunRefusal("/sys/fs/cgroup"); why != "" && i.tools.defaultOCI(i.options) == "crun" {
		return fmt.Errorf("OCI runtime crun: %s: install runc with: %srunc", why, installCommand)
	}
	restrict, err := oomScoreIsFloored()
	if err != nil {
		return err
	}
	i.notes = nil
	if restrict {
		i.note("this process may not lower oom_score_adj (no CAP_SYS_RESOURCE): containers keep at least its own, %s",
			ownOOMScore())
	}
	for _, dir := range []string{
		i.options.containerdRoot(), i.options.containerdState(), i.options.cniConfDir(), i.options.cniBinDir(),
		i.options.leaseDir(), i.options.runcRoot(),
	} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
	}
	if err := probeOverlay(i.options.containerdRoot()); err != nil {
		return err
	}
	config := containerdConfig(settings{
		options:     i.options,
		tools:       i.tools,
		pause:       i.pause.Names[0],
		version:     version,
		restrictOOM: restrict,
	})
	if _, err := durable.WriteIfChanged(i.options.configPath(), []byte(config)); err != nil {
		return err
	}
	if err := i.prepareMirrors(); err != nil {
		return err
	}
	if i.options.PodCIDR == "" {
		return nil
	}
	return i.prepareNetwork()
}

// SetNetwork makes the pod network, or changes its addresses. Pods that run keep theirs.
func (i *Instance) SetNetwork(pods netip.Prefix) error {
	if i.external() {
		return nil
	}
	i.options.PodCIDR = pods.String()
	if err := i.options.validate(); err != nil {
		return fmt.Errorf("container runtime: %w", err)
	}
	if err := link.KeepAddresses(i.options.Bridge, pods); err != nil {
		return fmt.Errorf("prepare container runtime: %w", err)
	}
	if err := i.prepareNetwork(); err != nil {
		return fmt.Errorf("prepare container runtime: %w", err)
	}
	return nil
}

func (i *Instance) note(format string, args ...any) {
	i.notes = append(i.notes, fmt.Sprintf(format, args...))
}

// pollPeriod is the time between two requests to a starting runtime. Chosen: it starts in 100 to 300 ms (containerd
// 1.6, two cores).
const pollPeriod = 20 * time.Millisecond

// WaitReady returns when the runtime reports that it and, if the pods have addresses, the network are ready. If ctx
// ends before, it returns the last reason why not.
func (i *Instance) WaitReady(ctx context.Context) error {
	client, err := cri.Dial(i.Endpoint())
	if err != nil {
		return err
	}
	defer client.Close()
	return waitReady(ctx, client, i.options.PodCIDR != "")
}

// waitReady waits for the network only if network is set.
func waitReady(ctx context.Context, client *cri.Client, network bool) error {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		last := ready(ctx, client, network)
		if last == nil {
			return nil
		}
		if status.Code(last) == codes.Unimplemented { // it serves already, and will load no more plugins
			return fmt.Errorf("wait for container runtime: its CRI plugin did not load; its log has the reason: %w", last)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for container runtime: %w: %w", context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// statusTimeout bounds one call (chosen), so that a runtime that hangs is called again, and reported at the end.
const statusTimeout = 5 * time.Second

func ready(ctx context.Context, client *cri.Client, network bool) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if _, err := client.Handshake(ctx); err != nil {
		return err
	}
	answer, err := client.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return fmt.Errorf("ask container runtime its status: %s: %w", client.Endpoint, err)
	}
	var lacks []string
	for _, condition := range answer.GetStatus().GetConditions() {
		if !condition.Status && (condition.Type == runtimeapi.RuntimeReady ||
			network && condition.Type == runtimeapi.NetworkReady) {
			lacks = append(lacks, fmt.Sprintf("%s is false: %s %s", condition.Type, condition.Reason, condition.Message))
		}
	}
	if len(lacks) > 0 {
		return fmt.Errorf("ask container runtime its status: %s: %s", client.Endpoint, strings.Join(lacks, "; "))
	}
	return nil
}
