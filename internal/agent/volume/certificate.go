package volume

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podcert"
	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// credentialsMax bounds credentials that are read back. Chosen: far more than a key of 4 kB and a chain, of which the
// API server takes 64 kB.
const credentialsMax = 256 << 10

// addCertificate adds the key and the certificate that the agent requested for the pod. Their files have the mode of a
// token. All of them come from one answer, and are replaced together, like all that is in a volume.
func (k *Manager) addCertificate(ctx context.Context, out *rendering, s *podState, v *corev1.Volume, index int) error {
	if k.Certificates == nil {
		return &UnsupportedError{"projected", "source podCertificate needs the feature gate PodCertificateRequest: " +
			"switch it on in featureGates of the node's configuration"}
	}
	if translate.IsStaticPod(s.pod) {
		return &UnsupportedError{"projected", "source podCertificate is not for static pods: " +
			"the API server does not know them"}
	}
	source := v.Projected.Sources[index].PodCertificate
	has, err := k.Certificates.Credentials(
		ctx, s.pod, podcert.Place{Volume: v.Name, Source: index}, source,
		func() []byte { return k.writtenCredentials(s, v, source) },
	)
	if err != nil {
		return err
	}
	f := privateFile(s.pod, v.Projected.DefaultMode)
	for _, one := range []struct {
		path string
		data []byte
	}{
		{source.CredentialBundlePath, has.Bundle()},
		{source.KeyPath, has.Key},
		{source.CertificateChainPath, has.Chain},
	} {
		if one.path == "" {
			continue
		}
		f.data = one.data
		if err := out.add(one.path, f); err != nil {
			return err
		}
	}
	return nil
}

// writtenCredentials returns the key and the chain that an earlier agent wrote; nil: one of them is missing.
func (k *Manager) writtenCredentials(s *podState, v *corev1.Volume, source *corev1.PodCertificateProjection) []byte {
	read := func(path string) []byte {
		if !filepath.IsLocal(path) { // the payload is checked later
			return nil
		}
		text, err := untrusted.Read(filepath.Join(k.pathOf(s, s.pod.UID, v), dataLink, path), credentialsMax)
		if err != nil {
			return nil
		}
		return text
	}
	if bundle := read(source.CredentialBundlePath); bundle != nil {
		return bundle
	}
	key, chain := read(source.KeyPath), read(source.CertificateChainPath)
	if key == nil || chain == nil {
		return nil
	}
	return append(key, chain...)
}
