package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios runs testdata/*.txt: "play" with options as arguments and a script as input prints the table that
// compares the policies. The first line of the table has the seed.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			o := Options{Nodes: 300, Zones: 3, PodsPerNode: 4, For: time.Hour, Seed: 1, Policies: []Policy{Upstream(), Ours()}}
			for _, arg := range d.CmdArgs {
				var err error
				switch arg.Key {
				case "nodes":
					_, err = fmt.Sscan(arg.Vals[0], &o.Nodes)
				case "zones":
					_, err = fmt.Sscan(arg.Vals[0], &o.Zones)
				case "pods":
					_, err = fmt.Sscan(arg.Vals[0], &o.PodsPerNode)
				case "seed":
					_, err = fmt.Sscan(arg.Vals[0], &o.Seed)
				case "for":
					o.For, err = time.ParseDuration(arg.Vals[0])
				case "exact":
					o.Exact = true
				default:
					d.Fatalf(t, "unknown argument %s", arg)
				}
				if err != nil {
					d.Fatalf(t, "%s: %v", arg, err)
				}
			}
			var err error
			if o.Script, err = ParseScript(d.Input); err != nil {
				return err.Error() + "\n"
			}
			results, err := Run(o)
			if err != nil {
				return err.Error() + "\n"
			}
			var out strings.Builder
			if err := Print(&out, o, results); err != nil {
				t.Fatal(err)
			}
			return out.String()
		})
	})
}

// troubles is a script with every kind of event.
const troubles = `
at 2m   silence count=7
at 5m   partition zone=zone-1 for=10m
at 7m   flap up=2m down=70s count=10 for=30m
at 20m  controller restart
at 22m  notready count=9 for=5m
at 30m  api down
at 33m  api up
at 40m  silence percent=80 zone=zone-2
at 41m  slow delay=3s count=15 for=10m
at 50m  partition for=5m
at 70m  return
`

func play(t *testing.T, change func(*Options)) []Result {
	t.Helper()
	o := Options{Nodes: 120, Zones: 3, PodsPerNode: 3, For: 100 * time.Minute, Seed: 42, Policies: []Policy{Upstream(),
		Ours()}}
	var err error
	if o.Script, err = ParseScript(troubles); err != nil {
		t.Fatal(err)
	}
	change(&o)
	results, err := Run(o)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// TestSameSeedSameTrace: the options alone determine the result.
func TestSameSeedSameTrace(t *testing.T) {
	a := play(t, func(*Options) {})
	b := play(t, func(*Options) {})
	other := play(t, func(o *Options) { o.Seed++ })
	for i := range a {
		if a[i] != b[i] {
			t.Errorf("%s: the same options gave\n%+v\n%+v", a[i].Policy, a[i], b[i])
		}
		if a[i].TraceHash == other[i].TraceHash {
			t.Errorf("%s: another seed gave the same trace", a[i].Policy)
		}
		if a[i].Unknown.Count == 0 || a[i].Evicted == 0 || a[i].ReadyAtEnd != 120 {
			t.Errorf("%s: %+v", a[i].Policy, a[i])
		}
	}
}

// TestCoastingIsExact: simulating each heartbeat individually gives the same result.
func TestCoastingIsExact(t *testing.T) {
	for _, seed := range []uint64{7} {
		fast, exact := play(t, func(o *Options) { o.Seed = seed }), play(t, func(o *Options) { o.Seed, o.Exact = seed, true })
		for i := range fast {
			if fast[i] != exact[i] {
				t.Errorf("seed %d, %s:\ncoasting %+v\nexact    %+v", seed, fast[i].Policy, fast[i], exact[i])
			}
		}
	}
}

// TestOrderOfVisitsDoesNotMatter: processing the events of one moment in another order gives the same result.
func TestOrderOfVisitsDoesNotMatter(t *testing.T) {
	a := play(t, func(*Options) {})
	for shuffle := uint64(1); shuffle <= 2; shuffle++ {
		b := play(t, func(o *Options) { o.Shuffle = shuffle })
		for i := range a {
			if a[i] != b[i] {
				t.Errorf("shuffle %d, %s:\n%+v\n%+v", shuffle, a[i].Policy, a[i], b[i])
			}
		}
	}
}

// TestLoadOnTheServer: while a large zone fails, our policy sends no more requests in any second than the API server
// sustains, and still marks the zone many times sooner than upstream's.
func TestLoadOnTheServer(t *testing.T) {
	script, err := ParseScript("at 5m silence zone=zone-1")
	if err != nil {
		t.Fatal(err)
	}
	results, err := Run(Options{Nodes: 2000, Zones: 2, PodsPerNode: 1, For: 15 * time.Minute, Seed: 3, Script: script,
		Policies: []Policy{Upstream(), Ours()}})
	if err != nil {
		t.Fatal(err)
	}
	upstream, ours := results[0], results[1]
	const bears = int(serverParallel * time.Second / latency)
	if ours.BusiestSec > bears*2/3 || ours.Unknown.Last > upstream.Unknown.Last/8 || ours.Unknown.Count != 1000 {
		t.Errorf("busiest second %d of %d that it bears; the last of %d marked after %.1f s, upstream's of %d after %.1f s",
			ours.BusiestSec, bears, ours.Unknown.Count, ours.Unknown.Last, upstream.Unknown.Count, upstream.Unknown.Last)
	}
	if upstream.BusiestSec > int(upstreamQPS+upstreamBurst) {
		t.Errorf("upstream's busiest second has %d requests: more than its limit of %d and a burst of %d",
			upstream.BusiestSec, int(upstreamQPS), int(upstreamBurst))
	}
}
