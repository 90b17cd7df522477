// Package console is `plimsoll console`: a cluster in a browser. One page, which this program serves on the loopback
// with the identity of a kubeconfig, shows the nodes as load lines, the NUMA nodes and CPUs of a node, its memory
// against its thresholds, the pods that wait by what they lack, and a pod's story, and asks the core what would be.
//
// # Model
//
//	watches --> explain.Live --> hub --> streams (server-sent events) --> page
//	                               ^
//	agents' ports --> watched -----+     of the nodes that somebody looks at
//
// The hub turns changes into views (package view). Each page has one stream. It gets all rows once, and after that what
// has changed. A page says at which node or pod it looks (POST /look); its stream then has that, too. Questions (POST
// /try/...) are answered by the core at once, from what the watches have.
//
// # Invariants
//
//   - Nothing is written: the client refuses every request but GET.
//   - Only the loopback is served, and only to whoever has the token. Pages of other sites are refused, also under a
//     name of their own for the address (guard.go).
//   - No text of the cluster becomes HTML: all of it is sent as JSON, and the page sets it as text.
//   - Without a page, and while nothing changes, nothing is computed and no agent is asked.
//
// # What it does not do
//
// It keeps no history: the memory of a node is known from when somebody looks at it, and evictions as far as the
// journal of its agent goes. It is for one person: everybody with the token has the kubeconfig's rights to read.
package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/explain"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// What nodes' agents are asked for, beside their journals.
const (
	summaryPath = "/stats/summary"
	configPath  = "/configz"
)

// AgentPaths are all paths at which agents are asked.
var AgentPaths = []string{summaryPath, configPath, journal.Path}

// Options say what is shown, and where.
type Options struct {
	Asker *explain.Asker // its Client should be kube.Client.ReadOnly(AgentPaths...)
	// Listen is the address and port; port 0 is any that is free. The address must be of the loopback.
	Listen string
	// Opened gets the address of the page, with the token, when it is served.
	Opened func(address string)
}

// Run serves the console until ctx ends.
func Run(ctx context.Context, o Options) error {
	if err := CheckListen(o.Listen); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := newHub(ctx, o.Asker, time.Now)
	watching := make(chan error, 1)
	go func() { watching <- h.run(ctx) }()
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("serve the console: %w", err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	g := newGuard(port)
	server := &http.Server{
		Handler:           g.wrap(h.routes()),
		ReadHeaderTimeout: headerTime,
		MaxHeaderBytes:    headerBytesMax,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	serving := make(chan error, 1)
	go func() { serving <- server.Serve(listener) }()
	if o.Opened != nil {
		o.Opened("http://" + listener.Addr().String() + "/?token=" + g.token)
	}
	select {
	case err = <-watching:
	case err = <-serving:
	}
	cancel()
	_ = server.Close() // streams do not end by themselves
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// Bounds of requests. Chosen: browsers on the same machine send small headers at once; a manifest is some kilobytes.
const (
	headerTime     = 10 * time.Second
	headerBytesMax = 16 << 10
	bodyBytesMax   = 1 << 20
)

// CheckListen refuses addresses that other machines reach.
func CheckListen(listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("%q: want ADDRESS:PORT: %w", listen, err)
	}
	if address, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !address.IsLoopback()) {
		return fmt.Errorf("%q: the console listens on the loopback only, like 127.0.0.1:0: whoever reached it would "+
			"have the kubeconfig's rights; use a tunnel (ssh -L) to see it from elsewhere", listen)
	}
	return nil
}
