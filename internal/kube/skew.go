package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
)

// Pauses between requests for the API server's version, from the first to the longest, doubling. Chosen: nothing waits
// for the answer, and a server that never gives it is not bothered.
const (
	versionFirst = time.Second
	versionMax   = 5 * time.Minute
)

// NoteSkew asks the API server its version, until it answers or ctx ends. It logs once what follows from another minor
// release than ours. older is how many minor releases ours may be older than the API server: 3 for a kubelet, 1 for a
// scheduler or controllers (https://kubernetes.io/releases/version-skew-policy/).
func (c *Client) NoteSkew(ctx context.Context, ours string, older uint) {
	for pause := versionFirst; ; pause = min(2*pause, versionMax) {
		var server apiversion.Info
		text, err := c.groups[corev1.SchemeGroupVersion].Get().AbsPath("/version").Timeout(5 * time.Second).DoRaw(ctx)
		if err == nil {
			err = json.Unmarshal(text, &server)
		}
		if err == nil {
			if note := skewNote(server.GitVersion, ours, older); note != "" {
				slog.Warn("API server of another release", "server", fmt.Sprintf("%.100s", server.GitVersion), "ours", ours,
					"note", note)
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// skewNote returns what follows from two versions; empty: nothing that anybody must know.
func skewNote(server, ours string, older uint) string {
	s, err := utilversion.ParseSemantic(server)
	if err != nil {
		return "its version is not one of Kubernetes: what it lacks is not known"
	}
	o := utilversion.MustParseSemantic(ours)
	switch {
	case s.Major() != o.Major():
		return "not of the same major release: not supported"
	case s.Minor() < o.Minor():
		return fmt.Sprintf("it is older, which Kubernetes does not support: it drops fields of objects that are newer than "+
			"%d.%d; upgrade it before its nodes", s.Major(), s.Minor())
	case s.Minor() > o.Minor()+older:
		return fmt.Sprintf("it is more than %d minor releases newer, which Kubernetes does not support: upgrade this program",
			older)
	}
	return ""
}
