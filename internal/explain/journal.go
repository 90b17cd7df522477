package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// A Journal is what a node's agent recorded about its decisions.
type Journal struct {
	Node    string           `json:"node"`
	Records []journal.Record `json:"records"`

	read bool           // the agent was asked, and has answered
	all  journal.Answer // what it answered
}

// noJournal is the journal of a node that was not asked.
func noJournal(node string) Journal { return Journal{Node: node, Records: []journal.Record{}} }

// journalQuestion says which records are wanted.
type journalQuestion struct {
	namespace, pod, uid string // empty: those about any pod
	node                string
	newest              int // how many of the newest evictions are wanted at most; 0: all
}

// askJournal asks the node's agent.
func askJournal(ctx context.Context, c *kube.Client, q journalQuestion) (Journal, error) {
	body, err := journalOf(ctx, c, q)
	if apierrors.IsNotFound(err) {
		return Journal{}, fmt.Errorf("ask node %s for its journal: it has none (only plimsoll's agent keeps one): %w", q.node,
			err)
	} else if err != nil {
		return Journal{}, fmt.Errorf("ask node %s for its journal: %w", q.node, err)
	}
	found, err := journal.ReadAnswer(body, journal.Query{Namespace: q.namespace, Name: q.pod, UID: q.uid})
	if err != nil {
		return Journal{}, fmt.Errorf("node %s: %w", q.node, err)
	}
	a := Journal{Node: q.node, Records: found.Records, read: true, all: found}
	a.Records = q.limit(a.Records)
	return a, nil
}

// limit leaves out the older evictions, and about a node everything that is no eviction: that is told of each pod.
func (q *journalQuestion) limit(all []journal.Record) []journal.Record {
	out := []journal.Record{}
	evictions := 0
	for _, r := range slices.Backward(all) {
		switch eviction := r.Kind == journal.Eviction || r.Kind == journal.Intent; {
		case !eviction && q.pod == "":
			continue
		case eviction:
			if evictions++; q.newest > 0 && evictions > q.newest {
				continue
			}
		}
		out = append(out, r)
	}
	slices.Reverse(out)
	return out
}

// journalOf returns the answer of a node's agent.
func journalOf(ctx context.Context, c *kube.Client, q journalQuestion) ([]byte, error) {
	node := &corev1.Node{}
	if err := c.Get(ctx, kube.Nodes, "", q.node, node); err != nil {
		return nil, err
	}
	return FromAgent(ctx, c, node, journal.Path, url.Values{"namespace": {q.namespace}, "name": {q.pod}})
}

// FromAgent returns what a node's agent answers to GET on a path of its HTTPS port. The agent is asked through the API
// server. That refuses to proxy to a loopback address: if the Node's addresses show that the agent listens only on this
// machine's loopback, it is asked directly.
func FromAgent(ctx context.Context, c *kube.Client, node *corev1.Node, path string, parameters url.Values) ([]byte,
	error) {
	local := slices.Contains(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalDNS, Address: "localhost"})
	if !local {
		r := c.REST(corev1.SchemeGroupVersion).Get().AbsPath("/api/v1/nodes", node.Name, "proxy"+path)
		for name, values := range parameters {
			r = r.Param(name, values[0])
		}
		return r.SetHeader("Accept", "application/json").DoRaw(ctx)
	}
	client, err := rest.HTTPClientFor(c.RESTConfig())
	if err != nil {
		return nil, err
	}
	at := url.URL{
		Scheme:   "https",
		Host:     net.JoinHostPort("localhost", strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))),
		Path:     path,
		RawQuery: parameters.Encode(),
	}
	return get(ctx, client, at.String())
}

// writeRecords prints the journal, if there is one.
func (a Journal) writeRecords(out *bytes.Buffer) {
	if !a.read {
		return
	}
	out.WriteByte('\n')
	if err := a.table(out); err != nil {
		fmt.Fprintf(out, "%v\n", err)
	}
}

// table writes the journal for people.
func (a Journal) table(out *bytes.Buffer) error {
	printed := 0
	for _, r := range a.Records {
		if r.Kind != journal.Eviction {
			continue
		}
		var d journal.Decision
		if err := json.Unmarshal(r.Detail, &d); err != nil {
			return fmt.Errorf("read record %d of node %s: %w", r.Number, a.Node, err)
		}
		if printed++; printed > 1 {
			out.WriteByte('\n')
		}
		fmt.Fprintf(out, "%s  node %s, decision %d\n", r.Time.UTC().Format(time.RFC3339), a.Node, r.Number)
		if err := write(out, d); err != nil {
			return err
		}
	}
	if printed == 0 && len(a.Records) == 0 {
		fmt.Fprintf(out, "The journal of node %s has no decision about that.\n", a.Node)
	}
	return nil
}

// write prints one decision.
func write(out *bytes.Buffer, d journal.Decision) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(d.Decided.Met) > 0 {
		fmt.Fprintln(table, "SIGNAL\tTHRESHOLD\tAVAILABLE\tCAPACITY\tKIND\tMET FOR\tMISSING\tBEING FREED\tNOTE")
	} else {
		fmt.Fprintln(table, "No threshold is met.")
	}
	for _, m := range d.Decided.Met {
		kind := "hard"
		if !m.IsHard() {
			kind = fmt.Sprintf("soft, after %v", m.Grace)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%v\t%s\t%s\t%s\n", m.Signal, eviction.Amount(m.Signal, m.Amount),
			eviction.Amount(m.Signal, m.Available),
			eviction.Amount(m.Signal, m.Capacity), kind, d.Now.Sub(m.Since).Round(time.Millisecond), eviction.Amount(m.Signal,
				m.Deficit), eviction.Amount(m.Signal, m.Coming), m.Held)
	}
	if swap := d.Facts.Memory.Swappable(); swap > 0 {
		fmt.Fprintf(table, "Of memory that is available, %s is swap that pods may use.\n", swap)
	}
	if len(d.Decided.Ranking) > 0 {
		fmt.Fprintln(table, "\nPOD\tUSES\tREQUESTS\tPRIORITY\tFREES\tRANKED BY\tDECISION")
	}
	fates := map[string]string{}
	for _, v := range d.Decided.Victims {
		fates[v.ID] = fmt.Sprintf("evicted for %s, termination grace period %v", v.Cause, v.Grace)
	}
	for _, k := range d.Kills {
		if k.How != "" {
			fates[k.UID] += fmt.Sprintf("; SIGKILL to %d processes %v after the check began (%s)", k.Processes,
				k.After.Round(time.Microsecond), k.How)
		}
		if k.Error != "" {
			fates[k.UID] += "; " + k.Error
		}
	}
	for _, r := range d.Decided.Ranking {
		signal := d.Decided.Met[0].Signal
		fmt.Fprintf(table, "%s/%s\t%s\t%s\t%d\t%s\t%s\t%s\n", r.Namespace, r.Name, eviction.Amount(signal, r.Usage),
			eviction.Amount(signal, r.Request),
			r.Priority, eviction.Amount(signal, r.Frees), r.Reason(), fates[r.ID])
	}
	for _, v := range d.Decided.Victims {
		fmt.Fprintf(table, "\n%s/%s: %s\n", v.Namespace, v.Name, v.Message)
	}
	for _, r := range d.Decided.Reclaim {
		fmt.Fprintf(table, "Reclaim of %s until %s is %s.\n", r.Step, r.Signal, eviction.Amount(r.Signal, r.Until))
	}
	fmt.Fprintf(table, "Conditions: %v.\n", d.Decided.Conditions)
	return table.Flush()
}
