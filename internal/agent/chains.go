package agent

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/agent/failurelog"
	"github.com/plimsoll-dev/plimsoll/internal/host/iptables"
)

// chainsEvery is the interval at which the agent looks whether its chains are still there: a firewall that is started
// again may have removed them. It is the kubelet's.
const chainsEvery = time.Minute

// The chains and the rule that the kubelet makes. Other programs look for the first chain, and kube-proxy makes the
// second one, too, so names and rule are the kubelet's, word by word (pkg/kubelet/kubelet_network_linux.go).
const (
	hintChain     = "KUBE-IPTABLES-HINT"
	firewallChain = "KUBE-FIREWALL"
)

// dropForeignLoopback drops what comes from elsewhere for addresses of the loopback, unless it belongs to a connection.
// Where kube-proxy sets route_localnet, others could reach processes that listen on the loopback only
// (kubernetes/kubernetes#90259).
var dropForeignLoopback = []string{
	"-m", "comment", "--comment", "block incoming localnet connections",
	"--dst", "127.0.0.0/8",
	"!", "--src", "127.0.0.0/8",
	"-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT",
	"-j", "DROP",
}

// tables are those of one family of addresses; *iptables.Tables implements it.
type tables interface {
	Name() string
	HasChain(table, chain string) (bool, error)
	MakeChain(table, chain string) error
	First(table, chain string, rule ...string) error
	Last(table, chain string, rule ...string) error
}

// keepChains makes the chains of makeIPTablesUtilChains, and makes them again when they are gone, until ctx ends. Like
// the kubelet, it never removes them: others may rely on them.
func (a *Agent) keepChains(ctx context.Context) error {
	if !isTrue(a.o.Config.MakeIPTablesUtilChains) {
		return nil
	}
	var kept []tables
	var firewall tables
	for _, open := range []func() (*iptables.Tables, error){iptables.OpenIPv4, iptables.OpenIPv6} {
		t, err := open()
		switch {
		case errors.Is(err, iptables.ErrMissing):
			slog.Info("makeIPTablesUtilChains: no chains are made", "err", err)
			continue
		case err != nil:
			slog.Warn("makeIPTablesUtilChains: no chains are made", "err", err)
			continue
		case firewall == nil && t.Name() == "iptables":
			firewall = t
		}
		kept = append(kept, t)
	}
	keep(ctx, kept, firewall)
	return nil
}

// keep makes the chains in each of all until ctx ends. Only firewall has the second chain and the rule, since no
// address of IPv6 has the problem.
func keep(ctx context.Context, all []tables, firewall tables) {
	var failures failurelog.Log
	made := map[tables]bool{}
	for len(all) > 0 {
		for _, t := range all {
			action := "make the chains of makeIPTablesUtilChains with " + t.Name()
			if made[t] {
				if has, err := t.HasChain("mangle", hintChain); has || err != nil {
					continue // if it cannot be read now, it can a minute later
				}
			}
			err := makeChains(t, t == firewall)
			made[t] = err == nil
			if err != nil {
				failures.Failed(action, err)
				continue
			}
			failures.Succeeded(action)
			slog.Info("netfilter chains made", "with", t.Name())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(chainsEvery):
		}
	}
}

// makeChains makes what is missing. The chain that is looked for afterwards is made last, so that it says that all is
// there.
func makeChains(t tables, firewall bool) error {
	if firewall {
		if err := t.MakeChain("filter", firewallChain); err != nil {
			return err
		}
		for _, chain := range []string{"OUTPUT", "INPUT"} {
			if err := t.First("filter", chain, "-j", firewallChain); err != nil {
				return err
			}
		}
		if err := t.Last("filter", firewallChain, dropForeignLoopback...); err != nil {
			return err
		}
	}
	return t.MakeChain("mangle", hintChain)
}
