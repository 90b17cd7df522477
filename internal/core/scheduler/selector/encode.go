package selector

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"

// AppendLabels writes labels.
func AppendLabels(b []byte, list []Label) []byte {
	b = encode.Number(b, int64(len(list)))
	for i := range list {
		b = encode.String(encode.String(b, list[i].Key), list[i].Value)
	}
	return b
}

func appendRequirements(b []byte, list []Requirement) []byte {
	b = encode.Number(b, int64(len(list)))
	for i := range list {
		q := &list[i]
		b = encode.Number(encode.String(b, q.Key), int64(q.Op))
		b = encode.Number(encode.Strings(b, q.Values), q.Bound)
	}
	return b
}

// Append writes a selector.
func (s *Selector) Append(b []byte) []byte {
	return appendRequirements(encode.Bool(b, s.Nothing), s.Requirements)
}

// AppendNodeTerm writes a term.
func AppendNodeTerm(b []byte, t *NodeTerm) []byte {
	b = appendRequirements(b, t.Labels)
	return encode.Bool(appendRequirements(b, t.Names), t.Broken)
}

// AppendNodeTerms writes terms. A nil list and an empty list give different bytes.
func AppendNodeTerms(b []byte, list *[]NodeTerm) []byte {
	if list == nil {
		return encode.Bool(b, false)
	}
	b = encode.Number(encode.Bool(b, true), int64(len(*list)))
	for i := range *list {
		b = AppendNodeTerm(b, &(*list)[i])
	}
	return b
}

// AppendTolerations writes tolerations.
func AppendTolerations(b []byte, list []Toleration) []byte {
	b = encode.Number(b, int64(len(list)))
	for i := range list {
		t := &list[i]
		b = encode.String(encode.String(encode.String(b, t.Key), t.Value), string(t.Effect))
		b = encode.Bool(encode.Bool(b, t.Exists), t.Never)
	}
	return b
}
