package certrequest

import (
	"context"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// A Claim makes a request the only one for a node's name. Its name follows from the node's, and of two requests with
// one name the API server creates one. The claim lasts until the node is there, by which others then see that the name
// is taken, but not longer than ClaimLife. A later request has another name, which follows from that of the request
// that is out of date, so that again it is one only. Who deletes the node may delete the claim with it.
//
// Machines are told apart by their addresses: a machine whose join has failed makes a new key, and tries again at once.
// Bearers of tokens may create requests and read them, so no further right is needed.
type Claim struct {
	Node    string
	Address string // of the machine
	Now     time.Time
}

// ClaimLife is how long a machine that has requested its first certificate keeps others from doing so. Chosen: a join
// takes some 5 s, and on a slow machine, which unpacks images first, minutes.
const ClaimLife = 10 * time.Minute

// AnnotationAddress is the annotation of a request with a Claim's address.
const AnnotationAddress = "plimsoll.dev/machine-address"

// annotationName is the annotation of a request with a Claim that has the name which it would have without.
const annotationName = "plimsoll.dev/request"

// claimPrefix begins the names of requests with a claim. Parts are separated by a character that no node's name has.
const claimPrefix = "join:"

// claimsMax bounds how many requests that are out of date are looked at (chosen: kube-controller-manager removes those
// that were approved after an hour, and others after a day).
const claimsMax = 1000

// A ClaimedError says that another machine has just requested the certificate.
type ClaimedError struct {
	Node    string
	Address string // of the other machine
	Age     time.Duration
}

func (e *ClaimedError) Error() string {
	return fmt.Sprintf("the machine with the address %s has requested to be node %s %v ago: choose another name with "+
		"--node-name; if that machine has not become a node, or is none any more, run `plimsoll node remove %s` on a server "+
		"first, or this again in %v",
		e.Address, e.Node, e.Age.Round(time.Second), e.Node, (ClaimLife - e.Age).Round(time.Second))
}

// ClaimedNode returns the node whose name a request claims; empty: it claims none.
func ClaimedNode(r *certificatesv1.CertificateSigningRequest) string {
	rest, is := strings.CutPrefix(r.Name, claimPrefix)
	if !is || r.Annotations[AnnotationAddress] == "" {
		return ""
	}
	node, _, _ := strings.Cut(rest, ":")
	return node
}

// make makes a request that is the only one, or finds an earlier one of the same key.
func (c *Claim) make(
	ctx context.Context, api API, wanted *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	wanted.Annotations = map[string]string{AnnotationAddress: c.Address, annotationName: wanted.Name}
	wanted.Name = claimPrefix + c.Node
	for range claimsMax {
		made := &certificatesv1.CertificateSigningRequest{}
		err := api.Create(ctx, kube.CertificateRequests, "", "", wanted, made)
		if !apierrors.IsAlreadyExists(err) {
			return made, err
		}
		found := &certificatesv1.CertificateSigningRequest{}
		err = api.Get(ctx, kube.CertificateRequests, "", wanted.Name, found)
		if apierrors.IsNotFound(err) {
			continue // it has just been removed
		}
		if err != nil {
			return nil, err
		}
		_, refused := answer(found)
		same := found.Annotations[annotationName] == wanted.Annotations[annotationName] && sameRequest(found, wanted)
		if refused == nil && same {
			return found, nil
		}
		other, age := found.Annotations[AnnotationAddress], c.Now.Sub(found.CreationTimestamp.Time)
		if other != c.Address && age < ClaimLife {
			return nil, &ClaimedError{Node: c.Node, Address: other, Age: max(age, 0)}
		}
		wanted.Name = claimPrefix + c.Node + ":" + string(found.UID)
	}
	return nil, fmt.Errorf("%d requests for node %s are out of date: delete those whose names begin with %s%s",
		claimsMax, c.Node, claimPrefix, c.Node)
}
