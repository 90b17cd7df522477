// Package credentialconfig reads the kubelet's file of credential provider plugins, CredentialProviderConfig.
//
// Load takes what --image-credential-provider-config names: a file, or a directory whose files (.json, .yaml, .yml) are
// read in the order of their names and count as one (KEP-2133). Like the other configuration files it is read strictly,
// and one error has every problem. The rules are those of the kubelet 1.36.3.
//
// It does not look for the plugins' programs: package credentialprovider does, which runs them.
package credentialconfig

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletconfigv1 "k8s.io/kubelet/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/kube/configfile"
)

const (
	group = "kubelet.config.k8s.io"
	kind  = "CredentialProviderConfig"

	// pluginGroup is the API group of the requests to plugins.
	pluginGroup = "credentialprovider.kubelet.k8s.io"
	// tokensSince is the version of pluginGroup whose requests contain service account tokens (KEP-4412).
	tokensSince = "v1"
)

// versions are the versions of both groups.
var versions = []string{"v1", "v1beta1", "v1alpha1"}

// Load returns the providers of a file or directory, in their order, and a hash of the files' content, which is the
// label of the metric kubelet_credential_provider_config_info. It is the kubelet's: the SHA-256 of all files, each
// after its length (eight bytes, the highest first).
func Load(path string) (all []kubeletconfigv1.CredentialProvider, hash string, err error) {
	files, err := filesOf(path)
	if err != nil {
		return nil, "", fmt.Errorf("read credential providers: %w", err)
	}
	var p configfile.Problems
	sum := sha256.New()
	for _, file := range files {
		text, err := configfile.Read(file)
		if err != nil {
			return nil, "", fmt.Errorf("read credential providers: %w", err)
		}
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		sum.Write(text)
		var own configfile.Problems
		all = append(all, decode(text, &own)...)
		for _, problem := range own {
			p.Add(file, problem)
		}
	}
	check(all, &p)
	if err := p.Err(); err != nil {
		return nil, "", fmt.Errorf("read credential providers: %s: %w", path, err)
	}
	return all, fmt.Sprintf("sha256:%x", sum.Sum(nil)), nil
}

// filesOf returns path. If that is a directory, it returns the configuration files in it.
func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	entries, err := os.ReadDir(path) // sorted by name
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(e.Name())) && !e.IsDir() {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no file in it ends in .json, .yaml or .yml", path)
	}
	return files, nil
}

func decode(text []byte, p *configfile.Problems) []kubeletconfigv1.CredentialProvider {
	var meta metav1.TypeMeta
	want := group + "/" + versions[0]
	if doc, err := yaml.YAMLToJSON(text); err == nil && json.Unmarshal(doc, &meta) == nil {
		for _, v := range versions {
			if meta.APIVersion == group+"/"+v {
				want = meta.APIVersion
			}
		}
	}
	config, has := configfile.Decode[kubeletconfigv1.CredentialProviderConfig](text, want, kind, p)
	if config == nil {
		return nil
	}
	if !has["providers"] || len(config.Providers) == 0 {
		p.Add("providers", "want at least one, found none")
	}
	if want != group+"/v1" {
		for i, provider := range config.Providers {
			if provider.TokenAttributes != nil {
				p.Add(fmt.Sprintf("providers[%d].tokenAttributes", i), fmt.Sprintf("needs apiVersion %s/v1, found %s", group, want))
			}
		}
	}
	return config.Providers
}

func check(all []kubeletconfigv1.CredentialProvider, p *configfile.Problems) {
	seen := map[string]bool{}
	for i := range all {
		provider := &all[i]
		at := fmt.Sprintf("provider %q", provider.Name)
		if seen[provider.Name] {
			p.Add(at, "is listed twice: names must be unique in all files together")
		}
		seen[provider.Name] = true
		checkProvider(at, provider, p)
	}
}

func checkProvider(at string, provider *kubeletconfigv1.CredentialProvider, p *configfile.Problems) {
	if n := provider.Name; n == "" || n == "." || n == ".." || strings.ContainsAny(n, " /\x00") {
		p.Add(at+".name", "want the name of a program in --image-credential-provider-bin-dir, without blanks and slashes")
	}
	if len(provider.MatchImages) == 0 {
		p.Add(at+".matchImages", "want at least one pattern, such as registry.example.com or *.example.com/team")
	}
	for _, pattern := range provider.MatchImages {
		host, _, _ := strings.Cut(pattern, "/")
		if host == "" || strings.Contains(pattern, "://") {
			p.Add(at+".matchImages", fmt.Sprintf("%q: want a registry, with or without a path, and no scheme", pattern))
		}
		if _, err := filepath.Match(host, ""); err != nil {
			p.Add(at+".matchImages", fmt.Sprintf("%q: %v", pattern, err))
		}
	}
	switch d := provider.DefaultCacheDuration; {
	case d == nil:
		p.Add(at+".defaultCacheDuration", "want a duration such as 10m, found none")
	case d.Duration < 0:
		p.Add(at+".defaultCacheDuration", fmt.Sprintf("%s: want zero or more", d.Duration))
	}
	version, ok := strings.CutPrefix(provider.APIVersion, pluginGroup+"/")
	if !ok || !slices.Contains(versions, version) {
		p.Add(at+".apiVersion", fmt.Sprintf("%q: want one of %s/%s", provider.APIVersion, pluginGroup, strings.Join(versions,
			", "+pluginGroup+"/")))
	}
	if t := provider.TokenAttributes; t != nil {
		if version != tokensSince {
			p.Add(at+".tokenAttributes", fmt.Sprintf("need apiVersion %s/%s, found %q", pluginGroup, tokensSince,
				provider.APIVersion))
		}
		checkToken(at+".tokenAttributes", t, p)
	}
}

func checkToken(at string, t *kubeletconfigv1.ServiceAccountTokenAttributes, p *configfile.Problems) {
	if t.ServiceAccountTokenAudience == "" {
		p.Add(at+".serviceAccountTokenAudience", "want an audience, found none")
	}
	switch t.CacheType {
	case kubeletconfigv1.ServiceAccountServiceAccountTokenCacheType, kubeletconfigv1.TokenServiceAccountTokenCacheType:
	default:
		p.Add(at+".cacheType", fmt.Sprintf("%q: want ServiceAccount or Token", t.CacheType))
	}
	if t.RequireServiceAccount == nil {
		p.Add(at+".requireServiceAccount", "want true or false, found none")
	} else if !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0 {
		p.Add(at+".requiredServiceAccountAnnotationKeys", "need requireServiceAccount: true")
	}
	seen := map[string]bool{}
	for _, key := range slices.Concat(t.RequiredServiceAccountAnnotationKeys, t.OptionalServiceAccountAnnotationKeys) {
		if seen[key] {
			p.Add(at, fmt.Sprintf("annotation key %q is listed twice among the required and optional keys", key))
		}
		seen[key] = true
		for _, problem := range validation.IsQualifiedName(strings.ToLower(key)) {
			p.Add(at, fmt.Sprintf("annotation key %q: %s", key, problem))
		}
	}
}
