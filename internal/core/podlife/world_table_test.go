package podlife

import (
	"cmp"
	"fmt"
	"strings"
)

func describe(a Action, target string) string {
	switch a.Kind {
	case CreateSandbox:
		return fmt.Sprintf("create sandbox #%d", a.Attempt)
	case StartContainer:
		return fmt.Sprintf("start %s#%d", a.Container, a.Attempt)
	case StopContainer:
		if a.NoHook && a.Grace > 0 {
			target += " without hook"
		}
		return fmt.Sprintf("stop %s within %s: %s", target, a.Grace, a.Why)
	case BeginPreStop:
		return fmt.Sprintf("begin preStop hook of %s within %s", target, a.Grace)
	case Resize:
		return fmt.Sprintf("resize %v", a.Steps)
	case Finish:
		return "finish"
	}
	return fmt.Sprintf("%s %s: %s", a.Kind, target, a.Why)
}

// word describes a container's state in a few words.
func word(st ContainerStatus) string {
	switch {
	case st.Running != nil && st.Ready:
		return "ready"
	case st.Running != nil && !st.Started:
		return "starting"
	case st.Running != nil && st.Kind == Init:
		return "running"
	case st.Running != nil:
		return "unready"
	case st.Ended != nil:
		return fmt.Sprintf("%s(%d)", st.Ended.Reason, st.Ended.ExitCode)
	case st.Waiting != nil:
		return st.Waiting.Reason
	}
	return "?"
}

func (s Status) words() string {
	out := []string{string(s.Phase)}
	if s.Reason != "" {
		out[0] += "/" + s.Reason
	}
	for _, st := range s.Containers {
		out = append(out, st.Name+"="+word(st))
	}
	return strings.Join(out, " ")
}

// table formats a status for people.
func (w *world) table() string {
	var out strings.Builder
	s := w.status
	fmt.Fprintf(&out, "phase %s", cmp.Or(string(s.Phase), "none"))
	if s.Reason != "" {
		fmt.Fprintf(&out, ", reason %s: %s", s.Reason, s.Message)
	}
	out.WriteString("\n")
	if len(s.Containers) > 0 {
		fmt.Fprintf(&out, "%-8s %-27s %-8s %-5s %s\n", "NAME", "STATE", "RESTARTS", "READY", "LAST")
	}
	for _, st := range s.Containers {
		last := "-"
		if st.Last != nil {
			last = fmt.Sprintf("%s(%d)", st.Last.Reason, st.Last.ExitCode)
		}
		fmt.Fprintf(&out, "%-8s %-27s %-8d %-5t %s\n", st.Name, word(st), st.RestartCount, st.Ready, last)
		for _, message := range []string{messageOf(st.Waiting), endMessageOf(st.Ended)} {
			if message != "" {
				fmt.Fprintf(&out, "         %s\n", message)
			}
		}
	}
	for _, c := range s.Conditions {
		if c.Type == DisruptionTarget {
			fmt.Fprintf(&out, "%s: %s: %s\n", c.Type, c.Reason, c.Message)
		} else if strings.HasPrefix(c.Type, "PodResize") {
			fmt.Fprintf(&out, "%s (generation %d)\n", strings.TrimRight(c.Type+": "+c.Reason+": "+c.Message, ": "), c.Generation)
		} else if !c.True {
			fmt.Fprintf(&out, "not %s\n", strings.TrimRight(c.Type+": "+c.Reason+": "+c.Message, ": "))
		}
	}
	return out.String()
}

func messageOf(waiting *Waiting) string {
	if waiting == nil {
		return ""
	}
	return waiting.Message
}

func endMessageOf(t *Terminated) string {
	if t == nil {
		return ""
	}
	return t.Message
}
