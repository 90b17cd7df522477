package containerruntime

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/internal/host/nat"
)

// forwardSysctl lets the kernel route between links. The bridge plugin would set it with the first pod. It is set here
// before, so that the former value is known.
const forwardSysctl = "/proc/sys/net/ipv4/ip_forward"

// prepareNetwork configures the pod network and lets pods reach hosts beyond the machine: routing between links, and
// Plimsoll's own table for address translation.
func (i *Instance) prepareNetwork() error {
	hostPorts := isProgram(i.options.HostPort)
	if !hostPorts {
		i.note("%s does not exist: pods have no host ports (make build creates it)", i.options.HostPort)
	}
	if err := linkPlugins(i.options, i.tools, hostPorts); err != nil {
		return err
	}
	text, err := cniConfig(i.options, hostPorts)
	if err != nil {
		return err
	}
	conflist := filepath.Join(i.options.cniConfDir(), "10-plimsoll.conflist")
	if _, err := durable.WriteIfChanged(conflist, []byte(text)); err != nil {
		return err
	}
	if err := link.CreateBridge(i.options.Bridge); err != nil {
		return err
	}
	if err := i.enableForwarding(); err != nil {
		return err
	}
	pods, err := netip.ParsePrefix(i.options.AllPods)
	if err != nil {
		return err
	}
	err = nat.Write(nat.Network{Bridge: i.options.Bridge, Pods: pods, Services: i.options.Services,
		Forwards: i.options.Forwards})
	if errors.Is(err, nat.ErrUnsupported) {
		i.note("%v: pods reach each other and this machine, not beyond, have no host ports and do not reach the API server",
			err)
		return nil
	}
	return err
}

// UpdateListenersPeriod is how often UpdateListeners must be called. Chosen: a client on this machine reaches a new
// listener when it tries again. Each call costs two requests to the kernel and, if pods have host ports, reading the
// machine's sockets.
const UpdateListenersPeriod = time.Second

// UpdateListeners makes a port reach this machine's own listener if that began to listen after a pod had opened the
// port as a host port.
func (i *Instance) UpdateListeners() error {
	if i.external() {
		return nil
	}
	return nat.UpdateListeners(i.options.Bridge)
}

func (o Options) forwardRecord() string { return filepath.Join(o.RunDir, "ip_forward.was-off") }

func (i *Instance) enableForwarding() error {
	on, err := forwarding()
	if err != nil || on {
		return err
	}
	if err := os.WriteFile(i.options.forwardRecord(), nil, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(forwardSysctl, []byte("1"), 0); err != nil {
		return fmt.Errorf("enable routing between links: %w", err)
	}
	return nil
}

func forwarding() (bool, error) {
	text, err := os.ReadFile(forwardSysctl)
	if err != nil {
		return false, err
	}
	return strings.TrimSpace(string(text)) != "0", nil
}

// restoreForwarding switches routing off again if Prepare switched it on. It does not if another bridge exists, which
// may need routing by now: leaving a setting behind is better than cutting off another network.
func (i *Instance) restoreForwarding() error {
	if _, err := os.Stat(i.options.forwardRecord()); err != nil {
		return nil // routing was on before, or this is a repeated teardown
	}
	bridges, err := link.Bridges()
	if err != nil || bridges > 0 {
		return err
	}
	return os.WriteFile(forwardSysctl, []byte("0"), 0)
}
