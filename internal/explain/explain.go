// Package explain reads a node's journal and prints why something was done to a pod or to the node, with the numbers of
// the decision.
//
// It finds the pod's node in the API. It asks that node's agent through the API server (the node proxy, so the caller
// needs permission for nodes/proxy). It prints the records: which thresholds were met, how pods were ranked and with
// which numbers, which pods were evicted, and how. For a pod that is no longer in the API, the caller must name the
// node.
//
// The package decides nothing. It prints decisions from records, which have all their inputs (internal/journal).
package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
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

// Question is what a user asks.
type Question struct {
	Namespace, Pod string // empty: the question is about the node
	Node           string // empty: the pod's node
	Newest         int    // how many of the newest decisions are wanted at most; 0: all
}

// Answer is the content of a node's journal about a question.
type Answer struct {
	Node    string           `json:"node"`
	Records []journal.Record `json:"records"`
}

// Ask asks the node's agent.
func Ask(ctx context.Context, c *kube.Client, q Question) (Answer, error) {
	if q.Node == "" {
		pod := &corev1.Pod{}
		err := c.Get(ctx, kube.Pods, q.Namespace, q.Pod, pod)
		switch {
		case apierrors.IsNotFound(err):
			return Answer{}, fmt.Errorf("find pod %s/%s: the API has no such pod any more; name the node where it was: --node",
				q.Namespace, q.Pod)
		case err != nil:
			return Answer{}, fmt.Errorf("find pod %s/%s: %w", q.Namespace, q.Pod, err)
		case pod.Spec.NodeName == "":
			return Answer{}, fmt.Errorf("find pod %s/%s: it is on no node yet", q.Namespace, q.Pod)
		}
		q.Node = pod.Spec.NodeName
	}
	body, err := journalOf(ctx, c, q)
	if apierrors.IsNotFound(err) {
		return Answer{}, fmt.Errorf("ask node %s for its journal: it has none (only plimsoll's agent keeps one): %w", q.Node,
			err)
	} else if err != nil {
		return Answer{}, fmt.Errorf("ask node %s for its journal: %w", q.Node, err)
	}
	a := Answer{Node: q.Node}
	if err := json.Unmarshal(body, &a.Records); err != nil {
		return Answer{}, fmt.Errorf("read the journal of node %s: %w", q.Node, err)
	}
	if q.Newest > 0 && len(a.Records) > q.Newest {
		a.Records = a.Records[len(a.Records)-q.Newest:]
	}
	return a, nil
}

// journalOf asks through the API server. The API server refuses to proxy to a loopback address. If the Node's addresses
// show that the agent listens only on this machine's loopback, journalOf asks the agent directly.
func journalOf(ctx context.Context, c *kube.Client, q Question) ([]byte, error) {
	node := &corev1.Node{}
	if err := c.Get(ctx, kube.Nodes, "", q.Node, node); err != nil {
		return nil, err
	}
	local := slices.Contains(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalDNS, Address: "localhost"})
	if !local {
		return c.REST(corev1.SchemeGroupVersion).Get().AbsPath("/api/v1/nodes", q.Node, "proxy/journal").
			Param("namespace", q.Namespace).Param("name", q.Pod).SetHeader("Accept", "application/json").DoRaw(ctx)
	}
	client, err := rest.HTTPClientFor(c.RESTConfig())
	if err != nil {
		return nil, err
	}
	at := url.URL{
		Scheme: "https", Host: net.JoinHostPort("localhost",
			strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))),
		Path: "/journal", RawQuery: url.Values{"namespace": {q.Namespace}, "name": {q.Pod}}.Encode(),
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, answerMax))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, bytes.TrimSpace(body))
	}
	return body, err
}

// answerMax bounds how much of an answer is read, in bytes. Chosen: eight times the largest journal (journal.BytesMax).
const answerMax = 64 << 20

// JSON returns the answer for programs.
func (a Answer) JSON() ([]byte, error) {
	out, err := json.MarshalIndent(a, "", "  ")
	return append(out, '\n'), err
}

// Text returns the answer for people.
func (a Answer) Text() ([]byte, error) {
	var out bytes.Buffer
	printed := 0
	for _, r := range a.Records {
		if r.Kind != journal.Eviction {
			continue
		}
		var d journal.Decision
		if err := json.Unmarshal(r.Detail, &d); err != nil {
			return nil, fmt.Errorf("read record %d of node %s: %w", r.Number, a.Node, err)
		}
		if printed++; printed > 1 {
			out.WriteByte('\n')
		}
		fmt.Fprintf(&out, "%s  node %s, decision %d\n", r.Time.UTC().Format(time.RFC3339), a.Node, r.Number)
		if err := write(&out, d); err != nil {
			return nil, err
		}
	}
	if printed == 0 {
		fmt.Fprintf(&out, "The journal of node %s has no decision about that.\n", a.Node)
	}
	return out.Bytes(), nil
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
