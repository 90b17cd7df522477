package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/core/serverchoice"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// A machine that joined uses one of its cluster's servers, and goes to another if that is gone: its kubeconfigs name
// the other one then, and its children are replaced. Pods do not notice. Package core/serverchoice decides when.

// knownServers is the file with the cluster's servers, as a machine that joined knows them.
func (l layout) knownServers() string { return l.state("servers.json") }

// servers is the content of that file.
type servers struct {
	Use   string   `json:"use"`
	Known []string `json:"known"`
}

// readServers returns which servers the machine knows; only the one that it joined, if no file says more.
func (l layout) readServers() servers {
	s := l.keptServers()
	s.Use = cmp.Or(s.Use, l.o.Server)
	if len(s.Known) == 0 {
		s.Known = []string{s.Use}
	}
	return s
}

// keptServers returns what the file says; nothing if there is none, or it is damaged: it is written anew.
func (l layout) keptServers() servers {
	s := servers{}
	text, err := os.ReadFile(l.knownServers())
	if err != nil || json.Unmarshal(text, &s) != nil {
		return servers{}
	}
	return s
}

func (l layout) writeServers(s servers) error {
	text, err := json.Marshal(s)
	if err == nil {
		_, err = durable.WriteIfChanged(l.knownServers(), append(text, '\n'))
	}
	return err
}

// isServer reports whether a URL is that of the machine's cluster.
func (l layout) isServer(url string) bool { return slices.Contains(l.keptServers().Known, url) }

// askTimeout bounds one question whether a server is ready (chosen).
const askTimeout = 3 * time.Second

// askServers asks servers at the same time whether they are ready.
func (c *cluster) askServers(ctx context.Context, urls []string) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	answered := map[string]bool{}
	for _, url := range urls {
		asking.Go(func() {
			client, err := c.clientOf(url)
			if err == nil {
				err = client.Ready(ctx)
			}
			mu.Lock()
			defer mu.Unlock()
			answered[url] = err == nil
		})
	}
	asking.Wait()
	return answered
}

// clientOf returns a client of one server, with the node's certificate.
func (c *cluster) clientOf(url string) (*kube.Client, error) {
	holder := string(c.o.holder(whoAgent))
	return kube.NewClientForConfig(&rest.Config{
		Host: url,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile:   pki.CertPath(c.pki(), caCluster),
			CertFile: pki.CertPath(c.pki(), holder),
			KeyFile:  pki.KeyPath(c.pki(), holder),
		},
		UserAgent: "plimsoll-join",
		QPS:       -1,
	})
}

// findServer goes to a server that answers, at the start of a machine that joined before.
func (c *cluster) findServer(ctx context.Context) error {
	s := c.readServers()
	if len(s.Known) < 2 {
		return nil
	}
	use := serverchoice.New(s.Use, s.Known).AtOnce(c.askServers(ctx, s.Known))
	if use == s.Use {
		return nil
	}
	c.sink.Show(progress.Event{Step: "cluster", Phase: progress.Note,
		Detail: fmt.Sprintf("%s does not answer: using %s", s.Use, use)})
	return c.useServer(use)
}

// useServer makes the kubeconfigs name another server.
func (c *cluster) useServer(url string) error {
	s := c.readServers()
	s.Use = url
	if err := c.writeServers(s); err != nil {
		return err
	}
	all := []who{whoAgent, whoKubeProxy}
	if c.keepsStorageIdentity() {
		all = append(all, whoStorage)
	}
	for _, w := range all {
		if err := c.writeKubeconfig(c.kubeconfig(w), w, false); err != nil {
			return err
		}
	}
	return nil
}

// serversPeriod is how often a node asks which servers its cluster has (chosen: a server is added by hand).
const serversPeriod = time.Minute

// keepServer watches the server in use until ctx ends, and sends the URL of another one when it should be used.
func (c *cluster) keepServer(ctx context.Context, move chan<- string) {
	s := c.readServers()
	choice := serverchoice.New(s.Use, s.Known)
	now := clock.New()
	wake := time.NewTimer(0)
	defer wake.Stop()
	listed := time.Time{}
	decision := choice.Step(now.Now(), serverchoice.Seen{})
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake.C:
		}
		seen := serverchoice.Seen{Answered: c.askServers(ctx, decision.Ask)}
		if decision.Silent == 0 && time.Since(listed) >= serversPeriod {
			listed = time.Now()
			seen.Known = c.listServers(ctx, decision.Use)
		}
		if ctx.Err() != nil {
			return
		}
		decision = choice.Step(now.Now(), seen)
		if len(seen.Known) > 0 {
			if err := c.writeServers(servers{Use: s.Use, Known: choice.Known()}); err != nil {
				c.logger.Warn("keep the list of servers", "err", err)
			}
		}
		if decision.Moved {
			c.logger.Warn("the server does not answer; using another one", "silent for", decision.Silent, "use", decision.Use)
			select {
			case move <- decision.Use: // the receiver begins anew
			case <-ctx.Done():
			}
			return
		}
		wake.Reset(decision.Wake.Sub(now.Now()))
	}
}

// listServers asks which servers the cluster has; none if the server does not say.
func (c *cluster) listServers(ctx context.Context, url string) []string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client, err := c.clientOf(url)
	var known []string
	if err == nil {
		known, err = serversOf(ctx, client)
	}
	if err != nil {
		c.logger.Info("which servers the cluster has is not known", "err", err)
	}
	return known
}

// moveTo goes to another server: the children are replaced.
func (c *cluster) moveTo(ctx context.Context, url string) {
	err := c.useServer(url)
	if err != nil {
		c.logger.Warn("use another server", "server", url, "err", err)
		return
	}
	for _, spec := range c.specs() {
		if _, err := c.supervisor.Apply(ctx, spec); err != nil {
			c.logger.Warn("apply child", "child", spec.Name, "error", err)
		}
	}
}
