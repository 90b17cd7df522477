package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/credentialprovider"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imageaccess"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imagepull"
	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pullsecret"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	coreimageaccess "github.com/plimsoll-dev/plimsoll/internal/core/imageaccess"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// pullsUnlimited is how many images are pulled at once if the configuration sets no limit. Chosen: a pull mostly waits
// for the network, and more pulls at once only overload the runtime.
const pullsUnlimited = 16

// preparePulls prepares the pulling of images: credentials, records of which pods may use an image, limits.
func (a *Agent) preparePulls(ctx context.Context, secrets imagepull.Secrets) (*imagepull.Puller, error) {
	o, err := pullOptions(a.o.Config)
	if err != nil {
		return nil, fmt.Errorf("read kubelet configuration: %w", err)
	}
	if a.pulled, err = imageaccess.Open(a.o.RootDir); err != nil {
		return nil, err
	}
	a.metrics.Registry.MustRegister(a.pulled)
	a.recoverPulls(ctx)
	o.Runtime = a.runtime.Images
	o.Secrets = secrets
	o.Recorder = a.recorder
	o.NodeFiles = pullsecret.NewFiles(a.o.RootDir, os.Getenv("HOME"))
	o.Records = a.pulled
	o.Pulled = func(p imagepull.Pull) {
		a.notePull(p)
		if p.Err == nil {
			a.metrics.ImagePull.WithLabelValues(metrics.ImageSize(p.Bytes)).Observe(p.Took.Seconds())
		}
	}
	o.Asked = func(policy corev1.PullPolicy, present, pull string) {
		a.metrics.ImageRequests.WithLabelValues(strings.ToLower(string(policy)), present, pull).Inc()
	}
	o.Checked = func(outcome string) { a.metrics.MustPullChecks.WithLabelValues(outcome).Inc() }
	if len(a.o.Credentials.Providers) > 0 {
		a.metrics.CredentialConfig.WithLabelValues(a.o.Credentials.ConfigHash).Set(1)
		a.o.Credentials.Ran = func(plugin string, took time.Duration, err error) {
			a.metrics.CredentialPlugin.WithLabelValues(plugin).Observe(took.Seconds())
			if err != nil {
				a.metrics.CredentialPluginErrors.WithLabelValues(plugin).Inc()
			}
		}
		a.o.Credentials.Accounts = accounts{client: a.client, tokens: volume.KubeTokens(a.client)}
		if o.Providers, err = credentialprovider.New(a.o.Credentials); err != nil {
			return nil, err
		}
	}
	return imagepull.New(o), nil
}

// pullOptions returns the options of pulls that come from the configuration.
func pullOptions(c *kubeletconfigv1beta1.KubeletConfiguration) (imagepull.Options, error) {
	policy, err := coreimageaccess.NewPolicy(
		string(c.ImagePullCredentialsVerificationPolicy), c.PreloadedImagesVerificationAllowlist,
	)
	return imagepull.Options{
		Policy: policy,
		AtOnce: pullsAtOnce(c.SerializeImagePulls, c.MaxParallelImagePulls),
		QPS:    float64(*c.RegistryPullQPS),
		Burst:  int(c.RegistryBurst),
	}, err
}

func pullsAtOnce(serialize *bool, parallelMax *int32) int {
	switch {
	case parallelMax != nil:
		return max(int(*parallelMax), 1)
	case serialize == nil || *serialize:
		return 1
	}
	return pullsUnlimited
}

// recoverPulls records the pulls that an earlier agent began and could not record before it ended. If the runtime does
// not answer, they are not recorded, and their images are pulled again.
func (a *Agent) recoverPulls(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	list, err := a.runtime.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err == nil {
		var images []imageaccess.Image
		for _, i := range list.Images {
			images = append(images, imageaccess.Image{ID: i.Id, Names: append(i.RepoTags, i.RepoDigests...)})
		}
		err = a.pulled.Recover(images)
	}
	if err != nil {
		slog.Warn("pulls of an earlier agent not recorded; their images are pulled again", "err", err)
	}
}

// accounts reads service accounts for credential provider plugins.
type accounts struct {
	client *kube.Client
	tokens volume.TokenRequester
}

func (s accounts) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	account := &corev1.ServiceAccount{}
	return account, s.client.Get(ctx, kube.ServiceAccounts, namespace, name, account)
}

func (s accounts) Token(ctx context.Context, namespace, name string,
	request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	answer, err := s.tokens(ctx, namespace, name, request)
	if err == nil && answer.Status.Token == "" {
		err = errors.New("the API server returned an empty token")
	}
	return answer, err
}
