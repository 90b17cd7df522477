package journal

import (
	"encoding/json"
	"net/http"
	"net/url"
)

// Where a journal is served, and what must be allowed for it: `get` on the resource journals of this group, by the name
// of the component (scheduler, lifecycle) or of the node. The API server does not serve it; RBAC rules may name it.
const (
	Path     = "/journal"
	Group    = "plimsoll.dev"
	Resource = "journals"
)

// Parameters returns the parameters of a request for Path.
func (q Query) Parameters() url.Values {
	v := url.Values{}
	for name, value := range map[string]string{"namespace": q.Namespace, "name": q.Name, "uid": q.UID, "node": q.Node} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v
}

// Handler answers Queries.
func Handler(find func(Query) (Answer, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := Query{
			Namespace: r.FormValue("namespace"),
			Name:      r.FormValue("name"),
			UID:       r.FormValue("uid"),
			Node:      r.FormValue("node"),
		}
		a, err := find(q)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a) // an error means that the client is gone
	})
}
