package clientcert

import (
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	good := func() Request {
		return Request{
			User:       "plimsoll:storage",
			CommonName: "plimsoll:storage",
			Usages:     []string{"digital signature", "client auth"},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*Request)
		want   string // part of the reason; empty: approved
	}{
		{"its own", func(*Request) {}, ""},
		{"with the usage of RSA keys", func(r *Request) { r.Usages = append(r.Usages, "key encipherment") }, ""},
		{"by nobody", func(r *Request) { r.User, r.CommonName = "", "" }, "by nobody"},
		{"of another user", func(r *Request) { r.CommonName = "plimsoll-admin" }, "in its own name only"},
		{"of a group", func(r *Request) { r.Organizations = []string{"system:masters"} }, "want none"},
		{"with a host", func(r *Request) { r.Names = 1 }, "name of the user only"},
		{"for a server", func(r *Request) { r.Usages = append(r.Usages, "server auth") }, `usage "server auth"`},
		{"for an authority", func(r *Request) { r.Usages = append(r.Usages, "cert sign") }, `usage "cert sign"`},
		{"without a client's usage", func(r *Request) { r.Usages = r.Usages[:1] }, "want client auth among them"},
	} {
		r := good()
		c.change(&r)
		err := Judge(r)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
