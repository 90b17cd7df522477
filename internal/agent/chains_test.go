package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// ruleset is netfilter as one program of the machine sees it.
type ruleset struct {
	name string

	mu      sync.Mutex
	chains  map[string][]string // rules, by table and chain
	refuses bool
	changes int
}

func newRuleset(name string) *ruleset {
	r := &ruleset{name: name}
	r.flush()
	return r
}

// flush removes everything, as the start of a firewall may.
func (r *ruleset) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.chains = map[string][]string{"filter INPUT": nil, "filter OUTPUT": {"of a firewall"}}
	r.changes = 0
}

func (r *ruleset) setRefuses(refuses bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuses = refuses
}

func (r *ruleset) Name() string { return r.name }

func (r *ruleset) HasChain(table, chain string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, has := r.chains[table+" "+chain]
	return has, r.may()
}

func (r *ruleset) may() error {
	if r.refuses {
		return errors.New("the lock is taken")
	}
	return nil
}

func (r *ruleset) MakeChain(table, chain string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, has := r.chains[table+" "+chain]; !has && r.may() == nil {
		r.chains[table+" "+chain] = nil
		r.changes++
	}
	return r.may()
}

func (r *ruleset) First(table, chain string, rule ...string) error {
	return r.add(table, chain, rule, func(have []string, one string) []string { return slices.Insert(have, 0, one) })
}

func (r *ruleset) Last(table, chain string, rule ...string) error {
	return r.add(table, chain, rule, func(have []string, one string) []string { return append(have, one) })
}

func (r *ruleset) add(table, chain string, rule []string, put func([]string, string) []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	have, exists := r.chains[table+" "+chain]
	if !exists {
		return errors.New("no such chain: " + chain)
	}
	if one := strings.Join(rule, " "); r.may() == nil && !slices.Contains(have, one) {
		r.chains[table+" "+chain] = put(have, one)
		r.changes++
	}
	return r.may()
}

// whole reports whether everything is as the kubelet makes it.
func (r *ruleset) whole(firewall bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, hint := r.chains["mangle KUBE-IPTABLES-HINT"]
	drop, chain := r.chains["filter KUBE-FIREWALL"]
	if !firewall {
		return hint && !chain && r.changes == 1
	}
	return hint && r.changes == 5 && slices.Equal(drop, []string{strings.Join(dropForeignLoopback, " ")}) &&
		slices.Equal(r.chains["filter INPUT"], []string{"-j KUBE-FIREWALL"}) &&
		slices.Equal(r.chains["filter OUTPUT"], []string{"-j KUBE-FIREWALL", "of a firewall"})
}

// TestChainsAreKept: the chains are made, made again when they are gone, and left alone otherwise; while one program
// fails, the other one's are kept, and the first one is tried again.
func TestChainsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		four, six := newRuleset("iptables"), newRuleset("ip6tables")
		six.setRefuses(true)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); keep(ctx, []tables{four, six}, four) }()
		synctest.Wait()
		if !four.whole(true) || six.changes != 0 {
			t.Errorf("at the start: %v, %v", four.chains, six.chains)
		}
		six.setRefuses(false)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if !four.whole(true) || !six.whole(false) {
			t.Errorf("after ten minutes: %v, %v", four.chains, six.chains)
		}
		four.flush()
		time.Sleep(chainsEvery)
		synctest.Wait()
		if !four.whole(true) || !six.whole(false) {
			t.Errorf("a minute after they were removed: %v, %v", four.chains, six.chains)
		}
		four.setRefuses(true) // it cannot be read: nothing is wrong yet
		time.Sleep(5 * chainsEvery)
		four.setRefuses(false)
		time.Sleep(chainsEvery)
		synctest.Wait()
		if !four.whole(true) {
			t.Errorf("after it could not be read: %v", four.chains)
		}
		cancel()
		<-ended
		keep(t.Context(), nil, nil) // a machine without the programs
	})
}
