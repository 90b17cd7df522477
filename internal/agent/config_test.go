package agent

import (
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/imageaccess"
	"github.com/plimsoll-dev/plimsoll/internal/core/imagegc"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// TestConfigurationReachesItsParts: each part of the agent gets its settings from the configuration file.
func TestConfigurationReachesItsParts(t *testing.T) {
	c, warnings, err := kubeletconfig.Parse([]byte(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerLogMaxSize: 3Mi
containerLogMaxFiles: 7
containerLogMaxWorkers: 2
containerLogMonitorInterval: 4s
maxParallelImagePulls: 9
serializeImagePulls: false
registryPullQPS: 3
registryBurst: 8
imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages
preloadedImagesVerificationAllowlist: [r.example/base/*]
imageServiceEndpoint: unix:///run/images.sock
crashLoopBackOff: {maxContainerRestartPeriod: 30s}
runtimeRequestTimeout: 7m
imageMinimumGCAge: 3m
imageMaximumGCAge: 5h
imageGCHighThresholdPercent: 66
imageGCLowThresholdPercent: 44
registerNode: false
providerID: cloud://a/b
nodeStatusMaxImages: 17
seccompDefault: true
featureGates: {ClusterTrustBundleProjection: true, PodCertificateRequest: true}
`), "/")
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, %v", warnings, err)
	}
	if r := rotation(c); r.MaxBytes != 3<<20 || r.MaxFiles != 7 || r.Workers != 2 || r.Interval != 4*time.Second {
		t.Errorf("logs are rotated as %+v", r)
	}
	pulls, err := pullOptions(c)
	if err != nil || pulls.AtOnce != 9 || pulls.QPS != 3 || pulls.Burst != 8 {
		t.Errorf("images are pulled with %+v, %v", pulls, err)
	}
	for image, want := range map[string]bool{"r.example/base/x:1": true, "r.example/other": false} {
		if needs, may := pulls.Policy.NeedsUser(imageaccess.Question{Image: image}); needs || may != want {
			t.Errorf("%s: everybody may use it: %v, want %v", image, may, want)
		}
	}
	yes, no := true, false
	for serialize, want := range map[*bool]int{nil: 1, &yes: 1, &no: pullsUnlimited} {
		if got := pullsAtOnce(serialize, nil); got != want {
			t.Errorf("%d pulls at once without maxParallelImagePulls, want %d", got, want)
		}
	}
	if got := crashBackoffMax(c); got != 30*time.Second {
		t.Errorf("restarts wait %v at most", got)
	}
	o := podOptions(c)
	if !o.PodCertificates || !nodeOptions(c).PodCertificates {
		t.Error("pods get no certificates")
	}
	if o.WorkTimeout != 7*time.Minute || o.BackoffMax != 30*time.Second || !o.SeccompAll || !o.TrustBundles {
		t.Errorf("pods are run with %+v", o)
	}
	if got, want := unusedImages(c), (imagegc.Config{High: 66, Low: 44, AgeMin: 3 * time.Minute,
		AgeMax: 5 * time.Hour}); got != want {
		t.Errorf("images are removed by %+v, want %+v", got, want)
	}
	if o := nodeOptions(c); o.Register || o.MaxImages != 17 || o.ProviderID != "cloud://a/b" || !o.TrustBundles {
		t.Errorf("the node is spoken for with %+v", o)
	}
	for endpoint, want := range map[string]string{"unix:///run/containerd.sock": "unix:///run/images.sock",
		"/run/images.sock": ""} {
		if got := imageEndpoint(Options{Config: c, Endpoint: endpoint}); got != want {
			t.Errorf("beside %s images are asked of %q, want %q", endpoint, got, want)
		}
	}
}
