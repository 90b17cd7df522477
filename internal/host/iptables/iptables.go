// Package iptables makes chains and rules of netfilter with the machine's own iptables program.
//
// Two variants of that program exist. They keep their rules in different parts of the kernel (nf_tables and the older
// x_tables), and neither sees the other's. So a chain that was made with the machine's program says which variant the
// machine uses; package nat, which talks to the kernel itself, could not make such a chain.
//
// Every function changes nothing that is as asked already. It removes nothing, and waits up to lockWait for other
// processes that change rules. It does not know which chains and rules are wanted.
package iptables

import (
	"errors"
	"fmt"
	"os/exec"

	"github.com/coreos/go-iptables/iptables"
)

// lockWait is how long the program waits for the lock of the rules, in seconds. It is the kubelet's.
const lockWait = 5

// ErrMissing means that the machine has no such program.
var ErrMissing = errors.New("the program is not on this machine")

// Tables are the tables of one family of addresses.
type Tables struct {
	program *iptables.IPTables
	name    string
}

// OpenIPv4 finds iptables. The error wraps ErrMissing if the machine has none.
func OpenIPv4() (*Tables, error) { return open("iptables", iptables.ProtocolIPv4) }

// OpenIPv6 finds ip6tables.
func OpenIPv6() (*Tables, error) { return open("ip6tables", iptables.ProtocolIPv6) }

func open(name string, family iptables.Protocol) (*Tables, error) {
	program, err := iptables.New(iptables.IPFamily(family), iptables.Timeout(lockWait))
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%s: %w", name, ErrMissing)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Tables{program: program, name: name}, nil
}

// Name is the name of the program.
func (t *Tables) Name() string { return t.name }

// HasChain reports whether a table has a chain.
func (t *Tables) HasChain(table, chain string) (bool, error) {
	has, err := t.program.ChainExists(table, chain)
	if err != nil {
		return false, fmt.Errorf("look for chain %s in table %s: %w", chain, table, err)
	}
	return has, nil
}

// MakeChain makes a chain, if the table has none of that name.
func (t *Tables) MakeChain(table, chain string) error {
	if has, err := t.HasChain(table, chain); has || err != nil {
		return err
	}
	err := t.program.NewChain(table, chain)
	if err == nil {
		return nil
	}
	if has, _ := t.HasChain(table, chain); has {
		return nil // another program has just made it
	}
	return fmt.Errorf("make chain %s in table %s: %w", chain, table, err)
}

// First makes a rule the first of a chain, if the chain does not have it anywhere.
func (t *Tables) First(table, chain string, rule ...string) error {
	if err := t.program.InsertUnique(table, chain, 1, rule...); err != nil {
		return fmt.Errorf("insert a rule into chain %s of table %s: %q: %w", chain, table, rule, err)
	}
	return nil
}

// Last appends a rule to a chain, if the chain does not have it.
func (t *Tables) Last(table, chain string, rule ...string) error {
	if err := t.program.AppendUnique(table, chain, rule...); err != nil {
		return fmt.Errorf("append a rule to chain %s of table %s: %q: %w", chain, table, rule, err)
	}
	return nil
}
