//go:build e2e

package storage

import (
	"context"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/deploy"
	"github.com/plimsoll-dev/plimsoll/internal/csi"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// storageUser is the user of plimsoll-storage. The CSI driver is no user at all.
const storageUser = "plimsoll:storage"

// rights are what a role allows: "verb resource.group", or "verb resource/subresource.group".
type rights map[string]bool

func right(verb, group, resource string) string {
	if group == "" {
		return verb + " " + resource
	}
	return verb + " " + resource + "." + group
}

// granted returns what deploy/storage.yaml allows in every namespace, and in kube-system besides.
func granted(t *testing.T) (everywhere, inSystem rights) {
	t.Helper()
	everywhere, inSystem = rights{}, rights{}
	for document := range strings.SplitSeq(deploy.Storage, "\n---\n") {
		var role rbacv1.ClusterRole // a Role has the same rules
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		into := everywhere
		switch {
		case role.Kind == "Role" && role.Namespace == metav1.NamespaceSystem:
			into = inSystem
		case role.Kind != "ClusterRole":
			continue
		}
		for _, rule := range role.Rules {
			for _, verb := range rule.Verbs {
				for _, resource := range rule.Resources {
					into[right(verb, rule.APIGroups[0], resource)] = true
				}
			}
		}
	}
	if len(everywhere) < 20 || len(inSystem) < 3 {
		t.Fatalf("roles in deploy/storage.yaml: %v, %v", everywhere, inSystem)
	}
	return everywhere, inSystem
}

// TestRole: the controllers' role allows what they ask for while volumes are made, grown, copied and removed, and
// nothing else. Their requests pass through a proxy that notes them.
func TestRole(t *testing.T) {
	c := rig.Shared(t)
	everywhere, inSystem := granted(t)
	t.Run("refused", func(t *testing.T) { refused(t, c, everywhere, inSystem) })
	t.Run("driver", func(t *testing.T) { noUser(t, c) })

	k := keeper{Cluster: c, t: t, ns: c.Namespace(t)}
	asked := note(t, c)
	k.kubectl("apply", "-f", "../../../examples/volume.yaml")
	k.wantStarts(1)
	k.copies(k.grow("128Mi", 1))
	k.kubectl("delete", "-f", "../../../examples/volume.yaml", "-f", "../../../examples/volume-copies.yaml",
		"--wait=false")
	k.kubectl("delete", "persistentvolumeclaims", "--all", "--wait=false")
	k.wantNothingKept()

	k.anotherClass()

	all := maps.Clone(everywhere)
	maps.Copy(all, inSystem)
	used := asked.all()
	for _, r := range slices.Sorted(maps.Keys(all)) {
		of, lists := strings.CutPrefix(r, "list ")
		if used[r] || lists && used["watch "+of] { // a watch begins with a list where the API server cannot stream it
			continue
		}
		t.Errorf("the role allows to %s, which no request did", r)
	}
	for _, r := range slices.Sorted(maps.Keys(used)) {
		if !all[r] {
			t.Errorf("the role does not allow to %s, which a request did", r)
		}
	}
}

// anotherClass has the controllers say how much room there is for a new StorageClass, until the class is removed.
func (k keeper) anotherClass() {
	k.t.Helper()
	later := storagev1.VolumeBindingWaitForFirstConsumer
	classes := k.API.StorageV1().StorageClasses()
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{GenerateName: "role-"},
		Provisioner:       csi.Name,
		VolumeBindingMode: &later,
	}
	made, err := classes.Create(k.t.Context(), class, metav1.CreateOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	rooms := func(ctx context.Context, want bool) error {
		all, err := k.API.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		has := slices.ContainsFunc(all.Items, func(c storagev1.CSIStorageCapacity) bool {
			return c.StorageClassName == made.Name
		})
		if has != want {
			return fmt.Errorf("%d CSIStorageCapacity objects, one of the class: %v", len(all.Items), has)
		}
		return nil
	}
	rig.Eventually(k.t, soon, "the room of a new class", func(ctx context.Context) error { return rooms(ctx, true) })
	if err := classes.Delete(k.t.Context(), made.Name, metav1.DeleteOptions{}); err != nil {
		k.t.Fatal(err)
	}
	rig.Eventually(k.t, soon, "no room of the class", func(ctx context.Context) error { return rooms(ctx, false) })
}

// refused asks the API server about every verb of every kind, whether the controllers may.
func refused(t *testing.T, c *rig.Cluster, everywhere, inSystem rights) {
	_, lists, err := c.API.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	reviews := c.API.AuthorizationV1().SubjectAccessReviews()
	asked, allowed := 0, 0
	for _, list := range lists {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		if !found {
			group = "" // v1
		}
		for _, kind := range list.APIResources {
			if strings.HasPrefix(kind.Name, "selfsubject") {
				continue // everybody may ask about oneself
			}
			name, sub, _ := strings.Cut(kind.Name, "/")
			namespaces := []string{""}
			if kind.Namespaced {
				namespaces = []string{metav1.NamespaceDefault, metav1.NamespaceSystem}
			}
			for _, verb := range kind.Verbs {
				for _, namespace := range namespaces {
					answer, err := reviews.Create(t.Context(), &authorizationv1.SubjectAccessReview{
						Spec: authorizationv1.SubjectAccessReviewSpec{
							User:   storageUser,
							Groups: []string{"system:authenticated"},
							ResourceAttributes: &authorizationv1.ResourceAttributes{
								Namespace:   namespace,
								Verb:        verb,
								Group:       group,
								Resource:    name,
								Subresource: sub,
							},
						},
					}, metav1.CreateOptions{})
					if err != nil {
						t.Fatal(err)
					}
					r := right(verb, group, kind.Name)
					want := everywhere[r] || inSystem[r] && namespace == metav1.NamespaceSystem
					if answer.Status.Allowed != want {
						t.Errorf("%s in namespace %q: allowed %v, want %v", r, namespace, answer.Status.Allowed, want)
					}
					asked++
					if answer.Status.Allowed {
						allowed++
					}
				}
			}
		}
	}
	t.Logf("%d of %d requests are allowed", allowed, asked)
	if allowed == 0 || asked < 500 {
		t.Errorf("%d requests, %d of them allowed", asked, allowed)
	}
}

// noUser: the driver has no kubeconfig.
func noUser(t *testing.T, c *rig.Cluster) {
	pid := c.PID(t, "csi-driver")
	for _, file := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil || strings.Contains(strings.ToLower(string(text)), "kubeconfig") {
			t.Errorf("%s of the driver: %q, %v", file, text, err)
		}
	}
}

// notes are the requests that passed through a proxy.
type notes struct {
	sync.Mutex
	rights rights
}

func (n *notes) all() rights {
	n.Lock()
	defer n.Unlock()
	return maps.Clone(n.rights)
}

// note has the controllers' requests pass through a proxy until the test ends. Their kubeconfig names the proxy then,
// which makes the same requests with their certificate. No request may be refused.
func note(t *testing.T, c *rig.Cluster) *notes {
	t.Helper()
	path := filepath.Join(c.StateDir, "pki", "storage.kubeconfig")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	n := &notes{rights: rights{}}
	proxy := httptest.NewTLSServer(&httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // watches
		Rewrite: func(r *httputil.ProxyRequest) {
			if right := rightOf(r.In); right != "" {
				n.Lock()
				n.rights[right] = true
				n.Unlock()
			}
			r.SetURL(server)
		},
		ModifyResponse: func(answer *http.Response) error {
			if answer.StatusCode == http.StatusForbidden {
				t.Errorf("%s %s: %s", answer.Request.Method, answer.Request.URL, answer.Status)
			}
			return nil
		},
	})
	t.Cleanup(func() {
		if err := os.WriteFile(path, before, 0o600); err != nil {
			t.Error(err)
		}
		kill(t, c.PID(t, "storage")) // its supervisor starts another, which reads the file
		proxy.CloseClientConnections()
		proxy.Close()
	})
	through(t, path, proxy)
	again(t, c)
	return n
}

// through makes a kubeconfig name the proxy.
func through(t *testing.T, path string, proxy *httptest.Server) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server = proxy.URL
		cluster.CertificateAuthority = ""
		cluster.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{
			Type:  "CERTIFICATE",
			Bytes: proxy.Certificate().Raw,
		})
		cluster.TLSServerName = ""
	}
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
}

// again has the controllers read their kubeconfig.
func again(t *testing.T, c *rig.Cluster) {
	t.Helper()
	was := c.PID(t, "storage")
	kill(t, was)
	rig.Eventually(t, soon, "the controllers run again", func(context.Context) error {
		if is := c.PID(t, "storage"); is == 0 || is == was {
			return fmt.Errorf("pid %d, was %d", is, was)
		}
		return nil
	})
}

// rightOf returns the right that a request needs; empty if it is about no kind.
//
//	/api/v1/[namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]]
//	/apis/GROUP/VERSION/...
func rightOf(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group := ""
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		group, parts = parts[1], parts[3:]
	default:
		return "" // discovery, health
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	resource := parts[0]
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	verb := map[string]string{
		http.MethodPost:   "create",
		http.MethodPut:    "update",
		http.MethodPatch:  "patch",
		http.MethodDelete: "delete",
		http.MethodGet:    "get",
	}[r.Method]
	if verb == "get" && len(parts) == 1 {
		verb = "list"
		if watch := r.URL.Query().Get("watch"); watch == "true" || watch == "1" {
			verb = "watch"
		}
	}
	return right(verb, group, resource)
}
