package serving

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// A Check is one condition for a component to be healthy.
type Check struct {
	Name string       // its name in the path
	Do   func() error // nil: the condition is met
}

// ping is met as long as the server answers.
var ping = Check{"ping", func() error { return nil }}

// health answers as upstream's servers do: "ok", or 500 and a line for each check. With ?verbose it always answers with
// the lines, and with ?exclude=NAME it skips one check. Paths below it answer for one check each.
func health(name string, checks []Check) http.HandlerFunc {
	if len(checks) == 0 {
		checks = []Check{ping}
	}
	return func(w http.ResponseWriter, r *http.Request) {
		of, exclude := checks, r.URL.Query()["exclude"]
		if only := r.PathValue("check"); only != "" {
			i := slices.IndexFunc(checks, func(c Check) bool { return c.Name == only })
			if i < 0 {
				http.NotFound(w, r)
				return
			}
			of, exclude = checks[i:i+1], nil
		}
		var lines strings.Builder
		failed := false
		for _, c := range of {
			if slices.Contains(exclude, c.Name) {
				fmt.Fprintf(&lines, "[+]%s excluded: ok\n", c.Name)
			} else if err := c.Do(); err != nil {
				failed = true
				fmt.Fprintf(&lines, "[-]%s failed: %v\n", c.Name, err)
			} else {
				fmt.Fprintf(&lines, "[+]%s ok\n", c.Name)
			}
		}
		switch _, verbose := r.URL.Query()["verbose"]; {
		case failed:
			http.Error(w, fmt.Sprintf("%s%s check failed", &lines, name), http.StatusInternalServerError)
		case verbose:
			fmt.Fprintf(w, "%s%s check passed\n", &lines, name)
		default:
			fmt.Fprint(w, "ok")
		}
	}
}
