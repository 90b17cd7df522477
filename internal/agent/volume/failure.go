package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/agent/csivolume"
)

// Failure is a volume that could not be set up. Its text is that of the kubelet's FailedMount Events.
type Failure struct {
	Volume string
	Err    error
}

func (f Failure) Error() string {
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", f.Volume, f.Err)
}
func (f Failure) Unwrap() error { return f.Err }

// Failures are the volumes of one pod that could not be set up, in the order of the pod's specification; never empty.
// Each is worth one FailedMount Event. All may be tried again: the pod's objects may appear, the API server may return.
type Failures []Failure

func (f Failures) Error() string {
	texts := make([]string, len(f))
	for i := range f {
		texts[i] = f[i].Error()
	}
	return strings.Join(texts, "; ")
}

func (f Failures) Unwrap() []error {
	errs := make([]error, len(f))
	for i := range f {
		errs[i] = f[i]
	}
	return errs
}

// all reports whether is returns true for every failure.
func (f Failures) all(is func(error) bool) bool {
	return !slices.ContainsFunc(f, func(one Failure) bool { return !is(one.Err) })
}

// OnlyWaits reports whether err is about volumes only that a driver is mounting or unmounting, or that wait for one.
// The pod's user is told by others, and the pod is tried again when they are there, or gone.
func OnlyWaits(err error) bool {
	var all Failures
	if errors.As(err, &all) {
		return all.all(isWaiting)
	}
	return isWaiting(err)
}

// WithoutWaits returns err without the volumes that OnlyWaits is about.
func WithoutWaits(err error) error {
	var all Failures
	if !errors.As(err, &all) {
		return err
	}
	return slices.DeleteFunc(slices.Clone(all), func(one Failure) bool { return isWaiting(one.Err) })
}

func isWaiting(err error) bool {
	var waiting *csivolume.WaitingError
	return errors.As(err, &waiting)
}

// UnsupportedError is a volume of a kind that this agent does not mount. Trying again does not help.
type UnsupportedError struct{ Kind, Why string }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("volume type %s is not supported by this agent: %s", e.Kind, e.Why)
}

// TooLargeError is content that exceeds the limits of one pod (core/volumelimit). The pod keeps its present content.
// Trying again helps when the objects have become smaller or other pods have been removed.
type TooLargeError struct{ Why string }

func (e *TooLargeError) Error() string { return e.Why }

func isTooLarge(err error) bool {
	var e *TooLargeError
	return errors.As(err, &e)
}
