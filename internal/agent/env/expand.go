package env

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// What a Linux process can be given when it is started, in bytes (execve(2), "Limits on size of arguments and
// environment"). A pod's text may ask for any multiple of its own size: each of forty variables may be the one before,
// twice. What no process could be given is refused before it takes the agent's memory.
var (
	stringMax = 32 * os.Getpagesize() // of one argument, or one variable with its name: MAX_ARG_STRLEN in linux/binfmts.h
	totalMax  = 6 << 20               // of all: three quarters of the default stack, whatever its limit (bprm_set_stack_limits in fs/exec.c)
)

// Expand replaces each $(NAME) in s by what lookup returns for NAME. A name that lookup does not know stays as written;
// $$ stands for one $, so that $$(NAME) is the text $(NAME); a $ that begins neither is itself. Values are not expanded
// again. A result that no process can be given as one argument is an error, and is not built.
func Expand(s string, lookup func(name string) (string, bool)) (string, error) {
	if !strings.Contains(s, "$") {
		return s, fits(len(s))
	}
	var out strings.Builder
	closed := strings.LastIndexByte(s, ')') // where the last reference ends: nobody looks for a further end, again and again
	length := len(s)
	for {
		if err := fits(out.Len()); err != nil {
			return "", err
		}
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			out.WriteString(s)
			return out.String(), fits(out.Len())
		}
		out.WriteString(s[:i])
		s = s[i:]
		switch s[1] {
		case '$':
			out.WriteByte('$')
			s = s[2:]
		case '(':
			if closed < length-len(s) {
				out.WriteString(s[:2]) // never closed: text, and what follows may still hold $$
				s = s[2:]
				continue
			}
			end := strings.IndexByte(s, ')')
			if value, ok := lookup(s[2:end]); ok {
				out.WriteString(value)
			} else {
				out.WriteString(s[:end+1])
			}
			s = s[end+1:]
		default:
			out.WriteByte('$')
			s = s[1:]
		}
	}
}

func fits(bytes int) error {
	if bytes >= stringMax {
		return fmt.Errorf("longer than the %d bytes that a process can be given in one piece", stringMax)
	}
	return nil
}

// ExpandPath expands s as Expand does for a subPathExpr, where a reference that is unknown or empty is an error: the
// mount would otherwise silently be another directory. It returns the names that are missing, sorted and once each.
// A path that the kernel takes for too long is an error.
func ExpandPath(s string, lookup func(name string) (string, bool)) (path string, missing []string, err error) {
	absent := map[string]bool{}
	path, err = Expand(s, func(name string) (string, bool) {
		value, ok := lookup(name)
		if !ok || value == "" {
			absent[name] = true
		}
		return value, true
	})
	if len(absent) > 0 {
		missing = sortedKeys(absent)
	}
	if err == nil && len(path) >= unix.PathMax {
		err = fmt.Errorf("longer than the %d bytes of a path", unix.PathMax-1)
	}
	if err != nil {
		return "", missing, err
	}
	return path, missing, nil
}
