package env

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The kernel's limits on the arguments and environment of a process, in bytes (execve(2), "Limits on size of arguments
// and environment"). A pod's text may expand to any multiple of its own size: each of forty variables may be twice the
// one before. What exceeds the limits is refused before it takes the agent's memory.
var (
	// of one argument, or one variable with its name: MAX_ARG_STRLEN in linux/binfmts.h
	stringMax = 32 * os.Getpagesize()
	// of all together: three quarters of the default stack, whatever its limit (bprm_set_stack_limits in fs/exec.c)
	totalMax = 6 << 20
)

// Expand replaces each $(NAME) in s by what lookup returns for NAME. A name that lookup does not know stays as written.
// $$ is one $, so that $$(NAME) becomes the text $(NAME). A $ that begins neither is itself. Values are not expanded
// again. A result that is too long for one argument of a process is an error, and the result is not built.
func Expand(s string, lookup func(name string) (string, bool)) (string, error) {
	if !strings.Contains(s, "$") {
		return s, fits(len(s))
	}
	var out strings.Builder
	// the last closing parenthesis, so that it is not searched for again and again
	closed := strings.LastIndexByte(s, ')')
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
				out.WriteString(s[:2]) // never closed: plain text, and $$ may still follow
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
		return fmt.Errorf("longer than the %d bytes that a process can receive as one string", stringMax)
	}
	return nil
}

// ExpandPath expands s like Expand, for a subPathExpr. An unknown or empty reference is an error there: otherwise the
// mount would silently be another directory. It returns the missing names, sorted and without repetitions. A path that
// is too long for the kernel is an error.
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
