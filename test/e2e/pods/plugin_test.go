//go:build e2e

package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// What the credential provider plugins of the test ask for.
const (
	pluginAudience = "registry.example"
	pluginRole     = "example.com/role"
)

// plugins are credential provider plugins, by name, as shell scripts. Each is for the images below the path with its
// name. In the directory dir they find their answer and write down the request that they got.
var plugins = map[string]string{
	"good":    `cat > "$dir/asked.$$" && mv "$dir/asked.$$" "$dir/asked" && cat "$dir/answer"`,
	"hangs":   `sleep 1000`,
	"large":   `head -c 2000000 /dev/zero`,
	"garbage": `echo hello`,
	"fails":   `echo no luck >&2; exit 3`,
	"removed": `true`,
}

// withPlugins starts an instance whose agent has the plugins for a registry. dir is that of the plugins.
func withPlugins(t *testing.T, registry string) (c *rig.Cluster, dir string) {
	t.Helper()
	dir = t.TempDir()
	var providers []map[string]any
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		script := fmt.Sprintf("#!/bin/sh\ndir=%s\n%s\n", dir, plugins[name])
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		provider := map[string]any{
			"name": name, "matchImages": []string{registry + "/" + name}, "defaultCacheDuration": "0s",
			"apiVersion": "credentialprovider.kubelet.k8s.io/v1",
		}
		if name == "good" {
			provider["tokenAttributes"] = map[string]any{
				"serviceAccountTokenAudience": pluginAudience, "cacheType": "Token", "requireServiceAccount": true,
				"requiredServiceAccountAnnotationKeys": []string{pluginRole},
			}
		}
		providers = append(providers, provider)
	}
	config, err := json.Marshal(map[string]any{ // YAML takes JSON
		"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": providers,
	})
	if err != nil {
		t.Fatal(err)
	}
	agent := fmt.Sprintf(
		"#!/bin/sh\nexec %s agent \"$@\" --image-credential-provider-config %s --image-credential-provider-bin-dir %s\n",
		rig.Binary(t), filepath.Join(dir, "config.json"), dir,
	)
	answer := fmt.Sprintf(
		`{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Image",
		"auth":{%q:{"username":%q,"password":%q}}}`, registry, registryUser, registryPassword,
	)
	for name, text := range map[string]string{"config.json": string(config), "agent": agent, "answer": answer} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return rig.New(t, "plugin", rig.Options{UpFlags: []string{"--agent-binary", filepath.Join(dir, "agent")}}), dir
}

// TestCredentialPlugins: a plugin gets a token for its audience, of the pod's service account and bound to the pod, and
// the annotations that it requires. An Event of the pod names a plugin that hangs, prints too much or nonsense, fails
// or is missing, and says what is wrong. Images of other pods are pulled meanwhile, and that of the same pod when the
// cause is gone.
func TestCredentialPlugins(t *testing.T) {
	t.Parallel()
	r := newRegistry(t)
	registry := r.Listener.Addr().String()
	c, dir := withPlugins(t, registry)
	b := bench{c, t, c.Namespace(t)}
	b.mayAskFor(pluginAudience)
	b.account("bare")
	puller := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "puller",
		Annotations: map[string]string{pluginRole: "reader"}}}
	_, err := b.API.CoreV1().ServiceAccounts(b.ns).Create(t.Context(), puller, metav1.CreateOptions{})
	b.do(err)
	b.do(os.Remove(filepath.Join(dir, "removed")))

	bad := map[string]string{
		"hangs":   `credential provider "hangs": no answer within 1m0s`,
		"large":   `credential provider "large": its answer is longer than 1048576 bytes`,
		"garbage": `credential provider "garbage": read its answer: `,
		"fails":   `credential provider "fails": exit status 3: no luck`,
		"removed": `credential provider "removed": fork/exec ` + filepath.Join(dir, "removed") +
			": no such file or directory",
	}
	for name := range bad {
		b.create(name, pulls(r.name(name+"/app")))
	}
	as := func(account string) corev1.PodSpec {
		spec := pulls(r.name("good/app"))
		spec.ServiceAccountName = account
		return spec
	}
	pod := b.create("good", as("puller"))
	b.ended("good", corev1.PodSucceeded) // while another plugin hangs
	b.wantAsked(filepath.Join(dir, "asked"), pod)
	b.create("bare", as("bare"))
	b.event("bare", "Failed", fmt.Sprintf("service account %s/bare has no annotation %q, which the plugin requires", b.ns,
		pluginRole))
	for name, text := range bad {
		b.event(name, "Failed", "Failed to pull image", text)
	}
	for name := range bad { // from now on they work
		script := fmt.Sprintf("#!/bin/sh\ncat > /dev/null\ncat %s/answer\n", dir)
		draft := filepath.Join(dir, "draft")
		b.do(os.WriteFile(draft, []byte(script), 0o700))
		b.do(os.Rename(draft, filepath.Join(dir, name)))
	}
	for name := range bad {
		b.ended(name, corev1.PodSucceeded)
	}
	found := b.scrape("/metrics")
	for _, selector := range []string{
		`kubelet_credential_provider_config_info{hash=~"sha256:[0-9a-f]+"}`,
		`kubelet_credential_provider_plugin_duration_count{plugin_name="good"}`,
		`kubelet_credential_provider_plugin_errors_total{plugin_name="fails"}`,
	} {
		if !found.has(t, selector, true) {
			t.Errorf("nothing is selected by %s, or it did not move", selector)
		}
	}
}

// mayAskFor allows nodes to request tokens for an audience that no volume of a pod names.
func (b bench) mayAskFor(audience string) {
	b.t.Helper()
	name := metav1.ObjectMeta{Name: "plugins-" + b.ns}
	_, err := b.API.RbacV1().ClusterRoles().Create(b.t.Context(), &rbacv1.ClusterRole{ObjectMeta: name,
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"request-serviceaccounts-token-audience"}, APIGroups: []string{""}, Resources: []string{audience}},
		}}, metav1.CreateOptions{})
	b.do(err)
	_, err = b.API.RbacV1().ClusterRoleBindings().Create(b.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:nodes"}},
	}, metav1.CreateOptions{})
	b.do(err)
}

// wantAsked checks the request that a plugin got for a pod. The API server says whose token it contains.
func (b bench) wantAsked(file string, pod *corev1.Pod) {
	b.t.Helper()
	var asked struct {
		Image                     string
		ServiceAccountToken       string
		ServiceAccountAnnotations map[string]string
	}
	text, err := os.ReadFile(file)
	b.do(err)
	b.do(json.Unmarshal(text, &asked))
	if asked.Image != pod.Spec.Containers[0].Image || fmt.Sprint(asked.ServiceAccountAnnotations) != "map["+pluginRole+
		":reader]" {
		b.t.Errorf("asked for image %q with annotations %v", asked.Image, asked.ServiceAccountAnnotations)
	}
	review := func(audience string) authenticationv1.TokenReviewStatus {
		answer, err := b.API.AuthenticationV1().TokenReviews().Create(context.WithoutCancel(b.t.Context()),
			&authenticationv1.TokenReview{
				Spec: authenticationv1.TokenReviewSpec{Token: asked.ServiceAccountToken, Audiences: []string{audience}},
			}, metav1.CreateOptions{})
		b.do(err)
		return answer.Status
	}
	s := review(pluginAudience)
	bound := strings.Join(s.User.Extra["authentication.kubernetes.io/pod-uid"], " ")
	if !s.Authenticated || s.User.Username != "system:serviceaccount:"+b.ns+":puller" || bound != string(pod.UID) {
		b.t.Errorf("the token is that of %q, bound to the pod %q, want %s: %s", s.User.Username, bound, pod.UID, s.Error)
	}
	if review("https://kubernetes.default.svc").Authenticated {
		b.t.Error("the API server takes the token for its own")
	}
}
