package kube

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestSkewNote: an API server of our release, or newer within the policy, is not worth a word.
func TestSkewNote(t *testing.T) {
	for _, c := range []struct {
		server string
		older  uint
		want   string
	}{
		{"v1.36.0", 1, ""}, {"v1.36.3+k3s1", 1, ""}, {"v1.37.2", 1, ""}, {"v1.39.0", 3, ""},
		{"v1.38.0", 1, "more than 1 minor releases newer"}, {"v1.40.0", 3, "more than 3 minor releases newer"},
		{"v1.35.4", 3, "fields of objects that are newer than 1.35"}, {"v1.34.0-rc.1", 1, "newer than 1.34"},
		{"v2.0.0", 3, "major release"}, {"", 3, "not one of Kubernetes"}, {"unknown", 3, "not one of Kubernetes"},
	} {
		if got := skewNote(c.server, "v1.36.3", c.older); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s, %d: %q, want %q", c.server, c.older, got, c.want)
		}
	}
}

// TestNoteSkew: the server is asked until it answers, and what follows is logged once.
func TestNoteSkew(t *testing.T) {
	var out bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 1 || r.URL.Path != "/version" {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(`{"gitVersion": "v1.34.4"}`))
	}))
	defer server.Close()
	client, err := NewClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	client.NoteSkew(t.Context(), "v1.36.3", 3)
	if text := out.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "server=v1.34.4") {
		t.Errorf("after %d requests the log is:\n%s", asked, text)
	}
}
