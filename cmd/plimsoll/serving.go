package main

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
)

// portLifecycle is where `plimsoll lifecycle` answers. Chosen: beside upstream's 10257 (controller manager) and free in
// its list, so that both may run on one machine.
const portLifecycle = 10267

// portScheduler is where `plimsoll scheduler` answers: upstream's, as it stands in its place. Beside it, --secure-port
// is another.
const portScheduler = 10259

// securePort is upstream's secure serving flags.
type securePort struct{ serving.Options }

func servingFlags(f *pflag.FlagSet, port int) *securePort {
	s := &securePort{serving.Options{BindAddress: "0.0.0.0", Port: port}}
	f.IntVar(&s.Port, "secure-port", s.Port, "HTTPS port of /healthz and, for whoever may read it, /metrics; 0: none")
	f.StringVar(&s.BindAddress, "bind-address", s.BindAddress, "address to listen on")
	f.StringVar(&s.CertFile, "tls-cert-file", "", "`file` with the serving certificate; without it one is made and kept in memory")
	f.StringVar(&s.KeyFile, "tls-private-key-file", "", "`file` with its key")
	f.StringVar(&s.ClientCA, "client-ca-file", "", "`file` with the CA of client certificates; without it only tokens are accepted")
	return s
}

// beside runs do with the port open, and ends with the first of both.
func (s *securePort) beside(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		err := serving.Run(ctx, s.Options)
		if err != nil {
			cancel() // a component that cannot be watched does not start
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
