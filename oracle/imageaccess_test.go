package oracle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/images/pullmanager"

	"github.com/plimsoll-dev/plimsoll/internal/agent/imageaccess"
	core "github.com/plimsoll-dev/plimsoll/internal/core/imageaccess"
)

// TestImageAccess makes random pulls with the kubelet's records and with ours, each in a directory of its own, and asks
// both at random who may use which image. Now and then both stop, and each continues with the other's directory. The
// answers are always the same.
func TestImageAccess(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 18))
			policy := []string{"NeverVerifyPreloadedImages", "AlwaysVerify", "NeverVerifyAllowlistedImages",
				"NeverVerify"}[r.IntN(4)]
			sides := &accessSides{t: t, ours: t.TempDir(), theirs: t.TempDir(), policy: policy}
			sides.open()
			var asked, allowed int
			for step := range 200 {
				image, id := fmt.Sprintf("r.io/%c:%d", 'a'+r.IntN(3), r.IntN(2)), fmt.Sprintf("sha256:%064d", r.IntN(3))
				switch r.IntN(12) {
				case 0:
					sides.ours, sides.theirs = sides.theirs, sides.ours
					sides.open()
				case 1, 2, 3:
					sides.pull(r, image, id)
				case 4:
					sides.fail(image, r.IntN(2) == 0)
				default:
					user := randomUser(r)
					ours, theirs := sides.ask(image, id, user)
					if ours != theirs {
						t.Fatalf("step %d, %s: may %+v use %s (%s)? ours %v, the kubelet's %v", step, policy, user, image, id, ours,
							theirs)
					}
					asked++
					if ours {
						allowed++
					}
				}
			}
			if policy != "NeverVerify" && (allowed == 0 || allowed == asked) {
				t.Errorf("%s: %d of %d allowed: the history asks for nothing", policy, allowed, asked)
			}
		})
	}
}

// accessSides are the two that are compared.
type accessSides struct {
	t            *testing.T
	ours, theirs string // root directories
	policy       string

	records *imageaccess.Records
	rule    core.Policy
	manager *pullmanager.PullManager
}

// noImages is a runtime without images, so that no unfinished pull is recovered.
type noImages struct{ kubecontainer.ImageService }

func (noImages) ListImages(context.Context) ([]kubecontainer.Image, error) { return nil, nil }

// open starts both with their directories.
func (s *accessSides) open() {
	s.t.Helper()
	var allowed []string
	if s.policy == "NeverVerifyAllowlistedImages" {
		allowed = []string{"r.io/a"}
	}
	var err error
	if s.records, err = imageaccess.Open(s.ours); err != nil {
		s.t.Fatal(err)
	}
	if s.rule, err = core.NewPolicy(s.policy, allowed); err != nil {
		s.t.Fatal(err)
	}
	accessor, err := pullmanager.NewFSPullRecordsAccessor(klog.Background(), s.theirs)
	if err != nil {
		s.t.Fatal(err)
	}
	theirs, err := pullmanager.NewImagePullCredentialVerificationPolicy(
		kubeletconfig.ImagePullCredentialsVerificationPolicy(s.policy), allowed)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.manager, err = pullmanager.NewImagePullManager(s.t.Context(), accessor, theirs, noImages{}, 4); err != nil {
		s.t.Fatal(err)
	}
}

// pull records a pull with one secret, with one account's token, with the node's credentials or with unknown ones.
func (s *accessSides) pull(r *rand.Rand, image, id string) {
	s.t.Helper()
	user := randomUser(r)
	var ours *core.Credentials
	var theirs *kubeletconfig.ImagePullCredentials
	switch n := r.IntN(6); {
	case n == 0:
		ours, theirs = &core.Credentials{Everybody: true}, &kubeletconfig.ImagePullCredentials{NodePodsAccessible: true}
	case n == 1 && user.Account != nil:
		ours = &core.Credentials{Accounts: []core.Account{*user.Account}}
		theirs = &kubeletconfig.ImagePullCredentials{
			KubernetesServiceAccounts: []kubeletconfig.ImagePullServiceAccount{
				kubeletconfig.ImagePullServiceAccount(*user.Account),
			},
		}
	case len(user.Secrets) > 0:
		ours = &core.Credentials{Secrets: user.Secrets[:1]}
		theirs = &kubeletconfig.ImagePullCredentials{KubernetesSecrets: kubeletSecrets(user.Secrets[:1])}
	default:
		return
	}
	if err := s.manager.RecordPullIntent(klog.Background(), image); err != nil {
		s.t.Fatal(err)
	}
	s.manager.RecordImagePulled(s.t.Context(), image, id, theirs)
	if err := s.records.Begin(image); err != nil {
		s.t.Fatal(err)
	}
	if err := s.records.Pulled(image, id, ours); err != nil {
		s.t.Fatal(err)
	}
}

// fail records a pull that was begun, and that failed unless both died meanwhile.
func (s *accessSides) fail(image string, died bool) {
	s.t.Helper()
	if err := s.manager.RecordPullIntent(klog.Background(), image); err != nil {
		s.t.Fatal(err)
	}
	if err := s.records.Begin(image); err != nil {
		s.t.Fatal(err)
	}
	if died {
		s.open()
		return
	}
	s.manager.RecordImagePullFailed(s.t.Context(), image)
	s.records.Failed(image)
}

// ask asks both whether a user may use an image that is present.
func (s *accessSides) ask(image, id string, user core.User) (ours, theirs bool) {
	s.t.Helper()
	question := s.records.Question(image, id)
	needs, may := s.rule.NeedsUser(question)
	if needs {
		var remember *core.Credentials
		if may, remember = question.Record.May(image, user); remember != nil {
			if err := s.records.Learn(image, id, remember); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	pulls, err := s.manager.MustAttemptImagePull(s.t.Context(), image, id,
		func() ([]kubeletconfig.ImagePullSecret, *kubeletconfig.ImagePullServiceAccount, error) {
			if user.Account == nil {
				return kubeletSecrets(user.Secrets), nil, nil
			}
			account := kubeletconfig.ImagePullServiceAccount(*user.Account)
			return kubeletSecrets(user.Secrets), &account, nil
		})
	if err != nil {
		s.t.Fatal(err)
	}
	return may, !pulls
}

// randomUser has up to two secrets and may have an account. Secrets of one name may have other content, or be other
// objects.
func randomUser(r *rand.Rand) core.User {
	var user core.User
	for range r.IntN(3) {
		user.Secrets = append(user.Secrets, core.Secret{
			UID: fmt.Sprint("uid", r.IntN(3)), Namespace: fmt.Sprint("ns", r.IntN(2)), Name: "pull", Sum: fmt.Sprintf("%064x",
				r.IntN(4)),
		})
	}
	if r.IntN(3) == 0 {
		user.Account = &core.Account{UID: fmt.Sprint("uid", r.IntN(2)), Namespace: "ns0", Name: "default"}
	}
	return user
}

func kubeletSecrets(of []core.Secret) []kubeletconfig.ImagePullSecret {
	var secrets []kubeletconfig.ImagePullSecret
	for _, s := range of {
		secrets = append(secrets, kubeletconfig.ImagePullSecret{UID: s.UID, Namespace: s.Namespace, Name: s.Name,
			CredentialHash: s.Sum})
	}
	return secrets
}
