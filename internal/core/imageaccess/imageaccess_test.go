package imageaccess

import (
	"fmt"
	"strings"
	"testing"
)

func secret(uid, sum string) Secret {
	return Secret{UID: uid, Namespace: "ns-" + uid, Name: "s", Sum: sum}
}

func policy(t *testing.T, name string, allowed ...string) Policy {
	t.Helper()
	p, err := NewPolicy(name, allowed)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// may asks as the agent does.
func may(p Policy, q Question, u User) bool {
	needs, ok := p.NeedsUser(q)
	if needs {
		ok, _ = q.Record.May(q.Image, u)
	}
	return ok
}

// TestMay is the table of KEP-2535: who may use an image that is present.
func TestMay(t *testing.T) {
	private := &Record{Image: "id", ByName: map[string]Credentials{
		"r.io/app":  {Secrets: []Secret{secret("a", "x"), secret("old", "")}, Accounts: []Account{{UID: "acc"}}},
		"r.io/open": {Everybody: true},
		"r.io/torn": {},
	}}
	const app = "r.io/app:v1@sha256:00"
	nobody, alice := User{}, User{Secrets: []Secret{secret("a", "x")}}
	for name, c := range map[string]struct {
		policy string
		q      Question
		user   User
		want   bool
	}{
		"preloaded":                      {"NeverVerifyPreloadedImages", Question{Image: app}, nobody, true},
		"preloaded, but all are checked": {"AlwaysVerify", Question{Image: app}, alice, false},
		"begun, and the agent died":      {"NeverVerifyPreloadedImages", Question{Image: app, Intent: true}, alice, false},
		"records cannot be read":         {"NeverVerifyPreloadedImages", Question{Image: app, Unknown: true}, alice, false},
		"nothing is checked":             {"NeverVerify", Question{Image: app, Record: private}, nobody, true},
		"no credentials": {"NeverVerifyPreloadedImages", Question{Image: app, Record: private}, nobody,
			false},
		"the same secret": {"NeverVerifyPreloadedImages", Question{Image: app, Record: private}, alice, true},
		"another tag of the name": {"NeverVerifyPreloadedImages", Question{Image: "r.io/app", Record: private}, alice,
			true},
		"the same image under another name": {
			"NeverVerifyPreloadedImages", Question{Image: "r.io/other", Record: private}, alice, false,
		},
		"a name that says nothing": {
			"NeverVerifyPreloadedImages", Question{Image: "r.io/torn", Record: private}, alice, false,
		},
		"everybody": {"NeverVerifyPreloadedImages", Question{Image: "r.io/open:1", Record: private}, nobody, true},
		"the same credential, another secret": {
			"AlwaysVerify", Question{Image: app, Record: private}, User{Secrets: []Secret{secret("b", "x")}}, true,
		},
		"the same secret, another credential": {
			"AlwaysVerify", Question{Image: app, Record: private}, User{Secrets: []Secret{secret("a", "y")}}, true,
		},
		"another secret, another credential": {
			"AlwaysVerify", Question{Image: app, Record: private}, User{Secrets: []Secret{secret("b", "y")}}, false,
		},
		"sums that are not known do not match": {
			"AlwaysVerify", Question{Image: app, Record: private}, User{Secrets: []Secret{secret("b", "")}}, false,
		},
		"the account": {"AlwaysVerify", Question{Image: app, Record: private}, User{Account: &Account{UID: "acc"}}, true},
		"another account": {
			"AlwaysVerify", Question{Image: app, Record: private}, User{Account: &Account{UID: "acc", Name: "n"}}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := may(policy(t, c.policy), c.q, c.user); got != c.want {
				t.Errorf("may use it: %v, want %v", got, c.want)
			}
		})
	}
}

func TestAllowlist(t *testing.T) {
	p := policy(t, "NeverVerifyAllowlistedImages", "r.io/base", "r.io/team/*")
	for image, want := range map[string]bool{
		"r.io/base:1": true, "r.io/base@sha256:0": true, "r.io/base/more": false, "r.io/team/x:2": true,
		"r.io/teams/x": false,
	} {
		if got := may(p, Question{Image: image}, User{}); got != want {
			t.Errorf("%s: may be used: %v, want %v", image, got, want)
		}
	}
	for _, bad := range []string{"", " r.io/x", "*", "/*", "r.io/*/x", "r.io/x*", "r.io/x:1", "r.io/x@sha256:0"} {
		if _, err := NewPolicy("NeverVerifyAllowlistedImages", []string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if _, err := NewPolicy("Sometimes", nil); err == nil || !strings.Contains(err.Error(), "want NeverVerify") {
		t.Errorf("an unknown policy: %v", err)
	}
}

// TestLearn: what a pull adds to a record, and what it does not.
func TestLearn(t *testing.T) {
	var r *Record
	learn := func(image string, with *Credentials, want bool) {
		t.Helper()
		next, changed := r.Learn("id", image, with, 7)
		if changed != want {
			t.Errorf("%s with %v: changed %v, want %v", image, with, changed, want)
		}
		r = next
	}
	a, b := secret("a", "x"), secret("b", "y")
	learn("r.io/app:1", &Credentials{Secrets: []Secret{a}}, true)
	learn("r.io/app:2", &Credentials{Secrets: []Secret{a}}, false)
	learn("r.io/app", &Credentials{Secrets: []Secret{b}, Accounts: []Account{{UID: "c"}}}, true)
	learn("r.io/app", nil, false)
	learn("r.io/app", &Credentials{}, false)
	learn("r.io/app", &Credentials{Secrets: []Secret{secret("a", "new")}}, true)
	if got := fmt.Sprint(r.ByName); got != "map[r.io/app:{false [{b ns-b s y} {a ns-a s new}] [{c  }]}]" {
		t.Errorf("record %s", got)
	}
	for i := range 3 * secretsMax {
		learn("r.io/app", &Credentials{Secrets: []Secret{secret(fmt.Sprint(i), "x")}}, true)
	}
	if got := r.ByName["r.io/app"].Secrets; len(got) != secretsMax || got[secretsMax-1].UID != fmt.Sprint(3*secretsMax-1) {
		t.Errorf("%d secrets, the last %v", len(got), got[len(got)-1])
	}
	learn("r.io/app", &Credentials{Everybody: true}, true)
	learn("r.io/app", &Credentials{Secrets: []Secret{a}}, false)
	if got := fmt.Sprint(r.ByName); got != "map[r.io/app:{true [] []}]" || r.Updated != 7 {
		t.Errorf("record %s of %v", got, r.Updated)
	}
	r = nil
	learn("r.io/app", nil, true)
	if len(r.ByName) != 0 {
		t.Errorf("a record of a pull by nobody knows who: %v", r)
	}
}

// TestMayRemembers: what is found to be good is learnt, so that it is good after the first secret has gone.
func TestMayRemembers(t *testing.T) {
	r, _ := (*Record)(nil).Learn("id", "r.io/app", &Credentials{Secrets: []Secret{secret("a", "x")}}, 1)
	for _, own := range []Secret{secret("b", "x"), secret("a", "y")} {
		ok, remember := r.May("r.io/app", User{Secrets: []Secret{own}})
		if !ok || remember == nil || remember.Secrets[0] != own {
			t.Errorf("%v: %v, to remember %v", own, ok, remember)
		}
	}
	if ok, remember := r.May("r.io/app", User{Secrets: []Secret{secret("a", "x")}}); !ok || remember != nil {
		t.Errorf("what is known already: %v, to remember %v", ok, remember)
	}
}

func TestNameOf(t *testing.T) {
	for image, want := range map[string]string{
		"app": "app", "app:1": "app", "r.io:5000/app": "r.io:5000/app", "r.io:5000/app:1@sha256:00": "r.io:5000/app",
		"r.io/app@sha256:00": "r.io/app",
	} {
		if got := NameOf(image); got != want {
			t.Errorf("NameOf(%q) = %q, want %q", image, got, want)
		}
	}
}
