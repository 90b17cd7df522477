package kubeletconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/kube/configfile"
)

// Sources are where a configuration comes from. What comes later overrides what comes earlier, as in the kubelet: the
// file with its defaults, drop-ins by JSON merge patch (RFC 7386), the command line.
type Sources struct {
	File     string    // empty: the defaults
	DropIns  string    // a directory: its *.conf files, also those below, in the order of their paths; empty: none
	Settings []Setting // of the command line
}

// Setting is a field as a command line sets it.
type Setting struct {
	Flag  string // with its dashes
	Path  string // of the field
	Value any    // what JSON can have
	// Add adds the keys of a map to those that the field has. Otherwise the value replaces the field.
	Add bool
}

// dropInExt is what the names of drop-ins end with, as in the kubelet.
const dropInExt = ".conf"

// LoadFrom reads a configuration from its sources. A problem of the whole names the drop-in or flag that set the field.
//
// With a directory of drop-ins and no file, the kubelet has no eviction thresholds but those of drop-ins; here there
// are its defaults. A field of a drop-in that does not exist is an error here, and ignored there.
func LoadFrom(s Sources) (*kubeletconfigv1beta1.KubeletConfiguration, []string, error) {
	if s.DropIns == "" && len(s.Settings) == 0 {
		return Load(s.File)
	}
	l := layers{from: map[string]string{}}
	if err := l.readFile(s.File); err != nil {
		return nil, nil, l.fail(s, err)
	}
	if s.DropIns != "" {
		if err := l.readDropIns(s.DropIns); err != nil {
			return nil, nil, l.fail(s, err)
		}
	}
	for _, one := range s.Settings {
		if err := l.set(one); err != nil {
			return nil, nil, l.fail(s, err)
		}
	}
	c, warnings, err := l.finish()
	if err != nil {
		return nil, nil, l.fail(s, err)
	}
	return c, warnings, nil
}

// layers is a configuration under construction.
type layers struct {
	asked []byte            // what the sources say, as JSON
	full  []byte            // the same with the defaults
	from  map[string]string // which drop-in or flag set a field of the top level last
	notes []string          // warnings about the sources
}

// fail returns an error with the sources that were read.
func (l *layers) fail(s Sources, err error) error {
	name := s.File
	if s.DropIns != "" {
		name = strings.TrimPrefix(name+" with "+s.DropIns, " with ")
	}
	if name != "" {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return fmt.Errorf("read kubelet configuration: %w", err)
}

// readFile begins with the file, or with the defaults. Relative paths in it are relative to its directory.
func (l *layers) readFile(path string) error {
	var data []byte
	dir := ""
	if path != "" {
		var err error
		if data, err = configfile.Read(path); err != nil {
			return err
		}
		if dir, err = filepath.Abs(filepath.Dir(path)); err != nil {
			return err
		}
	}
	var p configfile.Problems
	c, _ := configfile.Decode[kubeletconfigv1beta1.KubeletConfiguration](data, apiVersion, kind, &p)
	if c == nil || len(p) > 0 {
		return p.Err()
	}
	c.APIVersion, c.Kind = apiVersion, kind
	var err error
	if l.asked, err = json.Marshal(c); err != nil {
		return err
	}
	defaults(c)
	thresholdDefaults(c)
	resolvePaths(c, dir)
	l.full, err = json.Marshal(c)
	return err
}

// readDropIns merges the files of a directory.
func (l *layers) readDropIns(dir string) error {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("--config-dir: %w", err)
	}
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return nil
		case filepath.Ext(path) != dropInExt:
			l.notes = append(l.notes, fmt.Sprintf("%s: not read: names of drop-ins end with %s", path, dropInExt))
			return nil
		}
		return l.merge(path)
	}); err != nil {
		return fmt.Errorf("--config-dir: %w", err)
	}
	// As in the kubelet, what drop-ins set to null or to nothing has its default again, except eviction thresholds.
	c, err := decode(l.full)
	if err != nil {
		return err
	}
	defaults(c)
	l.full, err = json.Marshal(c)
	return err
}

// merge merges a drop-in.
func (l *layers) merge(path string) error {
	data, err := configfile.Read(path)
	if err != nil {
		return err
	}
	if len(strings.TrimSpace(string(data))) == 0 {
		return fmt.Errorf("%s: is empty: want apiVersion: %s and kind: %s at least", path, apiVersion, kind)
	}
	var p configfile.Problems
	_, has := configfile.Decode[kubeletconfigv1beta1.KubeletConfiguration](data, apiVersion, kind, &p)
	if err := p.Err(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	patch, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, doc := range []*[]byte{&l.asked, &l.full} {
		if *doc, err = jsonpatch.MergePatch(*doc, patch); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for name := range has {
		l.from[name] = path
	}
	return nil
}

// set sets a field.
func (l *layers) set(s Setting) error {
	for _, doc := range []*[]byte{&l.asked, &l.full} {
		all := map[string]any{}
		in := json.NewDecoder(bytes.NewReader(*doc))
		in.UseNumber() // an int64 is more than a float64 can have
		err := in.Decode(&all)
		if err == nil {
			put(all, strings.Split(s.Path, "."), s.Value, s.Add)
			*doc, err = json.Marshal(all)
		}
		if err == nil {
			_, err = decode(*doc)
		}
		if err != nil {
			return fmt.Errorf("%s: %s", s.Flag, configfile.Plain(err, kind))
		}
	}
	top, _, _ := strings.Cut(s.Path, ".")
	l.from[top] = s.Flag
	return nil
}

// put sets the value at a path of a document.
func put(doc map[string]any, path []string, value any, add bool) {
	for ; len(path) > 1; path = path[1:] {
		below, _ := doc[path[0]].(map[string]any)
		if below == nil {
			below = map[string]any{}
			doc[path[0]] = below
		}
		doc = below
	}
	old, _ := doc[path[0]].(map[string]any)
	if more, ok := value.(map[string]any); ok && add && old != nil {
		for key, v := range more {
			old[key] = v
		}
		return
	}
	doc[path[0]] = value
}

// decode reads a document whose parts were checked before.
func decode(doc []byte) (*kubeletconfigv1beta1.KubeletConfiguration, error) {
	c := &kubeletconfigv1beta1.KubeletConfiguration{}
	return c, json.Unmarshal(doc, c)
}

// finish checks the whole.
func (l *layers) finish() (*kubeletconfigv1beta1.KubeletConfiguration, []string, error) {
	c, err := decode(l.full)
	if err != nil {
		return nil, nil, err
	}
	asked, err := decode(l.asked)
	if err != nil {
		return nil, nil, err
	}
	var p problems
	validate(c, &p)
	if len(p) > 0 {
		for i, text := range p {
			p[i] = l.attribute(text)
		}
		return nil, nil, p.err()
	}
	for _, path := range paths(c) {
		if *path == "" || filepath.IsAbs(*path) {
			continue // as it was written
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, nil, errors.Join(errors.New("find the working directory"), err)
		}
	}
	return c, append(l.notes, unhonoured(asked, c)...), nil
}

// attribute adds to a problem which drop-in or flag set the field.
func (l *layers) attribute(problem string) string {
	field := problem
	if i := strings.IndexAny(problem, ".:[ "); i >= 0 {
		field = problem[:i]
	}
	if source := l.from[field]; source != "" {
		return fmt.Sprintf("%s (set by %s)", problem, source)
	}
	return problem
}
