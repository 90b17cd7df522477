package oracle

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/credentialprovider"
	upstream "k8s.io/kubernetes/pkg/credentialprovider/secrets"

	"github.com/plimsoll-dev/plimsoll/internal/agent/pullsecret"
)

// TestPullSecretSums: the hashes by which records of pulled images distinguish credentials are the kubelet's, so that
// agent and kubelet can continue with each other's records. The same credentials give access to an image.
func TestPullSecretSums(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func(of ...string) string { return of[r.IntN(len(of))] }
	for range 2000 {
		var secrets []corev1.Secret
		for i := range 1 + r.IntN(3) {
			auths := map[string]map[string]string{}
			for range 1 + r.IntN(3) {
				auth := map[string]string{"username": word("u", "v", ""), "password": word("p", "<&>", "")}
				if r.IntN(3) == 0 {
					auth["email"] = "a@b"
				}
				auths[word("r.io", "https://r.io/v1/", "r.io/team", "*.io", "o.io:5000", "r.io/team/app")] = auth
			}
			text, err := json.Marshal(map[string]any{"auths": auths})
			if err != nil {
				t.Fatal(err)
			}
			secrets = append(secrets, corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("s", i), UID: types.UID(fmt.Sprint("u", i))},
				Type:       corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: text},
			})
		}
		theirs, err := upstream.MakeDockerKeyring(secrets, &credentialprovider.BasicDockerKeyring{})
		if err != nil {
			t.Fatal(err)
		}
		var ours pullsecret.Keyring
		for i := range secrets {
			if err := ours.Add(&secrets[i]); err != nil {
				t.Fatal(err)
			}
		}
		image := word("r.io/team/app", "r.io/other", "x.io/y", "o.io:5000/z")
		var want, got []string
		found, _ := theirs.Lookup(image)
		for _, c := range found {
			want = append(want, fmt.Sprint(c.Source.Secret.UID, c.Source.Secret.Namespace, c.Source.Secret.Name,
				c.AuthConfigHash))
		}
		for _, c := range ours.For(image) {
			got = append(got, fmt.Sprint(c.Secret.UID, c.Secret.Namespace, c.Secret.Name, c.Secret.Sum))
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("%s with %s: ours %q, upstream's %q", image, secrets[0].Data, got, want)
		}
	}
}
