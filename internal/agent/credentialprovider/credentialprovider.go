// Package credentialprovider asks the node's credential provider plugins which credentials a registry takes
// (KEP-2133, KEP-4412).
//
// # Model
//
// A plugin is a program in one directory. It is started for an image that matches one of its patterns, reads a
// CredentialProviderRequest from standard input, and writes a CredentialProviderResponse to standard output. What it
// answers is cached for the time, and for the images, that it names: this image, its registry, or all.
//
// A plugin may ask for a token of the pod's service account and for annotations of it. Its answers are then cached for
// that account or that token only.
//
// # Invariants
//
//   - A plugin is started by its path and arguments, without a shell. Its path never leaves the plugins' directory.
//   - A call ends within callMax, with everything that the plugin started in its process group. At most outputMax of
//     its output and errorMax of its errors are read.
//   - Pods that want the same answer at the same time start the plugin once. At most callsMax calls of one plugin run
//     at once, and a plugin that hangs delays no other plugin.
//   - The cache has at most cacheMax answers; the one that expires first is dropped first. Credentials are in memory
//     only.
//   - If a plugin fails, only its own credentials are missing: those of others are used, and the failure is returned
//     beside them.
//
// It pulls nothing, and does not look at pull secrets (package pullsecret).
package credentialprovider

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfigv1 "k8s.io/kubelet/config/v1"
	pluginv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/pullsecret"
	"github.com/plimsoll-dev/plimsoll/internal/core/imageaccess"
)

const (
	// tokenLife is the lifetime of a service account token that a plugin receives. It is the shortest that the API allows
	// (TokenRequestSpec.expirationSeconds), since the plugin uses the token at once.
	tokenLife = 10 * time.Minute

	// callsMax is how many calls of one plugin run at once. Chosen: more than maxParallelImagePulls starts by default.
	callsMax = 8
)

// Accounts reads service accounts and requests tokens for them.
type Accounts interface {
	ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Token(ctx context.Context, namespace, name string,
		request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// Options are what Providers need.
type Options struct {
	Dir        string                               // of the plugins' programs
	Providers  []kubeletconfigv1.CredentialProvider // as credentialconfig.Load returns them
	ConfigHash string                               // likewise
	Accounts   Accounts                             // may be nil if no provider has tokenAttributes
	Now        func() time.Time                     // nil: time.Now
	// Ran is called after each run of a plugin's program. Optional.
	Ran func(plugin string, took time.Duration, err error)
}

// Providers are the plugins of a node. They are safe for concurrent use.
type Providers struct {
	plugins []*plugin // in the order of the configuration
	o       Options
}

// plugin is one program. Only its cache changes.
type plugin struct {
	kubeletconfigv1.CredentialProvider
	path  string
	slots chan struct{} // one value for each running call
	cache *cache
	ran   func(plugin string, took time.Duration, err error)
}

// New checks that each plugin's program exists and is executable.
func New(o Options) (*Providers, error) {
	if o.Ran == nil {
		o.Ran = func(string, time.Duration, error) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	p := &Providers{o: o}
	var errs []error
	for _, config := range o.Providers {
		path := filepath.Join(o.Dir, config.Name)
		if filepath.Dir(path) != filepath.Clean(o.Dir) {
			errs = append(errs, fmt.Errorf("credential provider %q: its name leads out of %s", config.Name, o.Dir))
			continue
		}
		info, err := os.Stat(path)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("credential provider %q: %w", config.Name, err))
		case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
			errs = append(errs, fmt.Errorf("credential provider %q: %s: mode %s: want a program that may be run", config.Name,
				path, info.Mode()))
		case config.TokenAttributes != nil && o.Accounts == nil:
			errs = append(errs,
				fmt.Errorf("credential provider %q: tokenAttributes: this agent has no API server to ask for tokens", config.Name))
		}
		p.plugins = append(p.plugins, &plugin{
			CredentialProvider: config, path: path, slots: make(chan struct{}, callsMax), cache: newCache(), ran: o.Ran,
		})
	}
	return p, errors.Join(errs...)
}

// For returns the credentials that plugins have for an image of a pod, in the order in which they are tried. The error
// says which matching plugins failed; the credentials of the others are returned with it.
func (p *Providers) For(ctx context.Context, pod *corev1.Pod, image string) (*pullsecret.Keyring, error) {
	ring := &pullsecret.Keyring{}
	var errs []error
	for _, plugin := range p.plugins {
		if !slices.ContainsFunc(plugin.MatchImages, func(pattern string) bool { return pullsecret.Covers(pattern, image) }) {
			continue
		}
		auths, account, err := p.ask(ctx, plugin, pod, image)
		if err != nil {
			errs = append(errs, fmt.Errorf("credential provider %q: %w", plugin.Name, err))
			continue
		}
		for _, pattern := range slices.Sorted(maps.Keys(auths)) {
			ring.AddPassword(pattern, auths[pattern].Username, auths[pattern].Password, account)
		}
	}
	return ring, errors.Join(errs...)
}

// caller is the pod's part of a question to a plugin.
type caller struct {
	token       string
	annotations map[string]string
	account     *imageaccess.Account // nil: no token was requested
	key         string               // the caller's part of the cache key; empty: the answer does not depend on the pod
}

// errSkip means that the plugin is not asked for this pod.
var errSkip = errors.New("it is not for this pod")

// ask returns a plugin's answer for an image, from the cache if possible.
func (p *Providers) ask(ctx context.Context, plugin *plugin, pod *corev1.Pod,
	image string) (map[string]pluginv1.AuthConfig, *imageaccess.Account, error) {
	who, err := p.caller(ctx, plugin, pod)
	if errors.Is(err, errSkip) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	auths, err := plugin.cache.get(ctx, p.o.Now, who.key, image, func(ctx context.Context) (*answer, error) {
		plugin.slots <- struct{}{} // no call takes longer than callMax
		defer func() { <-plugin.slots }()
		response, err := plugin.call(ctx, &pluginv1.CredentialProviderRequest{
			TypeMeta: metav1.TypeMeta{APIVersion: plugin.APIVersion, Kind: "CredentialProviderRequest"},
			Image:    image, ServiceAccountToken: who.token, ServiceAccountAnnotations: who.annotations,
		})
		if err != nil {
			return nil, err
		}
		keep := plugin.DefaultCacheDuration.Duration
		if response.CacheDuration != nil {
			keep = response.CacheDuration.Duration
		}
		return &answer{auths: response.Auth, scope: response.CacheKeyType, until: p.o.Now().Add(keep)}, nil
	})
	return auths, who.account, err
}

// caller returns what a plugin with tokenAttributes receives about the pod.
func (p *Providers) caller(ctx context.Context, plugin *plugin, pod *corev1.Pod) (caller, error) {
	t := plugin.TokenAttributes
	if t == nil {
		return caller{}, nil
	}
	name := pod.Spec.ServiceAccountName
	if name == "" { // such as a static pod
		if *t.RequireServiceAccount {
			return caller{}, errSkip
		}
		return caller{}, nil
	}
	account, err := p.o.Accounts.ServiceAccount(ctx, pod.Namespace, name)
	if err != nil {
		return caller{}, fmt.Errorf("service account %s/%s: %w", pod.Namespace, name, err)
	}
	who := caller{
		annotations: map[string]string{},
		account:     &imageaccess.Account{UID: string(account.UID), Namespace: pod.Namespace, Name: name},
	}
	for _, key := range t.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok {
			return caller{}, fmt.Errorf("service account %s/%s has no annotation %q, which the plugin requires", pod.Namespace,
				name, key)
		}
		who.annotations[key] = value
	}
	for _, key := range t.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[key]; ok {
			who.annotations[key] = value
		}
	}
	life := int64(tokenLife / time.Second)
	token, err := p.o.Accounts.Token(ctx, pod.Namespace, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{t.ServiceAccountTokenAudience}, ExpirationSeconds: &life,
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		}})
	if err != nil {
		return caller{}, fmt.Errorf("token of service account %s/%s: %w", pod.Namespace, name, err)
	}
	who.token = token.Status.Token
	parts := []string{pod.Namespace, name, string(account.UID)}
	for _, key := range slices.Sorted(maps.Keys(who.annotations)) {
		parts = append(parts, key, who.annotations[key])
	}
	if t.CacheType == kubeletconfigv1.TokenServiceAccountTokenCacheType {
		parts = append(parts, "token", who.token)
	}
	// The key is a hash, so that the cache contains no token. Each part is quoted, so that different parts never give the
	// same text.
	sum := sha256.Sum256([]byte(fmt.Sprintf("%q", parts)))
	who.key = hex.EncodeToString(sum[:])
	return who, nil
}

// scopeOf returns the image's part of the cache key, for the scope that the plugin named.
func scopeOf(scope pluginv1.PluginCacheKeyType, image string) string {
	image, _, _ = strings.Cut(image, "@")
	if slash := strings.LastIndexByte(image, '/'); strings.LastIndexByte(image, ':') > slash {
		image = image[:strings.LastIndexByte(image, ':')]
	}
	switch scope {
	case pluginv1.ImagePluginCacheKeyType:
		return "image " + pullsecret.FullName(image)
	case pluginv1.RegistryPluginCacheKeyType:
		registry, _, _ := strings.Cut(pullsecret.FullName(image), "/")
		return "registry " + registry
	default:
		return "global"
	}
}
