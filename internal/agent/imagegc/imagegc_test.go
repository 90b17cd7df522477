package imagegc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	coreimagegc "github.com/plimsoll-dev/plimsoll/internal/core/imagegc"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/disk"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// shelf is a runtime that has images of one GiB each on a disk of 10 GiB.
type shelf struct {
	images     []*runtimeapi.Image
	containers []*runtimeapi.Container
	stuck      string // the image that cannot be removed
	info       map[string]string
}

func (s *shelf) ListImages(context.Context, *runtimeapi.ListImagesRequest,
	...grpc.CallOption) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: slices.Clone(s.images)}, nil
}

func (s *shelf) RemoveImage(_ context.Context, r *runtimeapi.RemoveImageRequest,
	_ ...grpc.CallOption) (*runtimeapi.RemoveImageResponse, error) {
	if r.Image.Image == s.stuck {
		return nil, errors.New("device or resource busy")
	}
	s.images = slices.DeleteFunc(s.images, func(i *runtimeapi.Image) bool { return i.Id == r.Image.Image })
	return &runtimeapi.RemoveImageResponse{}, nil
}

func (s *shelf) ListContainers(context.Context, *runtimeapi.ListContainersRequest,
	...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: s.containers}, nil
}

func (s *shelf) Status(context.Context, *runtimeapi.StatusRequest,
	...grpc.CallOption) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Info: s.info}, nil
}

func (s *shelf) disk(string) (disk.Usage, error) {
	return disk.Usage{Capacity: 10 * unit.GiB, Available: unit.Bytes(10-len(s.images)) * unit.GiB}, nil
}

func (s *shelf) left() string {
	var out []string
	for _, i := range s.images {
		out = append(out, i.Id)
	}
	return strings.Join(out, " ")
}

func TestCollect(t *testing.T) {
	for _, c := range []struct {
		name, want, keep string
		shelf            shelf
	}{
		{name: "down to the low mark", want: "d e f g h", shelf: shelf{}},
		{name: "what containers use stays, by id, reference or name", want: "a b c g h",
			shelf: shelf{containers: []*runtimeapi.Container{
				{ImageId: "a"}, {ImageRef: "b"}, {Image: &runtimeapi.ImageSpec{Image: "name/c:1"}},
			}}},
		{name: "the image of sandboxes stays", want: "a e f g h",
			shelf: shelf{info: map[string]string{"config": `{"sandboxImage":"name/a:1"}`}}},
		{name: "what nobody could pull again stays", want: "b e f g h", keep: "name/b:1", shelf: shelf{}},
		{name: "one that cannot be removed does not keep the next", want: "a e f g h", shelf: shelf{stuck: "a"}},
	} {
		s := &c.shelf
		for _, id := range strings.Fields("a b c d e f g h") {
			s.images = append(s.images, &runtimeapi.Image{Id: id, Size: 1 << 30, RepoTags: []string{"name/" + id + ":1"}})
		}
		events := record.NewFakeRecorder(9)
		gc := New(Options{Runtime: s, Images: s, Config: coreimagegc.Config{High: 80, Low: 50}, Dir: "/", Disk: s.disk,
			Keep: []string{c.keep}, Recorder: events, Node: &corev1.ObjectReference{}})
		err := gc.Collect(t.Context())
		if got := s.left(); got != c.want {
			t.Errorf("%s: left %q, want %q", c.name, got, c.want)
		}
		if (err != nil) != (s.stuck != "") || len(events.Events) > 0 {
			t.Errorf("%s: %v, %d events", c.name, err, len(events.Events))
		}
	}
}

// TestMountedImagesStay: images that containers mount as volumes are in use, also those of containers that have ended.
func TestMountedImagesStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		for _, id := range []string{"app", "data", "more", "old", "older"} {
			s.images = append(s.images, &runtimeapi.Image{Id: id, Size: uint64(unit.GiB)})
		}
		s.containers = []*runtimeapi.Container{
			{ImageId: "app", State: runtimeapi.ContainerState_CONTAINER_EXITED, Annotations: map[string]string{
				criconfig.AnnotationMountedImages: "data,more",
			}},
			{ImageId: "app"},
		}
		c := New(Options{Runtime: s, Images: s, Config: coreimagegc.Config{High: 20, Low: 10}, Dir: "/", Disk: s.disk})
		time.Sleep(time.Minute)
		if err := c.Collect(t.Context()); err == nil {
			t.Error("the disk is as empty as it should be")
		}
		if got := s.left(); got != "app data more" {
			t.Errorf("left: %s", got)
		}
	})
}

// TestCollectTooLittle: all remaining images are in use, and an Event about the Node reports it.
func TestCollectTooLittle(t *testing.T) {
	s := &shelf{}
	for _, id := range strings.Fields("a b c d e f g h i") {
		s.images = append(s.images, &runtimeapi.Image{Id: id})
		if id != "a" {
			s.containers = append(s.containers, &runtimeapi.Container{ImageId: id})
		}
	}
	events := record.NewFakeRecorder(9)
	gc := New(Options{Runtime: s, Images: s, Config: coreimagegc.Config{High: 80, Low: 50}, Dir: "/", Disk: s.disk,
		Recorder: events, Node: &corev1.ObjectReference{}})
	if err := gc.Collect(t.Context()); err == nil || s.left() != "b c d e f g h i" {
		t.Errorf("%v, left %q", err, s.left())
	}
	const want = "Warning FreeDiskSpaceFailed Insufficient free disk space on the node's image filesystem (90% of 10.0 " +
		"GiB used). Failed to free sufficient space by deleting unused images (freed 1073741824 bytes)."
	if got := <-events.Events; !strings.HasPrefix(got, want) {
		t.Errorf("got %q", got)
	}
}

func FuzzSandboxImage(f *testing.F) {
	cost.Attack(f, `{"sandboxImage":"registry/pause:3"}`)
	cost.Attack(f, `{"sandboxImage":5}`)
	cost.Attack(f, ``)
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		_ = parseSandboxImage(text)
	})
}

// An image that appears between two collections is seen in time: its minimum age is over when space is needed before
// the next collection.
func TestImagesAgeBetweenCollections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		gc := New(Options{Runtime: s, Images: s, Config: coreimagegc.Config{High: 80, Low: 50, AgeMin: 2 * time.Minute},
			Dir: "/", Disk: s.disk})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- gc.Run(ctx) }()
		time.Sleep(30 * time.Second)
		if err := gc.take(ctx, func() error { s.images = []*runtimeapi.Image{{Id: "new"}}; return nil }); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			after time.Duration
			left  string
		}{{2 * time.Minute, "new"}, {time.Minute, ""}} {
			time.Sleep(c.after)
			if err := gc.Reclaim(ctx, eviction.Reclaim{Step: eviction.UnusedImages, Signal: allocatable.ImageFSAvailable,
				Until: 1 << 60}); err != nil {
				t.Error(err)
			}
			if got := s.left(); got != c.left {
				t.Errorf("after %v more left %q, want %q", c.after, got, c.left)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
