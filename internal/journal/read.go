package journal

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// eachIn reads every record of the files in a directory, oldest first, and counts damaged lines.
func eachIn(dir string, visit func(Record)) (damaged int, err error) {
	for _, name := range []string{older, newer} {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return damaged, err
		}
		n, err := eachOf(f, visit)
		f.Close()
		if damaged += n; err != nil {
			return damaged, err
		}
	}
	return damaged, nil
}

func eachOf(from io.Reader, visit func(Record)) (damaged int, err error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, lineMax+1)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		r, err := decode(lines.Bytes())
		if err != nil {
			damaged++
			continue
		}
		visit(r)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return damaged + 1, nil // not a line of a journal: the rest cannot be separated into lines
	}
	return damaged, lines.Err()
}

// AnswerMax bounds how much of an Answer is read, in bytes. Chosen: eight times the largest journal (BytesMax).
const AnswerMax = 64 << 20

// ReadAnswer reads an Answer as it is served. Agents of earlier releases serve a list of records.
func ReadAnswer(text []byte, q Query) (Answer, error) {
	var from Answer
	var err error
	if text = bytes.TrimSpace(text); bytes.HasPrefix(text, []byte{'['}) {
		err = json.Unmarshal(text, &from.Records)
		if len(from.Records) > 0 { // it does not say how much there is besides these
			from.First, from.Last = from.Records[0].Number, from.Records[len(from.Records)-1].Number
		}
	} else {
		err = json.Unmarshal(text, &from)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("read journal: %w", err)
	}
	all := from.Records
	from.Records = []Record{}
	for _, r := range all {
		if q.matches(r.Node, r.Pods) {
			from.Records = append(from.Records, r)
		}
	}
	return from, nil
}

// Read reads a journal that is not open: a copy of one of its files, a directory with them, or a saved Answer.
func Read(path string, q Query) (Answer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Answer{}, fmt.Errorf("read journal: %w", err)
	}
	a := Answer{Records: []Record{}}
	if info.IsDir() {
		a, err = readDir(path, q)
		if err == nil && a.First == 0 {
			err = fmt.Errorf("no record in it: want a directory with %s and %s", newer, older)
		}
	} else {
		a, err = readFile(path, q)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("read journal: %s: %w", path, err)
	}
	return a, nil
}

// readDir reads the journal in a directory, and the one in its directory OfPods: an agent has both.
func readDir(path string, q Query) (Answer, error) {
	var all Answer
	all.Records = []Record{}
	for _, dir := range []string{path, filepath.Join(path, OfPods)} {
		a := Answer{Records: []Record{}}
		var err error
		if a.Damaged, err = eachIn(dir, a.collector(q)); err != nil {
			return Answer{}, err
		}
		a.fromFirst(dir)
		all.By = cmp.Or(all.By, a.By)
		all.Add(a)
	}
	return all, nil
}

// OfPods is the directory of the agent's journal of its pods, in that of its journal of evictions. They are apart so
// that pods that come and go do not displace evictions, which the next agent may need to know.
const OfPods = "pods"

func readFile(path string, q Query) (Answer, error) {
	f, err := os.Open(path)
	if err != nil {
		return Answer{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, AnswerMax+1))
	switch {
	case err != nil:
		return Answer{}, err
	case len(text) > AnswerMax:
		return Answer{}, fmt.Errorf("more than %d bytes: not a journal", AnswerMax)
	}
	if begin := bytes.TrimSpace(text); bytes.HasPrefix(begin, []byte{'['}) || bytes.HasPrefix(begin, []byte{'{'}) {
		return ReadAnswer(text, q)
	}
	a := Answer{Records: []Record{}}
	a.Damaged, err = eachOf(bytes.NewReader(text), a.collector(q))
	if err == nil && a.First == 0 {
		err = fmt.Errorf("no record in it, and %d lines that are none: want a file of a journal, or an answer of /journal",
			a.Damaged)
	}
	return a, err
}
