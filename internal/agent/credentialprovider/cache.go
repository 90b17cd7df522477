package credentialprovider

import (
	"context"
	"sync"
	"time"

	pluginv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

// cacheMax is how many answers of one plugin are kept. Chosen: more than the images of a node with 110 pods, whatever
// the answers' scope. An answer takes about a kilobyte.
const cacheMax = 1024

// answer is a plugin's answer.
type answer struct {
	auths map[string]pluginv1.AuthConfig
	scope pluginv1.PluginCacheKeyType
	until time.Time // when it expires
}

// call is a call of a plugin that several callers may wait for.
type call struct {
	done  chan struct{}                  // closed when it is over
	auths map[string]pluginv1.AuthConfig // set before done is closed
	err   error                          // set before done is closed
}

// cache keeps the answers of one plugin. If several callers need the same answer, it calls the plugin once.
type cache struct {
	mu      sync.Mutex // guards everything that follows
	answers map[string]answer
	running map[string]*call
}

func newCache() *cache { return &cache{answers: map[string]answer{}, running: map[string]*call{}} }

// get returns the answer for an image and a caller: a kept one, or else the result of ask. Callers that need the same
// answer at the same time share one call of ask, which continues if one of them gives up.
func (c *cache) get(
	ctx context.Context, now func() time.Time, caller, image string, ask func(context.Context) (*answer, error),
) (map[string]pluginv1.AuthConfig, error) {
	question := caller + " " + scopeOf(pluginv1.ImagePluginCacheKeyType, image)
	c.mu.Lock()
	if auths, ok := c.find(now(), caller, image); ok {
		c.mu.Unlock()
		return auths, nil
	}
	asked := c.running[question]
	if asked == nil {
		asked = &call{done: make(chan struct{})}
		c.running[question] = asked
		go func() {
			got, err := ask(context.WithoutCancel(ctx))
			c.end(question, asked, got, err, now(), caller, image)
		}()
	}
	c.mu.Unlock()
	select {
	case <-asked.done:
		return asked.auths, asked.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// end keeps the answer of a call, and passes it to the callers that wait.
func (c *cache) end(question string, asked *call, got *answer, err error, now time.Time, caller, image string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, question)
	asked.err = err
	if err == nil {
		asked.auths = got.auths
		if got.until.After(now) {
			c.keep(caller+" "+scopeOf(got.scope, image), *got)
		}
	}
	close(asked.done)
}

// find looks for a kept answer. As in the kubelet, it tries the narrowest scope first. The caller holds mu.
func (c *cache) find(now time.Time, caller, image string) (map[string]pluginv1.AuthConfig, bool) {
	for _, scope := range []pluginv1.PluginCacheKeyType{
		pluginv1.ImagePluginCacheKeyType, pluginv1.RegistryPluginCacheKeyType, pluginv1.GlobalPluginCacheKeyType,
	} {
		key := caller + " " + scopeOf(scope, image)
		a, ok := c.answers[key]
		if ok && a.until.After(now) {
			return a.auths, true
		}
		delete(c.answers, key)
	}
	return nil, false
}

// keep adds an answer. If there are too many, it drops the one that expires first. The caller holds mu.
func (c *cache) keep(key string, a answer) {
	c.answers[key] = a
	if len(c.answers) <= cacheMax {
		return
	}
	first := ""
	for k, other := range c.answers {
		if first == "" || other.until.Before(c.answers[first].until) || other.until.Equal(c.answers[first].until) &&
			k < first {
			first = k
		}
	}
	delete(c.answers, first)
}
