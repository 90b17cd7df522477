package env

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// envFileMax bounds the size in bytes of a file that fileKeyRef names. Chosen: a string of more than 128 KiB cannot be
// passed to execve(2) anyway (MAX_ARG_STRLEN), and a container writes the file, so it is not trusted.
const envFileMax = 1 << 20

// readEnvFile looks up key in an env file below dir. Neither the path nor a link in it can lead outside dir.
func readEnvFile(dir, path, key string) (value string, ok bool, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", false, err
	}
	defer root.Close()
	// O_NONBLOCK: a container may have left a FIFO there, and opening one must not wait for a writer.
	file, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", false, err
	}
	defer file.Close()
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", false, fmt.Errorf("%s: not a regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(file, envFileMax+1))
	if err != nil {
		return "", false, err
	}
	if len(text) > envFileMax {
		return "", false, fmt.Errorf("%s: larger than %d bytes", path, envFileMax)
	}
	value, ok, err = lookupEnvFile(string(text), key)
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", path, err)
	}
	return value, ok, nil
}

// lookupEnvFile finds key in text, which has the format
//
//	# a comment, or a blank line
//	NAME='value, taken literally, possibly
//	over several lines'  # and a comment
//
// NAME= 'x' is an empty NAME, as in a shell. As in the kubelet, an empty value counts as absent. Only the text up to
// the key is checked.
func lookupEnvFile(text, key string) (value string, ok bool, err error) {
	line := 0
	for text != "" {
		var current string
		current, text, _ = strings.Cut(text, "\n")
		line++
		current = strings.TrimLeft(strings.TrimSuffix(current, "\r"), " \t")
		if current == "" || current[0] == '#' {
			continue
		}
		name, rest, found := strings.Cut(current, "=")
		switch {
		case !found:
			return "", false, fmt.Errorf("invalid environment variable format at line %d: missing '='", line)
		case strings.TrimRight(name, " \t") == "":
			return "", false, fmt.Errorf("invalid environment variable format at line %d: empty variable name", line)
		case strings.TrimRight(name, " \t") != name:
			return "", false, fmt.Errorf("invalid environment variable format at line %d: whitespace before '=' is not allowed",
				line)
		case strings.HasPrefix(rest, " ") || strings.HasPrefix(rest, "\t"):
			if name == key {
				return "", false, nil
			}
			continue
		case !strings.HasPrefix(rest, "'"):
			return "", false,
				fmt.Errorf("invalid environment variable format at line %d: value must be enclosed in single quotes", line)
		}
		start, body := line, rest[1:]
		for !strings.Contains(body, "'") {
			if text == "" {
				return "", false, fmt.Errorf("invalid environment variable format starting at line %d: unclosed single quote",
					start)
			}
			var next string
			next, text, _ = strings.Cut(text, "\n")
			body += "\n" + strings.TrimSuffix(next, "\r")
			line++
		}
		value, tail, _ := strings.Cut(body, "'")
		if tail = strings.TrimLeft(tail, " \t"); tail != "" && tail[0] != '#' {
			return "", false,
				fmt.Errorf("invalid environment variable format at line %d: unexpected content after closing quote", line)
		}
		if name == key {
			return value, value != "", nil
		}
	}
	return "", false, nil
}
