// Package imageaccess decides whether a pod may use an image that is on its node already, or has to show the registry
// that its credentials are good for it (KEP-2535).
//
// # Model
//
// A Record says of one image of the runtime by which names and with whose credentials it was pulled. A pod may use the
// image if everybody may pull it under that name, or if it was pulled before with one of the pod's secrets or for the
// pod's service account. Otherwise it is pulled again with the pod's own credentials. The layers are on the node
// already, so that costs one question to the registry.
//
// The Policy says which images are checked: by default those that this node pulled, not those that were preloaded.
//
// # Invariants
//
//   - What is not known is not allowed: a record that is missing, torn or says nothing of a name leads to a pull.
//   - A record never has a credential, only its hash.
//   - For one name a record has at most secretsMax secrets and secretsMax accounts; the oldest are dropped. Pods that
//     use a dropped one pull once more.
//   - The rules are those of the kubelet 1.36.3, so that each can use the other's records.
//
// It reads no file and asks no registry.
package imageaccess

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// secretsMax bounds what a record says of one name. It is upstream's writeRecordWhileMatchingLimit, above which a
// secret that is found to be good is not recorded.
const secretsMax = 100

// Secret is a pull secret that was good for an image.
type Secret struct {
	UID, Namespace, Name string
	Sum                  string // SHA-256 of the credential in it, in hexadecimal; empty: not known
}

func (s Secret) sameObject(o Secret) bool {
	return s.UID == o.UID && s.Namespace == o.Namespace && s.Name == o.Name
}

// Account is a service account whose token was good for an image.
type Account struct{ UID, Namespace, Name string }

// Credentials are those with which an image was pulled under one name.
type Credentials struct {
	Everybody bool // it was pulled without credentials, or with the node's own
	Secrets   []Secret
	Accounts  []Account
}

// Record is what is known of one image.
type Record struct {
	Image   string                 // the runtime's id of it
	ByName  map[string]Credentials // by the name in pods' specifications without tag and digest (NameOf)
	Updated unit.Wall              // when it changed last
}

// Policy says which images are checked: imagePullCredentialsVerificationPolicy.
type Policy struct {
	mode      mode
	allowed   map[string]bool // names that are never checked
	allowedIn []string        // what such names begin with
}

type mode int

const (
	never mode = iota
	pulled
	notAllowed
	always
)

// The policies by their names in the KubeletConfiguration.
var modes = map[string]mode{
	"NeverVerify":                  never,
	"NeverVerifyPreloadedImages":   pulled,
	"NeverVerifyAllowlistedImages": notAllowed,
	"AlwaysVerify":                 always,
}

// NewPolicy returns the policy of a name; allowed is preloadedImagesVerificationAllowlist: names without tag and
// digest, or what names begin with, before "/*".
func NewPolicy(name string, allowed []string) (Policy, error) {
	m, ok := modes[name]
	if !ok {
		return Policy{}, fmt.Errorf("imagePullCredentialsVerificationPolicy %q: want NeverVerify, "+
			"NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify", name)
	}
	p := Policy{mode: m, allowed: map[string]bool{}}
	for _, pattern := range allowed {
		begin, open := strings.CutSuffix(pattern, "*")
		switch {
		case pattern != strings.TrimSpace(pattern) || strings.Contains(begin, "*") ||
			open && (!strings.HasSuffix(begin, "/") || begin == "/"):
			return Policy{}, fmt.Errorf("preloadedImagesVerificationAllowlist %q: want the name of an image, or what names "+
				"begin with followed by /*", pattern)
		case open:
			p.allowedIn = append(p.allowedIn, begin)
		case begin == "" || NameOf(begin) != begin:
			return Policy{}, fmt.Errorf("preloadedImagesVerificationAllowlist %q: want a name without tag and digest", pattern)
		default:
			p.allowed[begin] = true
		}
	}
	return p, nil
}

// checks reports whether an image's users are checked. byNode says that the node pulled it, or began to.
func (p Policy) checks(image string, byNode bool) bool {
	switch p.mode {
	case pulled:
		return byNode
	case notAllowed:
		name := NameOf(image)
		return !p.allowed[name] && !slices.ContainsFunc(p.allowedIn, func(begin string) bool {
			return strings.HasPrefix(name, begin)
		})
	case always:
		return true
	default:
		return false
	}
}

// Checks reports whether the users of the image in question are checked.
func (p Policy) Checks(q Question) bool { return p.checks(q.Image, q.Record != nil || q.Intent) }

// User is what a pod has to show for an image.
type User struct {
	Secrets []Secret // those of its pull secrets that cover the image
	Account *Account // nil: no provider was asked on its behalf
}

// Question asks whether a pod may use an image that is present.
type Question struct {
	Image   string  // as the pod's specification names it
	Record  *Record // nil: there is none
	Intent  bool    // a pull of that name was begun and not finished
	Unknown bool    // the records could not be read
}

// NeedsUser reports whether the answer depends on the pod's credentials, and if not, whether the pod may use the image.
// Only if needs is true does the caller read secrets or ask providers.
func (p Policy) NeedsUser(q Question) (needs, may bool) {
	switch {
	case q.Unknown:
		return false, false
	case !p.Checks(q):
		return false, true
	case q.Record == nil:
		return false, false
	}
	known, ok := q.Record.ByName[NameOf(q.Image)]
	switch {
	case !ok:
		return false, false
	case known.Everybody:
		return false, true
	}
	return len(known.Secrets)+len(known.Accounts) > 0, false
}

// May reports whether a user may use an image for which NeedsUser returned needs. remember is what the caller passes to
// Learn: a secret whose name or content the record does not have; nil: nothing.
func (r *Record) May(image string, u User) (may bool, remember *Credentials) {
	known := r.ByName[NameOf(image)]
	for _, own := range u.Secrets {
		for _, good := range known.Secrets {
			sameSum := own.Sum != "" && own.Sum == good.Sum
			if !sameSum && !own.sameObject(good) {
				continue
			}
			if (!sameSum || !own.sameObject(good)) && len(known.Secrets) < secretsMax {
				remember = &Credentials{Secrets: []Secret{own}}
			}
			return true, remember
		}
	}
	return u.Account != nil && slices.Contains(known.Accounts, *u.Account), nil
}

// Learn returns the record of an image that was pulled under a name with credentials, and whether it differs from r,
// which may be nil. Without credentials (nil) only that it was pulled is recorded: so its users are checked.
func (r *Record) Learn(id, image string, with *Credentials, now unit.Wall) (next *Record, changed bool) {
	if r == nil {
		next = &Record{Image: id, ByName: map[string]Credentials{}, Updated: now}
		if with != nil {
			next.ByName[NameOf(image)] = *with
		}
		return next, true
	}
	if with == nil || !with.Everybody && len(with.Secrets)+len(with.Accounts) == 0 {
		return r, false
	}
	name := NameOf(image)
	known := r.ByName[name]
	merged, changed := known.join(*with)
	if !changed {
		return r, false
	}
	next = &Record{Image: r.Image, ByName: map[string]Credentials{}, Updated: now}
	for n, c := range r.ByName {
		next.ByName[n] = c
	}
	next.ByName[name] = merged
	return next, true
}

// join adds others to the credentials, newest last.
func (c Credentials) join(o Credentials) (joined Credentials, changed bool) {
	if c.Everybody {
		return c, false
	}
	if o.Everybody {
		return Credentials{Everybody: true}, true
	}
	secrets, accounts := slices.Clone(c.Secrets), slices.Clone(c.Accounts)
	for _, s := range o.Secrets {
		if slices.Contains(secrets, s) {
			continue
		}
		secrets = append(slices.DeleteFunc(secrets, s.sameObject), s)
		changed = true
	}
	for _, a := range o.Accounts {
		if !slices.Contains(accounts, a) {
			accounts = append(accounts, a)
			changed = true
		}
	}
	secrets = secrets[max(0, len(secrets)-secretsMax):]
	accounts = accounts[max(0, len(accounts)-secretsMax):]
	return Credentials{Secrets: secrets, Accounts: accounts}, changed
}

// NameOf is an image's name without its tag and digest.
func NameOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if colon := strings.LastIndexByte(image, ':'); colon > strings.LastIndexByte(image, '/') {
		image = image[:colon]
	}
	return image
}
