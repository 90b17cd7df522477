package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentv1alpha1 "k8s.io/component-base/config/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/election"
	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
)

// leaderElection has upstream's flags of leader election, and the state of this process's candidate.
type leaderElection struct {
	on   bool
	lock string
	election.Config
	// Client returns the client that renews the Lease; nil: run makes one from the kubeconfig that is passed to it.
	Client func(agent string) (*kube.Client, error)

	leading   atomic.Bool // lead is running
	candidate atomic.Pointer[election.Candidate]
}

// health returns a check that fails if this process leads and its Lease has expired. A process that waits is healthy.
func (l *leaderElection) health() serving.Check {
	return serving.Check{Name: "leaderElection", Do: func() error {
		if c := l.candidate.Load(); c != nil && l.leading.Load() && !c.Holds() {
			return fmt.Errorf("this process leads, and has not renewed its Lease for %v", l.LeaseDuration)
		}
		return nil
	}}
}

// acts reports whether this process may act: it leads, or there is no election.
func (l *leaderElection) acts() bool { return !l.on || l.leading.Load() }

// status returns a metric that says whether this process leads, with upstream's name.
func (l *leaderElection) status() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "leader_election_master_status", Help: "1: this process leads; 0: it does not",
		ConstLabels: prometheus.Labels{"name": l.Name},
	}, func() float64 {
		if l.acts() {
			return 1
		}
		return 0
	})
}

// effective returns the settings in effect, in the form of the configuration file.
func (l *leaderElection) effective() componentv1alpha1.LeaderElectionConfiguration {
	return componentv1alpha1.LeaderElectionConfiguration{
		LeaderElect: &l.on, LeaseDuration: metav1.Duration{Duration: l.LeaseDuration},
		RenewDeadline: metav1.Duration{Duration: l.RenewDeadline},
		RetryPeriod:   metav1.Duration{Duration: l.RetryPeriod}, ResourceLock: l.lock, ResourceName: l.Name,
		ResourceNamespace: l.Namespace,
	}
}

func leaderElectionFlags(f *pflag.FlagSet, lease string) *leaderElection {
	l := &leaderElection{Config: election.Default(lease)}
	f.BoolVar(&l.on, "leader-elect", true, "act only while holding a Lease, so that several of these processes may run")
	f.DurationVar(&l.LeaseDuration, "leader-elect-lease-duration", l.LeaseDuration,
		"how long other candidates wait for a leader that does not renew the Lease")
	f.DurationVar(&l.RenewDeadline, "leader-elect-renew-deadline", l.RenewDeadline,
		"how long the leader continues without a renewal")
	f.DurationVar(&l.RetryPeriod, "leader-elect-retry-period", l.RetryPeriod,
		"pause between attempts to take or renew the Lease")
	f.StringVar(&l.Name, "leader-elect-resource-name", l.Name, "name of the Lease")
	f.StringVar(&l.Namespace, "leader-elect-resource-namespace", l.Namespace, "namespace of the Lease")
	f.StringVar(&l.lock, "leader-elect-resource-lock", "leases", "kind of the lock; only leases is supported")
	return l
}

// fill sets the values of the configuration file, except those that flags have set.
func (l *leaderElection) fill(f *pflag.FlagSet, file *componentv1alpha1.LeaderElectionConfiguration) {
	if file.LeaderElect != nil && !f.Changed("leader-elect") {
		l.on = *file.LeaderElect
	}
	for _, d := range []struct {
		flag string
		to   *time.Duration
		from time.Duration
	}{
		{"leader-elect-lease-duration", &l.LeaseDuration, file.LeaseDuration.Duration},
		{"leader-elect-renew-deadline", &l.RenewDeadline, file.RenewDeadline.Duration},
		{"leader-elect-retry-period", &l.RetryPeriod, file.RetryPeriod.Duration},
	} {
		if d.from != 0 && !f.Changed(d.flag) {
			*d.to = d.from
		}
	}
	if file.ResourceName != "" && !f.Changed("leader-elect-resource-name") {
		l.Name = file.ResourceName
	}
	if file.ResourceNamespace != "" && !f.Changed("leader-elect-resource-namespace") {
		l.Namespace = file.ResourceNamespace
	}
}

// run runs lead, at once or while this process is the leader. lead gets a function that reports whether the process
// still leads.
func (l *leaderElection) run(ctx context.Context, kubeconfig, agent string,
	lead func(ctx context.Context, leads func() bool) error) error {
	if l.lock != "leases" {
		return usageError{errUnknownLock(l.lock)}
	}
	if !l.on {
		return lead(ctx, func() bool { return true })
	}
	// A separate client, so that renewals do not wait behind other requests of this process.
	connect := l.Client
	if connect == nil {
		connect = func(agent string) (*kube.Client, error) {
			return kube.NewClient(kube.Options{Kubeconfig: kubeconfig, UserAgent: agent, QPS: -1})
		}
	}
	client, err := connect(agent + "-election")
	if err != nil {
		return usageError{err}
	}
	candidate, err := election.New(l.Config, election.Over(client), election.SinceBoot)
	if err != nil {
		return usageError{err}
	}
	l.candidate.Store(candidate)
	return candidate.Run(ctx, func(ctx context.Context) error {
		l.leading.Store(true)
		defer l.leading.Store(false)
		return lead(ctx, candidate.Holds)
	})
}

type errUnknownLock string

func (e errUnknownLock) Error() string {
	return "--leader-elect-resource-lock: \"" + string(e) + "\": Kubernetes 1.36 supports only leases"
}
