package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// kubeadmLine is the command of kubeadm 1.36's static pod (cmd/kubeadm/app/phases/controlplane), k3sLine the arguments
// that k3s 1.36 passes to its scheduler (pkg/daemons/control).
var (
	kubeadmLine = []string{"--authentication-kubeconfig=KUBECONFIG", "--authorization-kubeconfig=KUBECONFIG",
		"--bind-address=127.0.0.1",
		"--kubeconfig=KUBECONFIG", "--leader-elect=true"}
	k3sLine = []string{"--authentication-kubeconfig=KUBECONFIG", "--authorization-kubeconfig=KUBECONFIG",
		"--bind-address=127.0.0.1",
		"--kubeconfig=KUBECONFIG", "--profiling=false", "--secure-port=10259", "--leader-elect=false", "--v=0", "--vmodule=",
		"--tls-cert-file=", "--tls-private-key-file=", "--feature-gates=NodeDeclaredFeatures=false"}
)

// TestCommandLinesOfOthers: command lines for kube-scheduler are accepted, whatever the program's name is.
func TestCommandLinesOfOthers(t *testing.T) {
	for name, line := range map[string][]string{"kubeadm": kubeadmLine, "k3s": k3sLine} {
		args := asUpstream("/usr/local/bin/kube-scheduler", line)
		c, rest, err := newRootCommand().Find(args)
		if err != nil || c.Name() != "scheduler" {
			t.Fatalf("%s: %v, %v", name, c, err)
		}
		if err := c.ParseFlags(rest); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if port, err := c.Flags().GetInt("secure-port"); port != 10259 || err != nil {
			t.Errorf("%s: port %d, %v", name, port, err)
		}
	}
	if args := asUpstream("/usr/bin/plimsoll", []string{"up"}); args[0] != "up" {
		t.Errorf("%v", args)
	}
}

func TestBadSchedulerFlags(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for want, line := range map[string][]string{
		`--feature-gates: "Telepathy": no feature gate of Kubernetes 1.36`: {"--feature-gates=Telepathy=true"},
		"--feature-gates: NodeSwap=false: is locked":                       {"--feature-gates=NodeSwap=false"},
		"--logging-format: \"xml\"":                                        {"--logging-format=xml"},
		"--kubeconfig: required outside of a pod":                          {"--leader-elect=false"},
		"--tls-min-version: \"VersionTLS9\"": {"--kubeconfig=KUBECONFIG",
			"--tls-min-version=VersionTLS9"},
	} {
		err := run(t.Context(), append([]string{"scheduler"}, withKubeconfig(t, line, "https://127.0.0.1:1")...))
		if err == nil || !strings.Contains(err.Error(), want) || exitCode(err) != exitUsage {
			t.Errorf("%v: %v, want %s", line, err, want)
		}
	}
}

// withKubeconfig writes a kubeconfig for server and puts its path into args.
func withKubeconfig(t *testing.T, args []string, server string) (out []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: %q}}], users: [{name: u, user: {token: t}}]}`, server)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, arg := range args {
		out = append(out, strings.ReplaceAll(arg, "KUBECONFIG", path))
	}
	return out
}

// emptyCluster is an API server without objects. It answers lists when the test allows it, and a request with the token
// "good" may do everything.
func emptyCluster(t *testing.T, lists chan struct{}) http.Handler {
	kinds := map[string]kube.Kind{}
	for _, k := range []kube.Kind{kube.Pods, kube.Nodes, kube.Namespaces, kube.DisruptionBudgets, kube.Services,
		kube.ReplicationControllers, kube.ReplicaSets,
		kube.StatefulSets, kube.StorageClasses, kube.Volumes, kube.VolumeClaims, kube.CSINodes, kube.CSIDrivers,
		kube.CSIStorageCapacities, kube.VolumeAttachments} {
		kinds[k.Resource] = k
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		resource := parts[len(parts)-1]
		w.Header().Set("Content-Type", "application/json")
		answer := func(v any) { _ = json.NewEncoder(w).Encode(v) }
		k, known := kinds[resource]
		switch {
		case r.Method == http.MethodGet && known && r.URL.Query().Get("watch") != "":
			if r.URL.Query().Get("sendInitialEvents") != "" {
				http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`,
					http.StatusUnprocessableEntity)
				return
			}
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case r.Method == http.MethodGet && known:
			select {
			case <-lists:
			case <-r.Context().Done():
			}
			answer(map[string]any{"apiVersion": k.GroupVersion.String(), "kind": reflect.TypeOf(k.NewList()).Elem().Name(),
				"metadata": map[string]any{"resourceVersion": "1"}})
		case resource == "tokenreviews":
			var review authenticationv1.TokenReview
			_ = json.NewDecoder(r.Body).Decode(&review)
			answer(map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
				"status": authenticationv1.TokenReviewStatus{Authenticated: true,
					User: authenticationv1.UserInfo{Username: "someone"}}})
		case resource == "subjectaccessreviews":
			answer(map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
				"status": authorizationv1.SubjectAccessReviewStatus{Allowed: true}})
		default:
			http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`,
				http.StatusNotFound)
		}
	})
}

// TestSchedulerServes checks the HTTPS port. It is alive as soon as it listens, ready when the lists are in, and shows
// its configuration, metrics and profiles to authorized clients; without --profiling there are no profiles.
func TestSchedulerServes(t *testing.T) {
	for _, profiling := range []bool{true, false} {
		lists := make(chan struct{})
		api := httptest.NewServer(emptyCluster(t, lists))
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		args := withKubeconfig(t, []string{"scheduler", "--kubeconfig=KUBECONFIG", "--leader-elect=false",
			"--bind-address=127.0.0.1",
			fmt.Sprint("--secure-port=", port), fmt.Sprint("--profiling=", profiling), "--kube-api-qps=50"}, api.URL)
		go func() { ended <- run(ctx, args) }()
		// its certificate is self-signed
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		ask := func(path string) (int, string) {
			for {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", port, path), nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer good")
				answer, err := client.Do(r)
				if err != nil {
					select {
					case err := <-ended:
						t.Fatal(err)
					case <-time.After(10 * time.Millisecond): // it does not listen yet
						continue
					}
				}
				body, err := io.ReadAll(answer.Body)
				if err != nil {
					t.Fatal(err)
				}
				answer.Body.Close()
				return answer.StatusCode, string(body)
			}
		}
		expect := func(path string, want int, part string) {
			t.Helper()
			if status, body := ask(path); status != want || !strings.Contains(body, part) {
				t.Errorf("%s: %d %.500s; want %d, %s", path, status, body, want, part)
			}
		}
		expect("/livez", 200, "ok")
		// the scheduler has not started yet
		for status, body := ask("/readyz"); status == 200; status, body = ask("/readyz") {
			if body != "ok" {
				t.Errorf("ready: %s", body)
			}
		}
		expect("/readyz", 500, "[-]sched-handler-sync failed: handlers are not fully synchronized")
		close(lists)
		for status, _ := ask("/readyz"); status != 200; status, _ = ask("/readyz") {
		}
		expect("/readyz?verbose", 200, "[+]leaderElection ok")
		expect("/healthz", 200, "ok")
		expect("/metrics", 200, "scheduler_pending_pods")
		expect("/metrics", 200, `leader_election_master_status{name="kube-scheduler"} 1`)
		expect("/metrics/resources", 200, "")
		expect("/configz", 200,
			`{"componentconfig":{"kind":"KubeSchedulerConfiguration","apiVersion":"kubescheduler.config.k8s.io/v1"`)
		expect("/configz", 200, fmt.Sprintf(`"enableProfiling":%v`, profiling))
		expect("/debug/pprof/cmdline", map[bool]int{true: 200, false: 404}[profiling], "")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		api.CloseClientConnections()
		api.Close()
	}
}
