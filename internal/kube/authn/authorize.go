package authn

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// decisionsMax bounds the cached decisions; an entry is about 100 bytes. Identities times verbs times subresources of
// one node are dozens.
const decisionsMax = 2048

// verbs are the API verbs of HTTP methods. Other methods (HEAD, OPTIONS, CONNECT, ...) have none, so they are refused.
var verbs = map[string]string{
	http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch",
	http.MethodDelete: "delete",
}

// VerbOf returns the verb on a node that a request needs, and false when its method has none. A request that runs code
// in a container, or communicates with it, needs `create` whatever the method: WebSocket clients open streams with GET.
// (Upstream uses the method's verb there too. With upstream, `get` on nodes/proxy, which is meant for logs and lists,
// therefore suffices to run commands in any pod.)
func VerbOf(method, path string) (string, bool) {
	verb, ok := verbs[method]
	for _, prefix := range []string{"/exec", "/attach", "/run", "/portForward"} {
		if ok && isBelow(path, prefix) {
			return verbs[http.MethodPost], true
		}
	}
	return verb, ok
}

// isBelow reports whether path is prefix or below it.
func isBelow(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '/')
}

// authorize returns nil if id may use any of the targets of r's path.
func (g *Guard) authorize(r *http.Request, id *Identity) error {
	verb, ok := verbs[r.Method]
	if g.o.NodeName != "" {
		verb, ok = VerbOf(r.Method, r.URL.Path)
	}
	if !ok {
		return &Refusal{http.StatusMethodNotAllowed, fmt.Sprintf("method %s has no API verb to authorize; use GET or POST",
			r.Method), nil}
	}
	if g.o.AlwaysAllow {
		return nil
	}
	targets := g.targets(r.URL.Path)
	// Cached answers are checked first, so that a cached yes counts when another answer has expired and the API server
	// does not answer.
	for _, t := range targets {
		if allowed, known := g.decisions.remembered(decisionKey(id, verb, t)); known && allowed {
			return nil
		}
	}
	for _, t := range targets {
		allowed, err := g.decisions.ask(r.Context(), decisionKey(id, verb, t), func(ctx context.Context) (bool, error) {
			return g.reviewAccess(ctx, id, verb, t)
		})
		if err != nil {
			return unavailable(fmt.Sprintf("subject access review (user=%s, verb=%s, %s)", id.Name, verb, describe(t)), err)
		}
		if allowed {
			return nil
		}
	}
	return &Refusal{http.StatusForbidden, fmt.Sprintf("Forbidden (user=%s, verb=%s, %s)", id.Name, verb,
		describe(targets...)), nil}
}

// A Resource is an object on which access to a path is authorized. The API server need not serve it: RBAC rules may
// name any resource.
type Resource struct{ Group, Resource, Name string }

// target is one thing that may be allowed: a resource, or else a subresource of the node, or else a path.
type target struct {
	resource    *Resource
	subresource string
	path        string
}

// targets returns what is asked about for path. One of them must be allowed.
func (g *Guard) targets(path string) (out []target) {
	if r, has := g.o.Resources[path]; has {
		out = append(out, target{resource: &r})
		if g.o.NodeName == "" {
			return out
		}
	}
	if g.o.NodeName == "" {
		return []target{{path: path}}
	}
	for _, sub := range Subresources(path) {
		out = append(out, target{subresource: sub})
	}
	return out
}

func describe(targets ...target) string {
	var subresources, texts []string
	for _, t := range targets {
		switch r := t.resource; {
		case r != nil:
			texts = append(texts, fmt.Sprintf("resource=%s.%s, name=%s", r.Resource, r.Group, r.Name))
		case t.subresource != "":
			subresources = append(subresources, t.subresource)
		default:
			texts = append(texts, "path="+t.path)
		}
	}
	if len(subresources) > 0 {
		texts = append(texts, fmt.Sprintf("resource=nodes, subresource(s)=%v", subresources))
	}
	return strings.Join(texts, " or ")
}

// Subresources returns the subresources of nodes/<name> of which one must be allowed for path, most specific first.
//
//	/stats/*                                  stats
//	/metrics/*                                metrics
//	/logs/*                                   log
//	/checkpoint/*                             checkpoint
//	/statusz, /flagz                          statusz, configz
//	/pods, /runningpods, /healthz, /configz   pods, pods, healthz, configz; else proxy (KEP-2862, locked on in 1.36)
//	everything else                           proxy
func Subresources(path string) []string {
	for _, m := range []struct {
		prefix string
		subs   []string
	}{
		{"/pods", []string{"pods", "proxy"}},
		{"/runningpods", []string{"pods", "proxy"}},
		{"/healthz", []string{"healthz", "proxy"}},
		{"/configz", []string{"configz", "proxy"}},
		{"/stats", []string{"stats"}},
		{"/metrics", []string{"metrics"}},
		{"/logs", []string{"log"}},
		{"/checkpoint", []string{"checkpoint"}},
		{"/statusz", []string{"statusz"}},
		{"/flagz", []string{"configz"}},
	} {
		if isBelow(path, m.prefix) {
			return m.subs
		}
	}
	return []string{"proxy"}
}

func (g *Guard) reviewAccess(ctx context.Context, id *Identity, verb string, t target) (bool, error) {
	extra := make(map[string]authorizationv1.ExtraValue, len(id.Extra))
	for k, v := range id.Extra {
		extra[k] = v
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: id.Name, UID: id.UID, Groups: id.Groups, Extra: extra,
	}}
	switch r := t.resource; {
	case r != nil:
		review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Verb:     verb,
			Group:    r.Group,
			Version:  "v1",
			Resource: r.Resource,
			Name:     r.Name,
		}
	case t.subresource != "":
		review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Verb: verb, Version: "v1", Resource: "nodes", Subresource: t.subresource, Name: g.o.NodeName,
		}
	default:
		review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: t.path, Verb: verb}
	}
	out := &authorizationv1.SubjectAccessReview{}
	if err := g.o.AccessAPI.Create(ctx, kube.SubjectAccessReviews, "", "", review, out); err != nil {
		return false, err
	}
	return out.Status.Allowed && !out.Status.Denied, nil
}

// decisionKey returns everything that a decision depends on, in a fixed order.
func decisionKey(id *Identity, verb string, t target) []string {
	key := []string{verb, describe(t), id.Name, id.UID}
	key = append(key, fmt.Sprint(len(id.Groups)))
	key = append(key, id.Groups...)
	names := make([]string, 0, len(id.Extra))
	for name := range id.Extra {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		key = append(key, name, fmt.Sprint(len(id.Extra[name])))
		key = append(key, id.Extra[name]...)
	}
	return key
}
