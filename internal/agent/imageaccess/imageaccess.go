// Package imageaccess stores the records of core/imageaccess on disk: which images this node pulled, under which names
// and with whose credentials.
//
// # Model
//
// A record is one file, <root-dir>/image_manager/pulled/sha256-<sum of the image's id>; a pull that was begun is one in
// image_manager/pulling. Names and content are those of the kubelet 1.36.3, so that each can continue with the other's
// files.
//
// The file in pulling is written before the runtime is asked, and removed after the record is written. If an agent dies
// in between, the next one finds the file and the image, and records that the image was pulled with unknown
// credentials.
//
// # Invariants
//
//   - A file is complete or does not exist: it is written under another name, synced and renamed.
//   - If a file cannot be read, or is about another image than its name says, that is an error, and the image is pulled
//     again.
//   - Files contain hashes of credentials, never credentials, and only root may read them.
package imageaccess

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/imageaccess"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
)

const (
	group = "kubelet.config.k8s.io/"
	// version is what is written. Upstream's v1alpha1 has the same fields and is read as well.
	version = group + "v1beta1"
	older   = group + "v1alpha1"

	prefix = "sha256-"

	// fileMax bounds what is read of a file, in bytes. Chosen: a thousand names with a hundred secrets each have more,
	// and then the image is pulled again.
	fileMax = 4 << 20
)

// Records are the records of one node. They are safe for concurrent use.
type Records struct {
	pulling, pulled string // directories

	mu    sync.Mutex     // guards begun and the files
	begun map[string]int // how many pulls of an image this process has begun and not ended, by the image's name
}

// Open returns the records below the agent's root directory.
func Open(root string) (*Records, error) {
	r := &Records{
		pulling: filepath.Join(root, "image_manager", "pulling"),
		pulled:  filepath.Join(root, "image_manager", "pulled"),
		begun:   map[string]int{},
	}
	for _, dir := range []string{r.pulling, r.pulled} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("open the records of pulled images: %w", err)
		}
	}
	return r, nil
}

// Question returns what is known of an image, by its name in a pod's specification and the runtime's ID.
func (r *Records) Question(image, id string) imageaccess.Question {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := imageaccess.Question{Image: image, Intent: r.begun[image] > 0}
	record, err := r.read(id)
	if err == nil && !q.Intent {
		_, err = os.Lstat(file(r.pulling, image))
		q.Intent = err == nil
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		slog.Warn("record of a pulled image not read; it is pulled again", "image", image, "err", err)
		q.Unknown = true
		return q
	}
	q.Record = record
	return q
}

// Begin records that an image is about to be pulled.
func (r *Records) Begin(image string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := write(file(r.pulling, image), kubeletconfigv1beta1.ImagePullIntent{
		TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: "ImagePullIntent"}, Image: image,
	})
	if err != nil {
		return fmt.Errorf("record the pull of image %q: %w", image, err)
	}
	r.begun[image]++
	return nil
}

// Failed ends a pull that failed.
func (r *Records) Failed(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(image)
}

// Pulled ends a pull that succeeded, and records the credentials. If that fails, the file in pulling stays, so that the
// image still counts as pulled.
func (r *Records) Pulled(image, id string, with *imageaccess.Credentials) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.learn(image, id, with); err != nil {
		r.begun[image]--
		return err
	}
	r.end(image)
	return nil
}

// Learn records further credentials that are valid for an image.
func (r *Records) Learn(image, id string, with *imageaccess.Credentials) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.learn(image, id, with)
}

// Image is an image that the runtime has.
type Image struct {
	ID    string
	Names []string // with their tags or digests
}

// Recover completes the records of pulls that an earlier agent began, if the runtime has their images.
func (r *Records) Recover(images []Image) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	intents, err := list(r.pulling)
	errs = append(errs, err)
	for _, path := range intents {
		var intent kubeletconfigv1beta1.ImagePullIntent
		if err := load(path, "ImagePullIntent", &intent, &intent.TypeMeta); err != nil {
			errs = append(errs, err)
			continue
		}
		for _, image := range images {
			if r.begun[intent.Image] > 0 || !slices.ContainsFunc(image.Names, func(n string) bool {
				return sameName(n,
					intent.Image)
			}) {
				continue
			}
			if err := r.learn(intent.Image, image.ID, nil); err != nil {
				errs = append(errs, err)
				continue
			}
			errs = append(errs, durable.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// Prune removes the records of images that are not in ids, those that the runtime has. Records that were changed after
// since are kept.
func (r *Records) Prune(ids []string, since time.Time) error {
	there := map[string]bool{}
	for _, id := range ids {
		there[file(r.pulled, id)] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	since = since.Truncate(time.Second) // the files store whole seconds
	paths, err := list(r.pulled)
	errs := []error{err}
	for _, path := range paths {
		if there[path] {
			continue
		}
		var record kubeletconfigv1beta1.ImagePulledRecord
		if err := load(path, "ImagePulledRecord", &record, &record.TypeMeta); err == nil &&
			!record.LastUpdatedTime.Time.Before(since) {
			continue
		}
		errs = append(errs, durable.Remove(path))
	}
	return errors.Join(errs...)
}

// learn adds credentials to a record. The caller holds mu.
func (r *Records) learn(image, id string, with *imageaccess.Credentials) error {
	before, err := r.read(id)
	if err != nil {
		slog.Warn("record of a pulled image not read; a new one replaces it", "image", image, "err", err)
		before = nil
	}
	after, changed := before.Learn(id, image, with, unit.WallOf(time.Now()))
	if !changed {
		return nil
	}
	if err := write(file(r.pulled, id), encode(after)); err != nil {
		return fmt.Errorf("record the pulled image %q: %w", image, err)
	}
	return nil
}

// end ends one pull of an image; after the last one it removes the file in pulling. The caller holds mu.
func (r *Records) end(image string) {
	r.begun[image]--
	if r.begun[image] > 0 {
		return
	}
	delete(r.begun, image)
	if err := durable.Remove(file(r.pulling, image)); err != nil {
		slog.Warn("record of a pull not removed; its image is pulled again", "image", image, "err", err)
	}
}

// read returns the record of an image; nil: there is none. The caller holds mu.
func (r *Records) read(id string) (*imageaccess.Record, error) {
	var record kubeletconfigv1beta1.ImagePulledRecord
	err := load(file(r.pulled, id), "ImagePulledRecord", &record, &record.TypeMeta)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && record.ImageRef != id {
		err = fmt.Errorf("%s: is about image %.200q, want %q", file(r.pulled, id), record.ImageRef, id)
	}
	if err != nil {
		return nil, err
	}
	return decode(&record), nil
}

func decode(in *kubeletconfigv1beta1.ImagePulledRecord) *imageaccess.Record {
	out := &imageaccess.Record{Image: in.ImageRef, ByName: map[string]imageaccess.Credentials{},
		Updated: unit.WallOf(in.LastUpdatedTime.Time)}
	for name, c := range in.CredentialMapping {
		known := imageaccess.Credentials{Everybody: c.NodePodsAccessible}
		for _, s := range c.KubernetesSecrets {
			known.Secrets = append(known.Secrets, imageaccess.Secret{UID: s.UID, Namespace: s.Namespace, Name: s.Name,
				Sum: s.CredentialHash})
		}
		for _, a := range c.KubernetesServiceAccounts {
			known.Accounts = append(known.Accounts, imageaccess.Account{UID: a.UID, Namespace: a.Namespace, Name: a.Name})
		}
		out.ByName[name] = known
	}
	return out
}

func encode(in *imageaccess.Record) *kubeletconfigv1beta1.ImagePulledRecord {
	out := &kubeletconfigv1beta1.ImagePulledRecord{
		TypeMeta:        metav1.TypeMeta{APIVersion: version, Kind: "ImagePulledRecord"},
		LastUpdatedTime: metav1.NewTime(in.Updated.Time()), ImageRef: in.Image,
		CredentialMapping: map[string]kubeletconfigv1beta1.ImagePullCredentials{},
	}
	for name, c := range in.ByName {
		written := kubeletconfigv1beta1.ImagePullCredentials{NodePodsAccessible: c.Everybody}
		for _, s := range c.Secrets {
			written.KubernetesSecrets = append(written.KubernetesSecrets, kubeletconfigv1beta1.ImagePullSecret{
				UID: s.UID, Namespace: s.Namespace, Name: s.Name, CredentialHash: s.Sum,
			})
		}
		for _, a := range c.Accounts {
			written.KubernetesServiceAccounts = append(written.KubernetesServiceAccounts,
				kubeletconfigv1beta1.ImagePullServiceAccount{
					UID: a.UID, Namespace: a.Namespace, Name: a.Name,
				})
		}
		out.CredentialMapping[name] = written
	}
	return out
}

var (
	intentsDesc = prometheus.NewDesc(
		"kubelet_imagemanager_ondisk_pullintents", "Pulls that were begun and not ended", nil, nil,
	)
	recordsDesc = prometheus.NewDesc(
		"kubelet_imagemanager_ondisk_pulledrecords", "Records of images that were pulled", nil, nil,
	)
)

// Describe implements prometheus.Collector.
func (r *Records) Describe(out chan<- *prometheus.Desc) {
	out <- intentsDesc
	out <- recordsDesc
}

// Collect implements prometheus.Collector: it counts the files. A directory that cannot be read is left out.
func (r *Records) Collect(out chan<- prometheus.Metric) {
	for desc, dir := range map[*prometheus.Desc]string{intentsDesc: r.pulling, recordsDesc: r.pulled} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		n := 0
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), prefix) && !strings.HasSuffix(e.Name(), unfinished) {
				n++
			}
		}
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n))
	}
}

// sameName compares a runtime's name of an image with a specification's, which may omit Docker Hub and the tag latest.
func sameName(runtimes, specs string) bool {
	if !strings.ContainsAny(strings.TrimPrefix(specs, imageaccess.NameOf(specs)), ":@") {
		specs += ":latest"
	}
	return runtimes == specs || runtimes == "docker.io/"+specs || runtimes == "docker.io/library/"+specs
}

func file(dir, of string) string {
	return filepath.Join(dir, fmt.Sprintf("%s%x", prefix, sha256.Sum256([]byte(of))))
}

// list returns the records in a directory, and removes files that an interrupted write left.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		switch path := filepath.Join(dir, e.Name()); {
		case strings.HasSuffix(e.Name(), unfinished):
			err = errors.Join(err, durable.Remove(path))
		case strings.HasPrefix(e.Name(), prefix) && e.Type().IsRegular():
			paths = append(paths, path)
		}
	}
	return paths, err
}

// load decodes a file into one of upstream's types. meta is the TypeMeta in it.
func load(path, kind string, into any, meta *metav1.TypeMeta) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > fileMax {
		return fmt.Errorf("%s: %s of %d bytes, want a regular file of at most %d", path, info.Mode().Type(), info.Size(),
			fileMax)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if meta.Kind != kind || meta.APIVersion != version && meta.APIVersion != older {
		return fmt.Errorf("%s: is a %.100q of %.100q, want %s of %s", path, meta.Kind, meta.APIVersion, kind, version)
	}
	return nil
}

// unfinished ends the name of a file that is being written; a crash leaves it.
const unfinished = ".new"

func write(path string, what any) error {
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	return durable.Write(path, text)
}
