package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/plimsoll-dev/plimsoll/bench/plane"
	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// rig is a control plane with hollow nodes and without a lifecycle controller.
type rig struct {
	config
	plane *plane.Plane
	fleet *plane.Process
	nodes *nodes
	ups   []int // pids of the control plane

	registered time.Time // when all nodes had registered
}

const prefix = "bench-" // of the names of nodes

// fillTimeout bounds how long all nodes may take to register.
const fillTimeout = 5 * time.Minute

func newRig(c config) *rig {
	return &rig{config: c, plane: &plane.Plane{
		Plimsoll: c.plimsoll, Instance: "bench-lifecycle", Dir: c.dir, Port: c.port, Flags: []string{"--no-lifecycle"},
	}}
}

func (p *rig) socket() string { return filepath.Join(p.dir, "fleet.sock") }

// up starts the control plane and the fleet, and returns when all nodes are Ready and without taints.
func (p *rig) up(ctx context.Context) (err error) {
	if err := p.plane.Up(ctx); err != nil {
		return err
	}
	if p.ups, err = p.plane.PIDs(ctx); err != nil {
		return err
	}
	config, err := p.plane.Config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	p.nodes = watchNodes(ctx, client)
	midwife, err := p.controller(ours, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, midwife.Stop()) }()
	if p.fleet, err = plane.Start(filepath.Join(p.dir, "fleet.log"), p.plimsoll, "fleet", "--kubeconfig",
		p.plane.Kubeconfig(),
		"--nodes", strconv.Itoa(p.config.nodes), "--zones", strconv.Itoa(p.zones), "--node-prefix", prefix, "--control",
		p.socket()); err != nil {
		return err
	}
	began := time.Now()
	if err := p.nodes.await(ctx, fillTimeout, "register", func(n *nodes) bool {
		return len(n.by) == p.config.nodes &&
			n.well()
	}); err != nil {
		return errors.Join(err, midwife.Check(), p.fleet.Check())
	}
	p.registered = time.Now()
	record.Progress("%d nodes registered and open in %.1f s", p.config.nodes, p.registered.Sub(began).Seconds())
	return nil
}

// order makes hollow nodes fail or return, and returns their names.
func (p *rig) order(ctx context.Context, words ...string) ([]string, error) {
	out, err := p.plane.Call(ctx, append(append([]string{"fleet", "fault"}, words...), "--control", p.socket(), "-o",
		"json")...)
	if err != nil {
		return nil, err
	}
	obeyed := struct{ Nodes []string }{}
	return obeyed.Nodes, json.Unmarshal(out, &obeyed)
}

// renewals returns how many Leases the fleet has renewed, and the 99th percentile of the newest durations.
func (p *rig) renewals(ctx context.Context) (renewed float64, p99 float64, err error) {
	out, err := p.plane.Call(ctx, "fleet", "status", "--control", p.socket())
	if err != nil {
		return 0, 0, err
	}
	status := struct {
		Requests map[string]struct{ Done, P99Seconds float64 }
	}{}
	err = json.Unmarshal(out, &status)
	return status.Requests["renew"].Done, status.Requests["renew"].P99Seconds, err
}

func (p *rig) stopFleet() error {
	if p.fleet == nil {
		return nil
	}
	err := p.fleet.Stop()
	p.fleet = nil
	return err
}

// down removes everything. The logs of a failed run are kept, and their directory is printed.
func (p *rig) down(ctx context.Context, failed bool) error {
	keep := failed || p.keep
	err := errors.Join(p.stopFleet(), p.plane.Down(ctx, keep))
	if keep {
		record.Progress("state and logs are kept in %s", p.dir)
	}
	return err
}
