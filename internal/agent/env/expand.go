package env

import "strings"

// Expand replaces each $(NAME) in s by what lookup returns for NAME. A name that lookup does not know stays as written;
// $$ stands for one $, so that $$(NAME) is the text $(NAME); a $ that begins neither is itself. Values are not expanded
// again.
func Expand(s string, lookup func(name string) (string, bool)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var out strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			out.WriteString(s)
			return out.String()
		}
		out.WriteString(s[:i])
		s = s[i:]
		switch s[1] {
		case '$':
			out.WriteByte('$')
			s = s[2:]
		case '(':
			end := strings.IndexByte(s, ')')
			if end < 0 {
				out.WriteString(s[:2]) // never closed: text, and what follows may still hold $$
				s = s[2:]
				continue
			}
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

// ExpandPath expands s as Expand does for a subPathExpr, where a reference that is unknown or empty is an error: the
// mount would otherwise silently be another directory. It returns the names that are missing, sorted and once each.
func ExpandPath(s string, lookup func(name string) (string, bool)) (path string, missing []string) {
	absent := map[string]bool{}
	path = Expand(s, func(name string) (string, bool) {
		value, ok := lookup(name)
		if !ok || value == "" {
			absent[name] = true
		}
		return value, true
	})
	if len(absent) > 0 {
		missing = sortedKeys(absent)
	}
	return path, missing
}
