// Package growth decides which nodes are told that volumes of their pods are to grow.
//
// # Model
//
// When a claim asks for a larger volume, a controller enlarges the volume, and then the node that has it grows what is
// on it: the file system, for example. Nothing in the API tells that node, and a node may not watch claims. So a State
// is told facts: which claims wait for their node, which pods use them, and what each node has been told. Step answers
// with what to tell: for each node, all claims of its pods that wait, again whenever that changes.
//
// # Invariants
//
//   - Only nodes that listen are told, and only those that have, or had, pods with claims.
//   - A node that has been told what is so is not told again, also by the State of another process.
//   - At most one message for a node is on its way.
//   - A node is told of ClaimsMax claims at most, the first by name. The next follow when those have grown.
//
// A message that failed is repeated after RetryAfter.
//
// It reads no claim's sizes: who enlarges a volume says that the node is next.
package growth

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// ClaimsMax bounds the claims in a message. Chosen: with names of usual length a message has less than 8 KiB. The API
// server limits all annotations of an object to 256 KiB (apimachinery, TotalAnnotationSizeLimitB); 100 names of the
// greatest length have 31 KiB.
const ClaimsMax = 100

// RetryAfter is how long after a failure a message is repeated (chosen: as often as the API server is probed).
const RetryAfter = 5 * time.Second

// Node is what is known of a node.
type Node struct {
	Name    string
	Listens bool   // its agent reads messages
	Told    bool   // it has a message
	Claims  string // of its message
}

// Pod is what is known of a pod.
type Pod struct {
	ID     string
	Node   string   // empty: it has none
	Claims []string // namespace/name of those that it uses
}

// Message is what to tell a node now.
type Message struct {
	Node   string
	Claims string // sorted, separated by commas
}

// State is what is known. It is for one goroutine at a time.
type State struct {
	nodes   map[string]*node
	pods    map[string]Pod
	growing map[string]bool            // the claims that wait for their node
	users   map[string]map[string]int  // by claim: the nodes whose pods use it, with the number of those pods
	used    map[string]map[string]bool // by node: the claims that its pods use
	changed map[string]bool            // nodes to be judged
}

// node is what is known of a node.
type node struct {
	Node
	sent  *string // the message that is on its way
	retry unit.Instant
}

// New returns a State that knows of nothing.
func New() *State {
	return &State{
		nodes:   map[string]*node{},
		pods:    map[string]Pod{},
		growing: map[string]bool{},
		users:   map[string]map[string]int{},
		used:    map[string]map[string]bool{},
		changed: map[string]bool{},
	}
}

// NodeSeen records what is known of a node.
func (s *State) NodeSeen(seen Node) {
	n := s.nodes[seen.Name]
	if n == nil {
		n = &node{}
		s.nodes[seen.Name] = n
	}
	if n.Node != seen {
		n.Node = seen
		s.changed[seen.Name] = true
	}
}

// NodeGone records that a node was deleted.
func (s *State) NodeGone(name string) { delete(s.nodes, name) }

// ClaimSeen records whether a claim waits for its node.
func (s *State) ClaimSeen(claim string, grows bool) {
	if s.growing[claim] == grows {
		return
	}
	if grows {
		s.growing[claim] = true
	} else {
		delete(s.growing, claim)
	}
	for name := range s.users[claim] {
		s.changed[name] = true
	}
}

// PodSeen records what is known of a pod.
func (s *State) PodSeen(p Pod) {
	if p.Node == "" || len(p.Claims) == 0 {
		s.PodGone(p.ID)
		return
	}
	old, known := s.pods[p.ID]
	if known && old.Node == p.Node && slices.Equal(old.Claims, p.Claims) {
		return
	}
	s.PodGone(p.ID)
	s.pods[p.ID] = p
	for _, claim := range p.Claims {
		if s.users[claim] == nil {
			s.users[claim] = map[string]int{}
		}
		s.users[claim][p.Node]++
		if s.used[p.Node] == nil {
			s.used[p.Node] = map[string]bool{}
		}
		s.used[p.Node][claim] = true
	}
	s.changed[p.Node] = true
}

// PodGone records that a pod was deleted.
func (s *State) PodGone(id string) {
	p, known := s.pods[id]
	if !known {
		return
	}
	delete(s.pods, id)
	for _, claim := range p.Claims {
		if s.users[claim][p.Node]--; s.users[claim][p.Node] > 0 {
			continue
		}
		delete(s.users[claim], p.Node)
		delete(s.used[p.Node], claim)
		if len(s.users[claim]) == 0 {
			delete(s.users, claim)
		}
		if len(s.used[p.Node]) == 0 {
			delete(s.used, p.Node)
		}
	}
	s.changed[p.Node] = true
}

// Step returns what to tell now. wake is when to call it again at the latest; zero: when something is learned. Each
// message ends with Ended.
func (s *State) Step(now unit.Instant) (messages []Message, wake unit.Instant) {
	for _, name := range slices.Sorted(maps.Keys(s.changed)) {
		n := s.nodes[name]
		if n == nil || n.sent != nil {
			delete(s.changed, name) // it is judged when it is seen, or when its message has ended
			continue
		}
		if now < n.retry {
			wake = wake.Earlier(n.retry)
			continue
		}
		delete(s.changed, name)
		claims := s.claims(name)
		if !n.Listens || n.Claims == claims && (n.Told || s.used[name] == nil) {
			continue
		}
		n.sent = &claims
		messages = append(messages, Message{Node: name, Claims: claims})
	}
	return messages, wake
}

// claims returns the message that is right for a node now.
func (s *State) claims(name string) string {
	var grow []string
	for claim := range s.used[name] {
		if s.growing[claim] {
			grow = append(grow, claim)
		}
	}
	slices.Sort(grow)
	return strings.Join(grow[:min(len(grow), ClaimsMax)], ",")
}

// Ended records whether a message arrived. What the node has been told by then follows from NodeSeen.
func (s *State) Ended(now unit.Instant, name string, arrived bool) {
	n := s.nodes[name]
	if n == nil || n.sent == nil {
		return
	}
	if arrived {
		n.Told, n.Claims = true, *n.sent
	} else {
		n.retry = now.Add(RetryAfter)
	}
	n.sent = nil
	s.changed[name] = true
}
