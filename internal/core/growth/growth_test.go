package growth

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestMessages: a node that listens is told which claims of its pods wait, and again when that changes. One that has no
// claims, does not listen, or has been told already is not told.
func TestMessages(t *testing.T) {
	s := New()
	now := unit.Instant(time.Second)
	want := func(after string, want ...Message) {
		t.Helper()
		got, _ := s.Step(now)
		if !slices.Equal(got, want) {
			t.Errorf("%s: told %q, want %q", after, got, want)
		}
		for _, m := range got {
			s.Ended(now, m.Node, true)
		}
	}
	s.NodeSeen(Node{Name: "ours", Listens: true})
	s.NodeSeen(Node{Name: "kubelet"})
	want("no pods")
	s.PodSeen(Pod{ID: "p", Node: "ours", Claims: []string{"a/x", "a/y"}})
	s.PodSeen(Pod{ID: "q", Node: "kubelet", Claims: []string{"a/x"}})
	want("the first claims", Message{"ours", ""})
	s.ClaimSeen("a/y", true)
	s.ClaimSeen("b/z", true)
	want("one is to grow", Message{"ours", "a/y"})
	s.NodeSeen(Node{Name: "ours", Listens: true, Told: true, Claims: "a/y"})
	s.ClaimSeen("a/y", true)
	want("nothing new")
	s.ClaimSeen("a/x", true)
	want("another one", Message{"ours", "a/x,a/y"})
	s.NodeSeen(Node{Name: "ours", Listens: true, Told: true, Claims: "somebody's"})
	want("somebody else wrote", Message{"ours", "a/x,a/y"})
	s.ClaimSeen("a/x", false)
	s.PodGone("p")
	want("no pods any more", Message{"ours", ""})
	s.PodSeen(Pod{ID: "r", Node: "ours", Claims: []string{"a/y"}})
	s.NodeGone("ours")
	want("the node is gone")
	s.NodeSeen(Node{Name: "ours", Listens: true})
	want("and comes again", Message{"ours", "a/y"})
}

// TestMessageOnItsWay: a node gets one message at a time. If it failed, it is repeated after RetryAfter.
func TestMessageOnItsWay(t *testing.T) {
	s := New()
	now := unit.Instant(time.Second)
	s.NodeSeen(Node{Name: "n", Listens: true})
	s.PodSeen(Pod{ID: "p", Node: "n", Claims: []string{"a/x"}})
	if got, _ := s.Step(now); len(got) != 1 {
		t.Fatalf("told %q, want one message", got)
	}
	s.ClaimSeen("a/x", true)
	if got, _ := s.Step(now); len(got) != 0 {
		t.Errorf("told %q while a message is on its way", got)
	}
	s.Ended(now, "n", false)
	got, wake := s.Step(now)
	if len(got) != 0 || wake != now.Add(RetryAfter) {
		t.Errorf("after a failure told %q, wake-up at %v, want none and %v", got, wake, now.Add(RetryAfter))
	}
	if got, _ := s.Step(wake); !slices.Equal(got, []Message{{"n", "a/x"}}) {
		t.Errorf("later told %q, want a/x", got)
	}
}

// TestClaimsMax: a message names a bounded number of claims; the next follow.
func TestClaimsMax(t *testing.T) {
	s := New()
	s.NodeSeen(Node{Name: "n", Listens: true})
	var claims []string
	for i := range ClaimsMax + 1 {
		claims = append(claims, fmt.Sprintf("a/%03d", i))
		s.ClaimSeen(claims[i], true)
	}
	s.PodSeen(Pod{ID: "p", Node: "n", Claims: claims})
	got, _ := s.Step(1)
	if first := strings.Join(claims[:ClaimsMax], ","); !slices.Equal(got, []Message{{"n", first}}) {
		t.Fatalf("told %q, want the first %d of %d claims", got, ClaimsMax, len(claims))
	}
	s.Ended(1, "n", true)
	s.ClaimSeen(claims[0], false)
	if got, _ := s.Step(1); len(got) != 1 || !strings.HasSuffix(got[0].Claims, claims[ClaimsMax]) {
		t.Errorf("after one has grown told %q, want the last claim too", got)
	}
}

// TestHistories: whatever happens, once messages arrive and nothing changes any more, each node that listens has the
// message that follows from pods and claims alone.
func TestHistories(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		name := func(kind string, of int) string { return fmt.Sprint(kind, random.IntN(of)) }
		s := New()
		nodes, pods, growing := map[string]Node{}, map[string]Pod{}, map[string]bool{}
		var inFlight []Message
		now := unit.Instant(1)
		end := func(i int, arrived bool) {
			m := inFlight[i]
			inFlight = slices.Delete(inFlight, i, i+1)
			n, there := nodes[m.Node]
			if arrived && there {
				n.Told, n.Claims = true, m.Claims
				nodes[m.Node] = n
			}
			s.Ended(now, m.Node, arrived && there)
		}
		step := func() (wake unit.Instant) {
			messages, wake := s.Step(now)
			for _, m := range messages {
				if slices.ContainsFunc(inFlight, func(other Message) bool { return other.Node == m.Node }) {
					t.Fatalf("seed %d: two messages for %s", seed, m.Node)
				}
				inFlight = append(inFlight, m)
			}
			return wake
		}
		for range 200 {
			switch random.IntN(7) {
			case 0:
				n := Node{Name: name("n", 4), Listens: random.IntN(4) > 0}
				if old, there := nodes[n.Name]; there {
					n.Told, n.Claims = old.Told, old.Claims
				}
				nodes[n.Name] = n
				s.NodeSeen(n)
			case 1:
				if of := name("n", 4); !slices.ContainsFunc(inFlight, func(m Message) bool { return m.Node == of }) {
					delete(nodes, of)
					s.NodeGone(of)
				}
			case 2, 3:
				p := Pod{ID: name("p", 8), Node: name("n", 4)}
				for range random.IntN(4) {
					p.Claims = append(p.Claims, name("a/c", 6))
				}
				pods[p.ID] = p
				s.PodSeen(p)
			case 4:
				id := name("p", 8)
				delete(pods, id)
				s.PodGone(id)
			case 5:
				claim := name("a/c", 6)
				growing[claim] = !growing[claim]
				s.ClaimSeen(claim, growing[claim])
			case 6:
				if len(inFlight) > 0 {
					end(random.IntN(len(inFlight)), random.IntN(3) > 0)
				}
			}
			step()
		}
		for quiet := false; !quiet; {
			for len(inFlight) > 0 {
				end(0, true)
			}
			if wake := step(); !wake.IsZero() {
				now = wake
				continue
			}
			quiet = len(inFlight) == 0
		}
		for _, n := range nodes {
			want := map[string]bool{}
			used := false
			for _, p := range pods {
				for _, claim := range p.Claims {
					used = used || p.Node == n.Name
					if p.Node == n.Name && growing[claim] {
						want[claim] = true
					}
				}
			}
			claims := strings.Join(slices.Sorted(maps.Keys(want)), ",")
			if n.Listens && (used && !n.Told || n.Claims != claims) {
				t.Fatalf("seed %d: node %+v, want the claims %q", seed, n, claims)
			}
		}
	}
}
