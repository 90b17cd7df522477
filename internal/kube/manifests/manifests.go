// Package manifests reads Kubernetes objects from files, in the formats that kubectl reads. For pods that come from
// files it also does what the API server does for other pods.
//
// Unknown and duplicate fields are errors, and one error names everything that cannot be read. Static pods are decoded,
// defaulted and checked here before other packages use them (DecodePod, DefaultPod, CheckStaticPod). Only fields that
// the agent reads get their default.
//
// The package needs no connection. It does not repeat the API server's validation: an API server might refuse a pod
// that passes here.
package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

// Load reads files of Kubernetes objects: YAML documents, Lists, or JSON. Objects have the order of the files. One
// error names everything that cannot be read, by file and document.
func Load(paths []string) ([]runtime.Object, error) {
	var objects []runtime.Object
	var problems []error
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			problems = append(problems, fmt.Errorf("read manifests: %w", err))
			continue
		}
		found, err := Parse(data)
		if err != nil {
			problems = append(problems, fmt.Errorf("read manifests: %s: %w", path, err))
		}
		objects = append(objects, found...)
	}
	return objects, errors.Join(problems...)
}

// Parse reads the objects of one file. Unknown and duplicate fields are errors, and so are objects of kinds that are
// not in our scheme. A List may contain objects of any kind in the scheme.
func Parse(data []byte) ([]runtime.Object, error) {
	var objects []runtime.Object
	var problems []error
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if isBlank(document) {
			continue
		}
		found, err := decodeObjects(document)
		if err != nil {
			problems = append(problems, fmt.Errorf("document %d: %w", n, err))
		}
		objects = append(objects, found...)
	}
	return objects, errors.Join(problems...)
}

// isBlank reports whether a document contains only comments, white space and separators.
func isBlank(document []byte) bool {
	for line := range bytes.Lines(document) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

func decodeObjects(document []byte) ([]runtime.Object, error) {
	object, _, err := strict.UniversalDeserializer().Decode(document, nil, nil)
	if err != nil {
		return nil, err
	}
	switch list := object.(type) {
	case *corev1.List:
		var objects []runtime.Object
		var problems []error
		for i := range list.Items {
			found, err := decodeObjects(list.Items[i].Raw)
			if err != nil {
				problems = append(problems, fmt.Errorf("item %d: %w", i, err))
			}
			objects = append(objects, found...)
		}
		return objects, errors.Join(problems...)
	case *corev1.PodList:
		var objects []runtime.Object
		for i := range list.Items {
			objects = append(objects, &list.Items[i])
		}
		return objects, nil
	}
	return []runtime.Object{object}, nil
}
