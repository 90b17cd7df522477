package schedulerconfig

import (
	"fmt"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
)

// An Extender is an HTTP extender as the file describes it.
type Extender struct {
	URL                               string // without a slash at its end
	Filter, Prioritize, Preempt, Bind string // URL suffixes; empty: not used
	Weight                            int64  // by which its scores are multiplied
	Timeout                           time.Duration
	Config                            rest.Config // only its TLS part is set
	NamesOnly                         bool        // nodeCacheCapable: requests have names of nodes instead of Nodes
	Ignorable                         bool        // pods are placed without it while it does not answer
	// Manages are resources: the extender is asked only about pods that request one of them. Nil: it is asked about all.
	Manages map[string]bool
}

// extenderTimeout is upstream's default of httpTimeout.
const extenderTimeout = 5 * time.Second

// compileExtenders checks the extenders. A resource with ignoredByScheduler is ignored in every profile.
func compileExtenders(list []schedulerv1.Extender, c *Config, p *problems) {
	binder, manager := -1, map[string]int{}
	for i := range list {
		e, at := &list[i], fmt.Sprintf("extenders[%d]", i)
		out := Extender{
			URL: trimSlashes(e.URLPrefix), Filter: e.FilterVerb, Prioritize: e.PrioritizeVerb, Preempt: e.PreemptVerb,
			Bind:   e.BindVerb,
			Weight: e.Weight, Timeout: e.HTTPTimeout.Duration, NamesOnly: e.NodeCacheCapable, Ignorable: e.Ignorable,
			Manages: map[string]bool{},
		}
		if u, err := url.Parse(e.URLPrefix); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			p.add(at+".urlPrefix", "%.200q: want the URL of a server, http or https", e.URLPrefix)
		}
		if e.PrioritizeVerb != "" && e.Weight <= 0 || e.Weight > weightMax {
			p.add(at+".weight", "%d: want 1 to %d where there is a prioritizeVerb", e.Weight, weightMax)
		}
		if e.BindVerb != "" && binder >= 0 {
			p.add(at+".bindVerb", "%.200q: extenders[%d] already has a bindVerb: only one may", e.BindVerb, binder)
		} else if e.BindVerb != "" {
			binder = i
		}
		if out.Timeout == 0 {
			out.Timeout = extenderTimeout
		}
		if out.Timeout < 0 {
			p.add(at+".httpTimeout", "%v: must not be negative", out.Timeout)
		}
		out.Config.TLSClientConfig = extenderTLS(e)
		if _, err := rest.TLSConfigFor(&out.Config); err != nil { // reads the files, as the connection does later
			p.add(at+".tlsConfig", "%v", err)
		}
		for j, r := range e.ManagedResources {
			if other, twice := manager[r.Name]; twice || r.Name == "" {
				p.add(fmt.Sprintf("%s.managedResources[%d].name", at, j),
					"%.200q: want the name of a resource that no other extender manages (extenders[%d] does)", r.Name, other)
			}
			manager[r.Name], out.Manages[r.Name] = i, true
			if r.IgnoredByScheduler {
				for k := range c.Profiles {
					c.Profiles[k].IgnoredResources = append(c.Profiles[k].IgnoredResources, r.Name)
				}
			}
		}
		c.Extenders = append(c.Extenders, out)
	}
}

func trimSlashes(s string) string {
	for len(s) > 0 && s[len(s)-1] == '/' {
		s = s[:len(s)-1]
	}
	return s
}

// extenderTLS is the TLS configuration of a connection. enableHTTPS without a CA accepts any certificate, as in
// upstream.
func extenderTLS(e *schedulerv1.Extender) (out rest.TLSClientConfig) {
	if t := e.TLSConfig; t != nil {
		out = rest.TLSClientConfig{Insecure: t.Insecure, ServerName: t.ServerName, CertFile: t.CertFile, KeyFile: t.KeyFile,
			CAFile:   t.CAFile,
			CertData: t.CertData, KeyData: t.KeyData, CAData: t.CAData}
	}
	if e.EnableHTTPS && out.CAFile == "" && len(out.CAData) == 0 {
		out.Insecure = true
	}
	return out
}
