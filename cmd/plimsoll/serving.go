package main

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/spf13/pflag"

	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/authn"
	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
)

// portLifecycle is the default HTTPS port of `plimsoll lifecycle`. Chosen: near upstream's 10257 (controller manager)
// and not used by upstream, so that both may run on one machine.
const portLifecycle = 10267

// portScheduler is the default HTTPS port of `plimsoll scheduler`: that of upstream's scheduler, which it replaces. To
// run both, set --secure-port.
const portScheduler = 10259

// securePort is upstream's secure serving flags.
type securePort struct{ serving.Options }

func servingFlags(f *pflag.FlagSet, port int) *securePort {
	s := &securePort{serving.Options{BindAddress: "0.0.0.0", Port: port}}
	f.IntVar(&s.Port, "secure-port", s.Port, "HTTPS port of /healthz and, for authorized clients, /metrics; 0: none")
	f.StringVar(&s.BindAddress, "bind-address", s.BindAddress, "address to listen on")
	f.StringVar(&s.CertFile, "tls-cert-file", "",
		"`file` with the serving certificate (default: a generated one in memory)")
	f.StringVar(&s.KeyFile, "tls-private-key-file", "", "`file` with the key of the serving certificate")
	f.StringVar(&s.ClientCA, "client-ca-file", "",
		"`file` with the CA of client certificates; without one, only tokens are accepted")
	return s
}

// serveWhile runs do while it serves the port, and returns when either ends.
func (s *securePort) serveWhile(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		err := serving.Run(ctx, s.Options)
		if err != nil {
			cancel() // a component whose health cannot be read does not start
		}
		served <- err
	}()
	err := do(ctx)
	cancel()
	if failed := <-served; failed != nil {
		return failed
	}
	return err
}

// journalFlag adds the flag for the journal of a component that keeps it in memory.
func journalFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "journal-dir", "",
		"keep the journal of decisions in this `directory` too, at most 8 MiB (default: in memory only, the same bound)")
}

// openJournal opens the journal of a component, measures it in the Registry, and serves it to those who may get
// journals.plimsoll.dev of its name.
func (s *securePort) openJournal(component, dir string) (*journal.Log, error) {
	log, err := journal.NewLog(component, journal.BytesMax, dir)
	if err != nil {
		return nil, err
	}
	s.Registry.MustRegister(log.Measurements(component))
	if s.Handlers == nil {
		s.Handlers = map[string]http.Handler{}
	}
	s.Handlers["GET "+journal.Path] = journal.Handler(log.Find)
	s.Resources = map[string]authn.Resource{
		journal.Path: {Group: journal.Group, Resource: journal.Resource, Name: component},
	}
	return log, nil
}

// logFailure logs an error that nobody can act on any more.
func logFailure(doing string, err error) {
	if err != nil {
		slog.Warn(doing+" failed", "err", err)
	}
}
