// Package clientcert decides whether a user gets another client certificate of its own.
//
// # Model
//
// A user that has a certificate requests one that is the same but for its dates, before the first one expires. So who
// has a certificate keeps its rights for as long as it runs, and gets no others. A Request is what is requested, and by
// whom. Which users may do so is up to the caller.
//
// # Invariants
//
//   - A request is approved for the requester alone: the certificate names the same user and no group.
//   - What is not approved is denied with the reason, so that no request waits for ever.
//
// # What it does not do
//
// Requests of nodes are not judged here. kube-controller-manager approves those for client certificates of nodes;
// package servingcert judges those for their servers.
package clientcert

import (
	"fmt"
	"slices"
)

// A Request is a request for a client certificate.
type Request struct {
	User          string // who asks, as the API server authenticated it
	CommonName    string
	Organizations []string
	Names         int // DNS names, addresses, e-mail addresses and URIs
	Usages        []string
}

// Judge returns nil if the request is approved, else why it is denied.
func Judge(r Request) error {
	switch {
	case r.User == "":
		return fmt.Errorf("requested by nobody")
	case r.CommonName != r.User:
		return fmt.Errorf("the subject is %q: a user gets certificates in its own name only, which is %q",
			r.CommonName, r.User)
	case len(r.Organizations) > 0:
		return fmt.Errorf("the organizations are %q: want none, because the user would be a member of these groups",
			r.Organizations)
	case r.Names > 0:
		return fmt.Errorf("it names hosts or addresses: want the name of the user only")
	}
	for _, usage := range r.Usages {
		if usage != "digital signature" && usage != "key encipherment" && usage != "client auth" {
			return fmt.Errorf("usage %q: want digital signature, key encipherment and client auth only", usage)
		}
	}
	if !slices.Contains(r.Usages, "client auth") {
		return fmt.Errorf("the usages are %q: want client auth among them", r.Usages)
	}
	return nil
}
