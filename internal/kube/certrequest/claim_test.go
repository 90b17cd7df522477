package certrequest

import (
	"crypto/ecdsa"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// machineKey is a machine that joins.
type machineKey struct {
	key     *ecdsa.PrivateKey
	address string
	renews  string
}

func newMachineKey(t *testing.T, address string) *machineKey {
	return &machineKey{key: newKey(t), address: address}
}

// claims asks for the first certificate of node a, for a machine with this address, after some time.
func claims(t *testing.T, api API, key *machineKey, after time.Duration) error {
	t.Helper()
	kind := Client
	kind.Claim = &Claim{Node: "a", Address: key.address, Now: time.Now().Add(after)}
	_, err := kind.Request(t.Context(), api, key.key, template(), key.renews)
	return err
}

func issuedTo(n int) *requests {
	answers := make([]certificatesv1.RequestConditionType, n)
	for i := range answers {
		answers[i] = issued
	}
	return newRequests(answers...)
}

// TestClaim: while a machine joins, no other machine gets a certificate of its node's name. It may try again itself,
// also with another key.
func TestClaim(t *testing.T) {
	api := issuedTo(10)
	one, two := newMachineKey(t, "10.0.0.1"), newMachineKey(t, "10.0.0.2")
	wantMade := func(what string, want ...string) {
		t.Helper()
		if got := strings.Join(api.made(), " "); got != strings.Join(want, " ") {
			t.Fatalf("%s: requests %s, want %q", what, got, want)
		}
	}
	if err := claims(t, api, one, 0); err != nil {
		t.Fatal(err)
	}
	wantMade("the first", "join:a")
	var claimed *ClaimedError
	if err := claims(t, api, two, time.Minute); !errors.As(err, &claimed) || claimed.Address != "10.0.0.1" ||
		!strings.Contains(err.Error(), "--node-name") {
		t.Fatalf("another machine: %v", err)
	}
	if err := claims(t, api, one, 0); err != nil {
		t.Fatal(err)
	}
	wantMade("the same key", "join:a")
	one.renews = "4711"
	if err := claims(t, api, one, 0); err != nil {
		t.Fatal(err)
	}
	wantMade("to replace a certificate of that key", "join:a", "join:a:uid-0")
	if err := claims(t, api, newMachineKey(t, "10.0.0.1"), 0); err != nil {
		t.Fatal(err)
	}
	wantMade("another key of the machine", "join:a", "join:a:uid-0", "join:a:uid-1")
	if err := claims(t, api, two, ClaimLife+time.Minute); err != nil {
		t.Fatal(err)
	}
	wantMade("another machine, later", "join:a", "join:a:uid-0", "join:a:uid-1", "join:a:uid-2")
}

// TestClaimsAtOnce: of many machines that join at once with one name, one gets it, also when an older request is out of
// date.
func TestClaimsAtOnce(t *testing.T) {
	for _, after := range []time.Duration{0, ClaimLife + time.Minute} {
		api := issuedTo(30)
		if after > 0 {
			if err := claims(t, api, newMachineKey(t, "10.0.1.1"), 0); err != nil {
				t.Fatal(err)
			}
			old := api.byName["join:a"]
			old.CreationTimestamp.Time = old.CreationTimestamp.Add(-after)
		}
		var mu sync.Mutex
		var got int
		var all sync.WaitGroup
		for i := range 20 {
			key := newMachineKey(t, "10.0.0."+string(rune('a'+i)))
			all.Go(func() {
				err := claims(t, api, key, 0)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					got++
				} else if !errors.As(err, new(*ClaimedError)) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got != 1 {
			t.Errorf("after %v: %d machines have the name", after, got)
		}
	}
}

// TestAsk: a machine that has a certificate already claims its name and does not wait for another one.
func TestAsk(t *testing.T) {
	api := newRequests(undecided, undecided)
	ask := func(key *machineKey) error {
		kind := Client
		kind.Claim = &Claim{Node: "a", Address: key.address, Now: time.Now()}
		_, err := kind.Ask(t.Context(), api, key.key, template(), "4711")
		return err
	}
	if err := ask(newMachineKey(t, "10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	err := ask(newMachineKey(t, "10.0.0.2"))
	if !errors.As(err, new(*ClaimedError)) || !strings.Contains(err.Error(), "plimsoll node remove a") {
		t.Errorf("another machine: %v", err)
	}
	if got := api.made(); len(got) != 1 || got[0] != "join:a" {
		t.Errorf("requests %q", got)
	}
}

// TestClaimedNode: the claims of a name are not those of names that begin with it.
func TestClaimedNode(t *testing.T) {
	for name, want := range map[string]string{"join:a": "a", "join:a:1": "a", "join:ab": "ab", "join:a.b": "a.b",
		"node-csr-a": ""} {
		r := &certificatesv1.CertificateSigningRequest{}
		r.Name, r.Annotations = name, map[string]string{AnnotationAddress: "10.0.0.1"}
		if got := ClaimedNode(r); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		r.Annotations = nil
		if got := ClaimedNode(r); got != "" {
			t.Errorf("%s, made by hand: a claim of %q", name, got)
		}
	}
}
