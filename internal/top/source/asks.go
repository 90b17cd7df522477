package source

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/explain"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/top"
)

// detail is what is known of the node in view. Source.mu guards its fields below stop.
type detail struct {
	name string
	stop func() // ends its watch

	samples   []top.Sample
	noSamples string
	uses      map[string]top.Usage // of pods, by UID
	numa      *topology.Node
	machine   *numaMachine
	noNUMA    string
	decisions []top.Decision
	noJournal string
}

// metricsList is the part of a list of metrics.k8s.io/v1beta1 that is read. Pods have the usage of their containers.
type metricsList struct{ Items []metricsItem }

type metricsItem struct {
	Metadata   struct{ Namespace, Name string }
	Timestamp  time.Time
	Usage      corev1.ResourceList
	Containers []struct{ Usage corev1.ResourceList }
}

// pod returns what a pod uses.
func (i *metricsItem) pod() top.Usage {
	sum := top.Usage{At: i.Timestamp}
	for _, c := range i.Containers {
		one := usageOf(i.Timestamp, c.Usage)
		sum.CPU += one.CPU
		sum.Memory += one.Memory
	}
	return sum
}

// Measure asks metrics.k8s.io what nodes use, and pods if somebody looks at them.
func (s *Source) Measure(ctx context.Context) {
	const what = "what nodes use"
	list := &metricsList{}
	if err := s.metrics(ctx, list, "nodes"); err != nil {
		s.lack(what, metricsText(err))
		s.mu.Lock()
		s.measured = false
		s.mu.Unlock()
		return
	}
	s.lack(what, "")
	s.mu.Lock()
	s.measured = true
	for _, item := range list.Items {
		if n := s.nodes[item.Metadata.Name]; n != nil {
			n.used = usageOf(item.Timestamp, item.Usage)
			n.shown = nil
		}
	}
	page := s.looks
	s.mu.Unlock()
	if page == top.Pods {
		s.measurePods(ctx)
	}
}

func (s *Source) measurePods(ctx context.Context) {
	const what = "what pods use"
	s.mu.Lock()
	count, many := len(s.pods), s.many()
	seen := s.seen
	s.seenBefore = seen
	s.mu.Unlock()
	if many {
		uses, err := s.measureSeen(ctx, seen)
		if err != nil {
			s.lack(what, metricsText(err))
			return
		}
		s.lack(what, fmt.Sprintf("of %d pods only those on the screen are asked for: an order by use has no meaning", count))
		s.setPodUse(uses)
		return
	}
	list := &metricsList{}
	if err := s.metrics(ctx, list, "pods"); err != nil {
		s.lack(what, metricsText(err))
		return
	}
	s.lack(what, "")
	uses := make(map[string]top.Usage, len(list.Items))
	for i := range list.Items {
		m := &list.Items[i].Metadata
		uses[m.Namespace+"/"+m.Name] = list.Items[i].pod()
	}
	s.setPodUse(uses)
}

// many reports whether there are too many pods to ask for all of them. s.mu is locked.
func (s *Source) many() bool { return len(s.pods) > cmp.Or(s.measuredMax, podsMeasuredMax) }

// scrolled reports whether there are other pods on the screen than it was asked for.
func (s *Source) scrolled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.measured && s.looks == top.Pods && s.many() && !slices.Equal(s.seen, s.seenBefore)
}

func (s *Source) setPodUse(uses map[string]top.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.podUse = uses
}

// measureSeen asks what pods use, NAMESPACE/NAME, for each of them. One without measurements is left out.
func (s *Source) measureSeen(ctx context.Context, pods []string) (map[string]top.Usage, error) {
	uses := make(map[string]top.Usage, len(pods))
	var mu sync.Mutex // guards uses and failed
	var failed error
	var asking sync.WaitGroup
	turn := make(chan struct{}, asksMax)
	for _, pod := range pods {
		namespace, name, _ := strings.Cut(pod, "/")
		turn <- struct{}{}
		asking.Go(func() {
			defer func() { <-turn }()
			one := &metricsItem{}
			err := s.metrics(ctx, one, "namespaces", namespace, "pods", name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				uses[pod] = one.pod()
			case !apierrors.IsNotFound(err):
				failed = err
			}
		})
	}
	asking.Wait()
	return uses, failed
}

func usageOf(at time.Time, list corev1.ResourceList) top.Usage {
	a := amounts(list)
	return top.Usage{At: at, CPU: a.CPU, Memory: a.Memory}
}

// metrics reads an object of metrics.k8s.io into to.
func (s *Source) metrics(ctx context.Context, to any, path ...string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	answer := s.Client.REST(corev1.SchemeGroupVersion).Get().AbsPath("/apis/metrics.k8s.io/v1beta1").Suffix(path...).
		SetHeader("Accept", "application/json").Do(ctx)
	if err := answer.Error(); err != nil { // that of Raw does not have what the server says
		return err
	}
	body, err := answer.Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("metrics.k8s.io: %w", err)
	}
	return nil
}

func metricsText(err error) string {
	if apierrors.IsNotFound(err) {
		return "the cluster has no metrics.k8s.io (metrics-server)"
	}
	return err.Error()
}

// sample asks the node's agent what is used, and how long tasks waited for it.
func (s *Source) sample(ctx context.Context, d *detail) {
	body, err := s.ask(ctx, d.name, "/stats/summary", url.Values{"only_cpu_and_memory": {"true"}})
	summary := &statsapi.Summary{}
	if err == nil {
		if err = json.Unmarshal(body, summary); err != nil {
			err = fmt.Errorf("/stats/summary: %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.noSamples = ""; err != nil {
		d.noSamples = err.Error()
		return
	}
	one := top.Sample{Used: used(summary.Node.CPU, summary.Node.Memory), Stall: stallOf(&summary.Node)}
	if n := len(d.samples); n > 0 && one.Used.Known() && !one.Used.At.After(d.samples[n-1].Used.At) {
		return // the agent has not measured again
	}
	d.samples = append(d.samples, one)
	d.samples = d.samples[max(0, len(d.samples)-top.SamplesMax):]
	d.uses = map[string]top.Usage{}
	for i := range summary.Pods {
		p := &summary.Pods[i]
		if u := used(p.CPU, p.Memory); u.Known() {
			d.uses[p.PodRef.UID] = u
		}
	}
}

func used(cpu *statsapi.CPUStats, memory *statsapi.MemoryStats) (out top.Usage) {
	if cpu == nil || memory == nil || cpu.UsageNanoCores == nil || memory.WorkingSetBytes == nil {
		return out
	}
	out.At = cpu.Time.Time
	out.CPU = unit.MilliCPU(*cpu.UsageNanoCores / 1e6)
	out.Memory = unit.Bytes(*memory.WorkingSetBytes)
	return out
}

func stallOf(n *statsapi.NodeStats) top.Stall {
	out := top.NoStall
	if n.CPU != nil && n.CPU.PSI != nil {
		out.CPUSome = n.CPU.PSI.Some.Avg10
	}
	if n.Memory != nil && n.Memory.PSI != nil {
		out.MemorySome, out.MemoryFull = n.Memory.PSI.Some.Avg10, n.Memory.PSI.Full.Avg10
	}
	if n.IO != nil && n.IO.PSI != nil {
		out.IOSome, out.IOFull = n.IO.PSI.Some.Avg10, n.IO.PSI.Full.Avg10
	}
	return out
}

// ask asks a node's agent: through the API server, or, if that is forbidden, at the node's own address. The role in
// deploy/rbac-top.yaml allows the latter only: nodes/proxy would also allow to run commands.
func (s *Source) ask(ctx context.Context, name, path string, parameters url.Values) ([]byte, error) {
	object, _ := s.object(name)
	if object == nil {
		return nil, fmt.Errorf("the API has no node %s", name)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	body, err := explain.FromAgent(ctx, s.Client, object, path, parameters)
	if !apierrors.IsForbidden(err) {
		return body, err
	}
	for _, a := range object.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		at := url.URL{Scheme: "https", Host: net.JoinHostPort(a.Address,
			strconv.Itoa(int(object.Status.DaemonEndpoints.KubeletEndpoint.Port))), Path: path, RawQuery: parameters.Encode()}
		if body, err = s.get(ctx, at.String()); err != nil {
			err = fmt.Errorf("the agent's own port: %w (nor through the API server: get on nodes/proxy is forbidden)", err)
		}
		return body, err
	}
	return nil, err
}

// answerMax bounds an agent's answer, in bytes (chosen: many times a summary of a thousand pods).
const answerMax = 64 << 20

func (s *Source) get(ctx context.Context, address string) ([]byte, error) {
	client, err := rest.HTTPClientFor(s.Client.RESTConfig())
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
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
		err = fmt.Errorf("%s: %.200s", response.Status, body)
	}
	return body, err
}

// askJournal asks the node's agent what it decided.
func (s *Source) askJournal(ctx context.Context, d *detail) {
	why := ""
	var found journal.Answer
	if _, ours := s.object(d.name); !ours {
		why = "the node's agent keeps no journal: it is not plimsoll's"
	} else if body, err := s.ask(ctx, d.name, journal.Path, nil); err != nil {
		why = err.Error()
	} else if found, err = journal.ReadAnswer(body, journal.Query{}); err != nil {
		why = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d.noJournal = why
	d.decisions = decisionsOf("agent", d.name, found.Records)
}

// askJournals asks the components whose journals are known.
func (s *Source) askJournals(ctx context.Context) {
	var all []top.Decision
	for _, from := range s.Asker.Sources {
		what := "the journal " + from.Name
		found, err := from.Ask(ctx, journal.Query{})
		if err != nil {
			s.lack(what, err.Error())
			continue
		}
		s.lack(what, "")
		by := found.By
		if by == "" {
			by = "agent"
		}
		all = append(all, decisionsOf(by, "", found.Records)...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorded = all
}

// bad are the kinds of records that are a warning.
var bad = map[journal.Kind]bool{journal.Eviction: true, journal.OutOfMemory: true, journal.Unschedulable: true,
	journal.Failed: true, journal.Preempted: true}

// decisionsOf returns the newest records as decisions.
func decisionsOf(from, node string, records []journal.Record) (out []top.Decision) {
	for _, r := range records[max(0, len(records)-decisionsMax):] {
		one := top.Decision{Time: r.Time, From: from, About: r.Node, Text: r.Text, Bad: bad[r.Kind]}
		if one.About == "" {
			one.About = node
		}
		if len(r.Pods) > 0 {
			one.About, one.Pod = r.Pods[0].Namespace+"/"+r.Pods[0].Name, true
		}
		out = append(out, one)
	}
	return out
}

// watchNUMA watches the NodeResourceTopology object of the node in view.
func (s *Source) watchNUMA(ctx context.Context, d *detail) {
	set := func(found *topology.Node, m *numaMachine, why string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		d.numa = found
		d.machine = m
		d.noNUMA = why
	}
	set(nil, nil, "the node publishes no NodeResourceTopology")
	o := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", d.name).String()}
	for {
		w, err := s.Client.Watch(ctx, kube.Topologies, "", o)
		if apierrors.IsNotFound(err) {
			set(nil, nil, "the cluster has no NodeResourceTopology objects")
		} else if err != nil {
			set(nil, nil, err.Error())
		} else {
			for e := range w.ResultChan() {
				object, is := e.Object.(*topology.Object)
				if !is {
					continue
				}
				if e.Type == "DELETED" {
					set(nil, nil, "the node publishes no NodeResourceTopology any more")
					continue
				}
				set(readNUMA(object))
			}
		}
		if !pause(ctx, retryTime) {
			return
		}
	}
}

// quantity parses an amount of a zone; 0 if there is none.
func quantity(z *topology.Zone, name string, of func(topology.ResourceInfo) resource.Quantity) int64 {
	for _, r := range z.Resources {
		if r.Name == name {
			q := of(r)
			return q.Value()
		}
	}
	return 0
}
