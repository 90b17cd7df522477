package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/sim"
)

// simFlags are the flags that are translated to sim.Options. The others set a field of the options directly.
type simFlags struct {
	faults   string   // path of a file of events; empty: none
	policies []string // as text
	day      bool     // simulate sim.Day
}

func newSimCommand() *cobra.Command {
	o := sim.Options{}
	var flags simFlags
	var output string
	c := &cobra.Command{
		Use:   "sim",
		Short: "Simulate a cluster's nodes and their controller in virtual time",
		Long: `Simulate nodes that send heartbeats, fail and return, and the lifecycle controller, in virtual time, with the
same code that decides in the agent and in plimsoll lifecycle. It needs no cluster and no root. The same options and
seed give the same outcome and the same trace.

--faults is a file of events, one per line; "plimsoll fleet fault --help" explains the kinds of faults:
  at 10m silence zone=zone-1 for=1h
  at 2h  partition percent=60 zone=zone-2
  at 3h  api down
  at 3h5m api up
  at 4h  controller restart
  at 5h  return

--policy names the policies to compare on the same events. "upstream" is a model of upstream's controllers and is
always included; "plimsoll" is the default of plimsoll lifecycle. Other policies begin with one of the two and change it:
  plimsoll:grace=40s,rate=0.5,secondary=0.05,threshold=0.7,large=20,room=false,qps=50,scan=1s`,
		Example: `  plimsoll sim --nodes 500 --zones 3 --faults bad-day.txt
  plimsoll sim --day                                  # 50,000 nodes, 24 hours, zones fail
  plimsoll sim --nodes 1000 --faults bad-day.txt --policy plimsoll:grace=40s --policy plimsoll:rate=1 -o json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return usageError{fmt.Errorf("--output %q: want table or json", output)}
			}
			if err := flags.fill(c, &o); err != nil {
				return usageError{err}
			}
			if err := o.Check(); err != nil {
				return usageError{err}
			}
			results, err := sim.Run(o)
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(c, map[string]any{"seed": o.Seed, "policies": results})
			}
			return sim.Print(c.OutOrStdout(), o, results)
		},
	}
	f := c.Flags()
	f.IntVar(&o.Nodes, "nodes", 300, "number of nodes")
	f.IntVar(&o.Zones, "zones", 3, "number of zones: zone-0, zone-1, ...")
	f.IntVar(&o.PodsPerNode, "pods-per-node", 4, "number of pods on each node at the start")
	f.DurationVar(&o.For, "for", 2*time.Hour, "virtual duration")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of all random choices")
	f.StringVar(&flags.faults, "faults", "", "`file` of events")
	f.StringArrayVar(&flags.policies, "policy", []string{"plimsoll"}, "policy to compare with upstream; may be repeated")
	f.BoolVar(&flags.day, "day", false,
		"simulate a bad day of a large cluster: 50,000 nodes in ten zones, 24h; other flags change it")
	f.BoolVar(&o.Exact, "exact", false, "simulate each heartbeat individually: the same result, much slower")
	f.StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

// fill sets what the flags say in o, and reads the file of events.
func (f simFlags) fill(c *cobra.Command, o *sim.Options) (err error) {
	script := ""
	if f.day {
		script = sim.Day
		for name, set := range map[string]func(){
			"nodes": func() { o.Nodes = 50000 }, "zones": func() { o.Zones = 10 }, "pods-per-node": func() { o.PodsPerNode = 1 },
			"for": func() { o.For = 24 * time.Hour },
		} {
			if !c.Flags().Changed(name) {
				set()
			}
		}
	}
	if f.faults != "" {
		text, err := os.ReadFile(f.faults)
		if err != nil {
			return fmt.Errorf("read --faults: %w", err)
		}
		script = string(text)
	}
	if o.Script, err = sim.ParseScript(script); err != nil {
		return fmt.Errorf("read --faults %s: %w", f.faults, err)
	}
	if o.Policies, err = parsePolicies(f.policies); err != nil {
		return err
	}
	return nil
}

// parsePolicies reads --policy. Upstream's policy is always the first.
func parsePolicies(texts []string) ([]sim.Policy, error) {
	policies := []sim.Policy{sim.Upstream()}
	var problems []string
	for _, text := range texts {
		p, err := parsePolicy(text)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		if text != "upstream" {
			policies = append(policies, p)
		}
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(problems, "; "))
	}
	return policies, nil
}

func parsePolicy(text string) (sim.Policy, error) {
	base, changes, changed := strings.Cut(text, ":")
	bases := map[string]func() sim.Policy{"upstream": sim.Upstream, "plimsoll": sim.Ours}
	if bases[base] == nil {
		return sim.Policy{}, fmt.Errorf("--policy %q: %q: want upstream or plimsoll, and after a colon the changes", text,
			base)
	}
	p := bases[base]()
	p.Name = text
	if !changed {
		return p, nil
	}
	for change := range strings.SplitSeq(changes, ",") {
		key, value, _ := strings.Cut(change, "=")
		if err := changePolicy(&p, key, value); err != nil {
			return p, fmt.Errorf("--policy %q: %s: %w", text, change, err)
		}
	}
	return p, nil
}

func changePolicy(p *sim.Policy, key, value string) (err error) {
	share := func(into *float32) error {
		f, err := strconv.ParseFloat(value, 32)
		*into = float32(f)
		return err
	}
	switch key {
	case "grace":
		p.Health.Grace, err = time.ParseDuration(value)
	case "scan":
		p.Scan, err = time.ParseDuration(value)
	case "rate":
		err = share(&p.Health.EvictionRate)
	case "secondary":
		err = share(&p.Health.SecondaryRate)
	case "threshold":
		err = share(&p.Health.UnhealthyZone)
	case "large":
		p.Health.LargeZone, err = strconv.Atoi(value)
	case "room":
		p.Health.ByRoom, err = strconv.ParseBool(value)
	case "qps":
		p.QPS, err = strconv.ParseFloat(value, 64)
		p.Burst = 1.5 * p.QPS // the ratio of upstream's QPS 20 and burst 30
	default:
		return fmt.Errorf("want grace, scan, rate, secondary, threshold, large, room or qps")
	}
	if err != nil {
		return fmt.Errorf("%q is not a valid value of %s", value, key)
	}
	return nil
}
