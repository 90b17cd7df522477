// Command services measures how soon Services work on a node of `plimsoll up` that has many: the time from a change in
// the API until connections to the Service's address follow it. That includes kube-apiserver, the EndpointSlice
// controller and kube-proxy, which are upstream's programs, and how `up` runs them.
//
// A round brings up an instance, starts one pod with an HTTP server, and creates as many Services of that pod as the
// side has. Then, one after the other, a sample at a time:
//
//   - A Service is created, until a connection to its address succeeds (created).
//   - A Service has no endpoint, and gets one because the pod's label changes, until a connection succeeds (endpoint).
//   - A Service is deleted, until connections to its address fail (deleted).
//
// Connections are tried from the machine, which kube-proxy serves by the same rules as pods. The pause between two
// tries is the resolution. The sides are a few Services and many; nothing of ours replaces kube-proxy, so that there is
// no other program to compare with. It is not a test: a busy machine is no reason to fail a build.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/plimsoll-dev/plimsoll/bench/plane"
	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// config is the command line.
type config struct {
	rounds   int
	services int // of the larger side
	few      int // of the smaller one
	samples  int
	rest     time.Duration
	plimsoll string
	out      string
}

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("services", flag.ContinueOnError)
	f.IntVar(&c.rounds, "rounds", 3, "how often each side is measured")
	f.IntVar(&c.services, "services", 1000, "Services of the larger side")
	f.IntVar(&c.few, "few", 10, "Services of the smaller side")
	f.IntVar(&c.samples, "samples", 100, "how often each change is made")
	f.DurationVar(&c.rest, "rest", time.Minute, "length of the window at rest")
	f.StringVar(&c.plimsoll, "plimsoll", "../bin/plimsoll", "our program; what belongs to it is found beside it")
	f.StringVar(&c.out, "out", "results/services.md", "the report; empty: none")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if c.rounds < 1 || c.few < 1 || c.services <= c.few || c.samples < 1 || c.rest <= 0 {
		return c, fmt.Errorf("--rounds %d, --few %d, --services %d, --samples %d, --rest %v: want at least 1, 1, more than "+
			"--few, 1, more than 0", c.rounds, c.few, c.services, c.samples, c.rest)
	}
	var err error
	c.plimsoll, err = filepath.Abs(c.plimsoll)
	return c, err
}

// The sides.
const (
	few  = "few Services"
	many = "many Services"
)

// Names of values: those of changes have the quantile behind.
const (
	created  = "created"
	endpoint = "endpoint"
	deleted  = "deleted"
	all      = "all"
	proxyCPU = "proxy_cpu"
	proxyMiB = "proxy_mib"
)

// programMax is the bar on a change, in seconds. Chosen: kube-proxy gathers changes for one second
// (--nftables-min-sync-period), so that less cannot be promised, and twice that is noticed.
const programMax = 2

func lines() []record.Line {
	const (
		change = "A change, until connections follow it"
		rest   = "All of them"
	)
	var out []record.Line
	for _, name := range []string{created, endpoint, deleted} {
		title := map[string]string{
			created:  "Service created",
			endpoint: "first endpoint of a Service",
			deleted:  "Service deleted",
		}[name]
		out = append(out,
			record.Line{Group: change, Name: name + "_p50", Title: title + ", p50", Unit: "ms"},
			record.Line{Group: change, Name: name + "_p99", Title: title + ", p99", Unit: "ms",
				Bar: record.Bar{Max: programMax * 1000}},
		)
	}
	return append(out,
		record.Line{Group: rest, Name: all, Title: "all created at once, until the last is reached", Unit: "s"},
		record.Line{Group: rest, Name: proxyCPU, Title: "kube-proxy at rest, CPU", Unit: "cores"},
		record.Line{Group: rest, Name: proxyMiB, Title: "kube-proxy, resident memory", Unit: "MiB"},
	)
}

func main() {
	record.Apart()
	record.Main("services", parseFlags, run)
}

func run(ctx context.Context, c config) (bool, error) {
	if err := record.Connect(ctx); err != nil {
		return false, err
	}
	r := &record.Report{
		Title:   fmt.Sprintf("Services of `plimsoll up`, with %d and with %d", c.few, c.services),
		Program: "services",
		Ours:    many,
		Theirs:  few,
		Heads:   [2]string{fmt.Sprintf("%d Services", c.few), fmt.Sprintf("%d Services", c.services)},
		Lines:   lines(),
		Rounds:  c.rounds,
		Args:    os.Args[1:],
		Began:   time.Now(),
		Machine: append(record.Machine(ctx), record.Fact{
			Name:  "plimsoll",
			Value: record.Output(ctx, c.plimsoll, "version"),
		}),
		Notes: []string{
			fmt.Sprintf("%d samples of each change; a connection is tried every %v", c.samples, tryPeriod),
			fmt.Sprintf("at rest: %v", c.rest),
		},
	}
	err := r.Play(ctx, c.out, []string{few, many}, func(ctx context.Context, m *record.Measurement) error {
		return measure(ctx, c, m)
	})
	if err != nil {
		return false, err
	}
	return r.Finish(c.out)
}

// instance is the name of the instance that is measured.
const instance = "bench-svc"

// apiPort is the port of its kube-apiserver: it is alone in its network namespace.
const apiPort = 6443

// measure measures one side in one round.
func measure(ctx context.Context, c config, m *record.Measurement) (err error) {
	dir, err := os.MkdirTemp("", "pl-")
	if err != nil {
		return err
	}
	p := &plane.Plane{Plimsoll: c.plimsoll, Instance: instance, Dir: dir, Port: apiPort}
	defer func() { err = errors.Join(err, p.Down(context.WithoutCancel(ctx), false)) }()
	record.Progress("%s, round %d: up", m.Side, m.Round)
	_, err = p.Call(ctx, "up", "--detach", "--instance", instance, "--state-dir", p.State(), "--node-name", "bench",
		"--node-ip", record.NodeIP, "--without", "metrics-server,csi")
	if err != nil {
		return err
	}
	s, err := newSubject(ctx, p)
	if err != nil {
		return err
	}
	count := c.few
	if m.Side == many {
		count = c.services
	}
	record.Progress("%s, round %d: %d Services", m.Side, m.Round, count)
	took, err := s.createAll(ctx, count)
	if err != nil {
		return err
	}
	m.Put(all, took.Seconds(), 1)
	record.Progress("%s, round %d: changes", m.Side, m.Round)
	if err := s.changes(ctx, c.samples, m); err != nil {
		return err
	}
	record.Progress("%s, round %d: rest", m.Side, m.Round)
	return s.rests(ctx, c.rest, m)
}

// subject is the instance that is measured.
type subject struct {
	plane *plane.Plane
	api   kubernetes.Interface
}

// Names of what is made.
const (
	namespace = "default"
	server    = "server"
	serving   = "serving" // a label of the pod that Services select
	late      = "late"    // a label that it gets and loses
	podPort   = 8080
	port      = 80
)

// newSubject connects, and starts the pod.
func newSubject(ctx context.Context, p *plane.Plane) (*subject, error) {
	config, err := p.Config()
	if err != nil {
		return nil, err
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: server, Labels: map[string]string{serving: "yes"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:  "http",
			Image: "plimsoll.dev/workload:dev",
			Args:  []string{"http"},
		}}},
	}
	if _, err := api.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	s := &subject{plane: p, api: api}
	_, err = until(ctx, "the pod is ready", func() bool {
		pod, err := api.CoreV1().Pods(namespace).Get(ctx, server, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	})
	return s, err
}

// create creates a Service of pods with a label, and returns its address.
func (s *subject) create(ctx context.Context, name, label string) (string, error) {
	made, err := s.api.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{label: "yes"},
			Ports:    []corev1.ServicePort{{Port: port, TargetPort: intstr.FromInt32(podPort)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(made.Spec.ClusterIP, fmt.Sprint(port)), nil
}

func (s *subject) remove(ctx context.Context, name string) error {
	return s.api.CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

// createAll creates Services one after the other, and returns how long it took until each was reached.
func (s *subject) createAll(ctx context.Context, count int) (time.Duration, error) {
	began := time.Now()
	var addresses []string
	for i := range count {
		address, err := s.create(ctx, fmt.Sprintf("service-%d", i), serving)
		if err != nil {
			return 0, err
		}
		addresses = append(addresses, address)
	}
	for _, address := range addresses {
		if _, err := until(ctx, "a Service is reached", func() bool { return connects(address) }); err != nil {
			return 0, err
		}
	}
	took := time.Since(began)
	return took, answers(addresses[len(addresses)-1])
}

// answers returns an error if no HTTP server is behind an address: what connected was then something else.
func answers(address string) error {
	answer, err := (&http.Client{Timeout: stepMax}).Get("http://" + address + "/")
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("ask %s: %s", address, answer.Status)
	}
	return nil
}

// changes makes each change many times.
func (s *subject) changes(ctx context.Context, samples int, m *record.Measurement) error {
	took := map[string][]float64{}
	for i := range samples {
		name := fmt.Sprintf("sample-%d", i)
		one, err := s.change(ctx, name)
		if err != nil {
			return fmt.Errorf("sample %d: %w", i, err)
		}
		for what, d := range one {
			took[what] = append(took[what], float64(d)/float64(time.Millisecond))
		}
	}
	for what, all := range took {
		m.Put(what+"_p50", stats.Quantile(all, 0.5), len(all))
		m.Put(what+"_p99", stats.Quantile(all, 0.99), len(all))
	}
	return nil
}

// change makes each change once. The clock begins before the request: a user's does too.
func (s *subject) change(ctx context.Context, name string) (took map[string]time.Duration, err error) {
	took = map[string]time.Duration{}
	began := time.Now()
	address, err := s.create(ctx, name, serving)
	if err != nil {
		return nil, err
	}
	if _, err := until(ctx, "a new Service is reached", func() bool { return connects(address) }); err != nil {
		return nil, err
	}
	took[created] = time.Since(began)

	began = time.Now()
	if err := s.remove(ctx, name); err != nil {
		return nil, err
	}
	var tried time.Time
	_, err = until(ctx, "a deleted Service is gone", func() bool {
		tried = time.Now()
		return !connectsWithin(address, goneMax)
	})
	if err != nil {
		return nil, err
	}
	took[deleted] = tried.Sub(began) // the try may have waited long, if packets are dropped and not answered

	if address, err = s.create(ctx, name, late); err != nil {
		return nil, err
	}
	if err := record.Pause(ctx, time.Second+tryPeriod); err != nil { // kube-proxy has seen that it has no endpoint
		return nil, err
	}
	if connects(address) {
		return nil, fmt.Errorf("a Service without endpoints is reached at %s", address)
	}
	began = time.Now()
	if err := s.label(ctx, `"yes"`); err != nil {
		return nil, err
	}
	_, err = until(ctx, "a Service is reached by its first endpoint", func() bool { return connects(address) })
	if err != nil {
		return nil, err
	}
	took[endpoint] = time.Since(began)
	if err := s.label(ctx, "null"); err != nil {
		return nil, err
	}
	return took, s.remove(ctx, name)
}

// label sets the pod's label late.
func (s *subject) label(ctx context.Context, value string) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, late, value)
	_, err := s.api.CoreV1().Pods(namespace).Patch(ctx, server, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// rests measures kube-proxy at rest.
func (s *subject) rests(ctx context.Context, length time.Duration, m *record.Measurement) error {
	children, err := s.plane.Children(ctx)
	if err != nil {
		return err
	}
	pid := children["kube-proxy"]
	if pid == 0 {
		return errors.New("kube-proxy does not run")
	}
	before, err := record.CPUSeconds(pid)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := record.Pause(ctx, length); err != nil {
		return err
	}
	after, err := record.CPUSeconds(pid)
	if err != nil {
		return err
	}
	m.Put(proxyCPU, (after-before)/time.Since(began).Seconds(), 1)
	resident, err := record.StatusMiB(pid, "VmRSS")
	if err != nil {
		return err
	}
	m.Put(proxyMiB, resident, 1)
	return nil
}

const (
	// tryPeriod is the pause between two tries to connect: the resolution (chosen; a hundredth of what is expected).
	tryPeriod = 5 * time.Millisecond
	// connectMax bounds one try. Chosen: a connection on the machine takes less than a millisecond, and one that
	// nobody answers must not lengthen the resolution much.
	connectMax = 20 * time.Millisecond
	// goneMax bounds one try to reach a deleted Service. Chosen: a connection that is only slow must not count as none.
	goneMax = 500 * time.Millisecond
	// stepMax bounds what is waited for (chosen).
	stepMax = time.Minute
)

// connects reports whether a connection to an address succeeds at once.
func connects(address string) bool { return connectsWithin(address, connectMax) }

func connectsWithin(address string, within time.Duration) bool {
	conn, err := net.DialTimeout("tcp", address, within)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// until waits for a condition, and returns how long it took.
func until(ctx context.Context, what string, holds func() bool) (time.Duration, error) {
	began := time.Now()
	for !holds() {
		if time.Since(began) > stepMax {
			return 0, fmt.Errorf("%s: not within %v", what, stepMax)
		}
		if err := record.Pause(ctx, tryPeriod); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}
