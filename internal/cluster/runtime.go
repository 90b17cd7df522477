package cluster

import "errors"

// newRuntime is the container runtime of an instance.
func newRuntime(l layout, imageDir string) (containerRuntime, error) {
	return nil, errors.New("no container runtime in this build yet: use --no-agent")
}
