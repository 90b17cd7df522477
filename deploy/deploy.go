// Package deploy is the manifests for clusters that `plimsoll up` did not make. Those that it installs too are embedded, so
// that there is one copy. It has no code and decides nothing.
package deploy

import _ "embed"

// NodeResourceTopology is the definition of that object, and who may read and write it: YAML documents.
//
//go:embed noderesourcetopology.yaml
var NodeResourceTopology string
