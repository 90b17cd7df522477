// Package manifests reads Kubernetes objects from files, as kubectl takes them, and does for pods that come from files
// what the API server does for all others.
//
// Unknown and duplicate fields are errors, and one error names everything that cannot be read. Static pods are decoded,
// given the API's defaults and checked here, before anything else looks at them (DecodePod, DefaultPod,
// CheckStaticPod); the defaults are those of fields that somebody here reads.
//
// It needs no connection, and is not the API's validation: a pod that passes here may be one that an API server would
// refuse.
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

// Load reads files of Kubernetes objects, as kubectl takes them: YAML documents, Lists, or JSON. Objects come in
// the order of the files. One error names everything that cannot be read, by file and document.
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

// Parse reads the objects of one file, refusing unknown and duplicate fields. Objects of kinds that Plimsoll does
// not know are an error; a List may hold any that it knows.
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

// isBlank reports whether a document has nothing but comments, white space and separators.
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
